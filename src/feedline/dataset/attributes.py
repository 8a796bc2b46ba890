"""Passive inspection of an object: its attributes, entries and a function's bound values.

Guarantees: no user code runs: no property, no `__getattr__`, no `__iter__`, no metaclass.
Attributes are read from `__dict__`, from slots and from the classes themselves. What Python does
not store in these places, e.g. the fields of a C extension's object, is not seen.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["attributes", "class_of_any", "is_plain_object", "parts"]

MAX_ENTRIES = 1000
"""Maximum length of a container: longer ones hold data, not transforms."""

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
_NO_VALUES = {types.FunctionType, property, staticmethod, classmethod, types.GetSetDescriptorType}
"""Class attributes that are not shared data of its objects."""
_USERS = 1 << 9
"""Class flag of classes defined in Python: CPython's Py_TPFLAGS_HEAPTYPE."""

_bases = type.__dict__["__mro__"].__get__  # a metaclass may have another
_members = type.__dict__["__dict__"].__get__
_flags = type.__dict__["__flags__"].__get__


def class_of_any(thing: object, kinds: tuple[type, ...]) -> bool:
    """Return True if an object's real class is one of these or derived from one."""
    return any(base in kinds for base in _bases(type(thing)))


def is_plain_object(thing: object) -> bool:
    """Return True for an instance of a Python class; False for data and classes."""
    return bool(_flags(type(thing)) & _USERS) and not class_of_any(thing, _OPAQUE)


def parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Parts of an object, each with its suffix (e.g. ".name" or "[0]")."""
    if class_of_any(thing, _OPAQUE):
        return
    if class_of_any(thing, (list, tuple)):
        kind: Any = list if class_of_any(thing, (list,)) else tuple
        if kind.__len__(thing) <= MAX_ENTRIES:
            yield from ((f"[{k}]", part) for k, part in enumerate(kind.__iter__(thing)))
    elif class_of_any(thing, (dict,)):
        if dict.__len__(thing) <= MAX_ENTRIES:
            yield from ((f"[{_said(key)}]", part) for key, part in list(dict.items(thing)))
    elif type(thing) is types.FunctionType:
        yield from _bound(thing)
        return
    elif type(thing) is types.BuiltinFunctionType:  # a method of an object that is written in C
        yield ".__self__", thing.__self__
        return
    if type(thing) not in (list, tuple, dict):
        yield from ((f".{name}", part) for name, part in attributes(thing))


def _said(key: object) -> str:
    return repr(key) if type(key) in (str, int) else f"a {type(key).__name__}"


def _bound(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Values bound by a function; not the globals it names, which other code shares."""
    cells: tuple[types.CellType, ...] = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield f".__closure__[{name}]", cell.cell_contents
        except ValueError:  # it is still empty
            continue
    yield from ((f".__defaults__[{k}]", part) for k, part in enumerate(function.__defaults__ or ()))
    yield from ((f"({name}=)", part) for name, part in (function.__kwdefaults__ or {}).items())
    yield from ((f".{name}", part) for name, part in list(function.__dict__.items()))


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, by name: its own, its slots, and those of user-defined classes."""
    bases = _bases(type(thing))
    own: Any = next((of["__dict__"] for of in map(_members, bases) if "__dict__" in of), None)
    known: dict[str, Any] = {}
    if type(own) is types.GetSetDescriptorType:  # else it is a property of the user's
        known = own.__get__(thing)
        yield from list(known.items())
    for base in bases:
        users = _flags(base) & _USERS
        for name, member in list(_members(base).items()):
            if name in known:
                continue
            if type(member) is types.MemberDescriptorType:  # a slot, or what a partial holds
                try:
                    yield name, member.__get__(thing)
                except AttributeError:  # it was never set
                    continue
            elif users and type(member) not in _NO_VALUES and not name.startswith("__"):
                yield name, member
