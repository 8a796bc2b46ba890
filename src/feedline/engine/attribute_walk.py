"""Passive search of a dataset: its parts, their attributes, and memory shared with workers.

Guarantees: no user code runs: no property, no `__getattr__`, no `__iter__`, no metaclass.
Attributes are read from `__dict__`, from slots and from the classes themselves. Values stored
elsewhere, e.g. the fields of a C extension's object, are not seen. Entries of containers with more
than 1000 are not visited, as they hold data.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.managers import BaseProxy
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import torch

MAX_ENTRIES = 1000
"""Entries of a container that are inspected. A longer one holds data."""
MAX_INSPECTED = 10_000
LIBRARIES = ("torch", "torchvision", "timm", "feedline")
_NO_GENERATORS = ("numpy", "PIL", "albumentations", "pandas", "pyarrow", "datasets", "builtins")

_CDATA: type = ctypes.c_int.__mro__[-2]  # the base of all values and arrays of ctypes
_SHARED = (SynchronizedBase, BaseProxy, SharedMemory, Event, _CDATA)
_OPAQUE = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    np.ndarray,
    np.generic,
    torch.Tensor,
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    types.GeneratorType,
    type(None),
)
_NON_DATA_MEMBERS = {
    types.FunctionType,
    property,
    staticmethod,
    classmethod,
    types.GetSetDescriptorType,
}
"""Types of class attributes that are not data."""
_HEAPTYPE_FLAG = 1 << 9
"""Class flag of classes defined in Python: CPython's Py_TPFLAGS_HEAPTYPE."""

_bases = type.__dict__["__mro__"].__get__  # a metaclass may have another
_members = type.__dict__["__dict__"].__get__
_flags = type.__dict__["__flags__"].__get__


def is_instance_of_any(thing: object, classes: tuple[type, ...]) -> bool:
    """Return True if an object's real class is in `classes` or derived from one."""
    return any(base in classes for base in _bases(type(thing)))


def is_plain_object(thing: object) -> bool:
    """Return True for an instance of a Python class; False for data and classes."""
    return bool(_flags(type(thing)) & _HEAPTYPE_FLAG) and not is_instance_of_any(thing, _OPAQUE)


def walk(
    *roots: tuple[str, Any],
    is_leaf: Callable[[Any], object] = lambda thing: False,
    max_depth: int = sys.maxsize,
    named_globals: bool = False,
) -> Iterator[tuple[str, Any]]:
    """Yield each object that can be reached once, with its path: at most 10,000, the nearest first.

    Parts of a leaf, and of an object `max_depth` steps from the roots, are not visited. With
    `named_globals`, the globals that functions and methods name follow after all other objects.
    """
    seen: set[int] = set()
    upcoming = deque((0, path, thing) for path, thing in roots)
    later: deque[tuple[int, str, Any]] = deque()
    while (upcoming or later) and len(seen) < MAX_INSPECTED:
        depth, path, thing = (upcoming or later).popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        yield path, thing
        if depth < max_depth and not is_leaf(thing):
            upcoming.extend((depth + 1, path + name, part) for name, part in parts(thing))
            if named_globals:
                later.extend((depth + 1, path + name, part) for name, part in _code_parts(thing))


def parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Parts of an object, each with its suffix (e.g. ".name" or "[0]")."""
    if is_instance_of_any(thing, _OPAQUE):
        return
    if is_instance_of_any(thing, (list, tuple)):
        kind: Any = list if is_instance_of_any(thing, (list,)) else tuple
        if kind.__len__(thing) <= MAX_ENTRIES:
            yield from ((f"[{k}]", part) for k, part in enumerate(kind.__iter__(thing)))
    elif is_instance_of_any(thing, (dict,)):
        if dict.__len__(thing) <= MAX_ENTRIES:
            yield from ((f"[{key_text(key)}]", part) for key, part in list(dict.items(thing)))
    elif type(thing) is types.FunctionType:
        yield from _bound_values(thing)
        return
    elif type(thing) is types.BuiltinFunctionType:  # a method of an object that is written in C
        yield ".__self__", thing.__self__
        return
    if type(thing) not in (list, tuple, dict):
        yield from ((f".{name}", part) for name, part in attributes(thing))


def key_text(key: object) -> str:
    """Describe the key of an entry in a path."""
    return repr(key) if type(key) in (str, int) else f"a {type(key).__name__}"


def _bound_values(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Values bound by a function; not the globals it names."""
    cells: tuple[types.CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield f".__closure__[{name}]", cell.cell_contents
        except ValueError:  # it is still empty
            continue
    yield from ((f".__defaults__[{k}]", part) for k, part in enumerate(function.__defaults__ or ()))
    yield from ((f"({name}=)", part) for name, part in (function.__kwdefaults__ or {}).items())
    yield from ((f".{name}", part) for name, part in list(function.__dict__.items()))


def _code_parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Globals that a function names, or the methods of an object; none of a library's code.

    Of a module that is named, only attributes whose names the function contains.
    """
    if type(thing) is types.FunctionType:
        values, names = thing.__globals__, dict.fromkeys(_names(thing.__code__))
        if _is_library(values.get("__name__")):
            return
        for name in names:
            if name not in values:
                continue
            value = values[name]
            yield f".__globals__[{name}]", value
            if type(value) is types.ModuleType and not _is_library(vars(value).get("__name__")):
                members = vars(value)
                yield from (
                    (f".__globals__[{name}].{each}", members[each])
                    for each in names
                    if each in members
                )
    elif is_plain_object(thing):
        for base in _bases(type(thing)):
            if _is_library(_members(base).get("__module__")):
                continue
            for name, member in list(_members(base).items()):
                if type(member) in (staticmethod, classmethod):
                    member = member.__func__
                elif type(member) is property:
                    member = member.fget
                if type(member) is types.FunctionType:
                    yield f".{name}", member


def _names(code: types.CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from _names(constant)


def _is_library(module: object) -> bool:
    """Return True for a module of Python or of a library whose globals hold no own generators."""
    top = module.partition(".")[0] if type(module) is str else ""
    return top in LIBRARIES or top in _NO_GENERATORS or top in sys.stdlib_module_names


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, by name: its own, its slots, and those of user-defined classes."""
    values = own_values(thing)
    yield from list(values.items())
    for base in _bases(type(thing)):
        users = _flags(base) & _HEAPTYPE_FLAG
        for name, member in list(_members(base).items()):
            if name in values:
                continue
            if type(member) is types.MemberDescriptorType:  # a slot, or what a partial holds
                try:
                    yield name, member.__get__(thing)
                except AttributeError:  # it was never set
                    continue
            elif users and type(member) not in _NON_DATA_MEMBERS and not name.startswith("__"):
                yield name, member


def own_values(thing: object) -> dict[str, Any]:
    """The `__dict__` of an object; an empty one if it has none, or a property defined by the user.

    No user code runs.
    """
    members = members_of_classes(type(thing))
    own: Any = next((of["__dict__"] for of in members if "__dict__" in of), None)
    return own.__get__(thing) if type(own) is types.GetSetDescriptorType else {}


def find_slot(thing: object, name: str) -> Any:
    """Descriptor of a slot; None for any other attribute."""
    member = next((of[name] for of in members_of_classes(type(thing)) if name in of), None)
    return member if type(member) is types.MemberDescriptorType else None


def members_of_classes(kind: type) -> Iterator[Any]:
    """Members of a class and of its bases, in the order of lookups."""
    return map(_members, _bases(kind))


def find_shared_memory(dataset: object, *, forked: bool) -> str | None:
    """Path of the first shared memory in a dataset, e.g. "dataset.epoch"; None without any.

    Unless workers are `forked`, all CPU tensors become shared.
    """
    shared = (path for path, part in walk(("dataset", dataset)) if _is_shared(part, forked=forked))
    return next(shared, None)


def _is_shared(thing: Any, *, forked: bool) -> bool:
    if type(thing) is torch.Tensor:
        return thing.device.type == "cpu" and (not forked or thing.is_shared())
    if type(thing) is np.ndarray:
        return thing.flags.writeable and _is_mapped(thing)
    return is_instance_of_any(thing, _SHARED)


def _is_mapped(array: Any) -> bool:
    """Return True for an array over multiprocessing's shared memory, or over a file."""
    while type(array) is np.ndarray:
        array = array.base
    if type(array) is memoryview:
        array = array.obj
    return is_instance_of_any(array, (mmap.mmap, _CDATA))
