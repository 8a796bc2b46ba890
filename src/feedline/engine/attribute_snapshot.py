"""Passive inspection of a dataset: attribute snapshots, and memory shared with workers.

Snapshots are compared when an iteration begins, to tell whether persistent workers, and a compiled
pipeline, still match the dataset. If only small attributes of numbers and text have changed,
`AttributeSnapshot.sendable_changes` returns them, and `apply_changes` sets them in a worker.

Guarantees: no user code runs: no property, no `__getattr__`, no `__iter__`, no metaclass.
Attributes are read from `__dict__`, from slots and from the classes themselves. Values stored
elsewhere, e.g. the fields of a C extension's object, are not seen. A comparison is exact:
attributes are compared by identity, numbers and text by value, tensors also by torch's counter of
in-place changes; lists, dicts and sets by identity and length, and entry by entry up to 1000
entries. The samples and labels of torchvision folders and the indices of Subsets are compared entry
by entry at any length: some 20 ms for a list of a million. Transforms, from libraries or
user-defined, are inspected like datasets; any other object one level deep, its public attributes
only, because private ones are often caches. Changes at deeper levels, and the contents of arrays,
are not detected.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from multiprocessing.managers import BaseProxy
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from multiprocessing.synchronize import Event
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

__all__ = [
    "AttributeChange",
    "AttributeSnapshot",
    "InitialAttributes",
    "Steps",
    "apply_changes",
    "find_shared_memory",
    "is_instance_of_any",
    "merge_changes",
    "walk",
]

# Entries of a container that are inspected. A longer one holds data: only its identity and length
# are compared.
_MAX_ENTRIES = 1000
_MAX_INSPECTED = 10_000
_TRANSFORMS = ("torchvision.", "timm.", "torch.nn.modules.container")
_LIBRARIES = ("torch", "torchvision", "timm", "feedline")
_NO_GENERATORS = ("numpy", "PIL", "albumentations", "pandas", "pyarrow", "datasets", "builtins")
_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
_SETS = (set, frozenset)
_CONTAINERS = (list, tuple, dict, *_SETS)
_MUTABLE = (list, dict, set)
_MAX_DEPTH = 10  # of containers within a value that is sent to workers
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OF_FOLDERS = ("samples", "targets", "imgs")


class _Entries:
    """Copy of all entries of a list or an array of numbers, compared by identity.

    If entries are lists, their entries are compared too.
    """

    def __init__(self, listed: Any) -> None:
        self._length = len(listed)
        self._nested = type(listed) is not np.ndarray and list in map(type, listed)
        entries = self._read(listed)
        self._copy = entries.copy() if type(listed) is np.ndarray else list(entries)

    def _read(self, listed: Any) -> Any:
        if not self._nested:
            return listed
        return [*chain.from_iterable([e, *e] if type(e) is list else [e] for e in listed)]

    def match(self, listed: Any, *, compare_lists: bool) -> bool:
        """Return True if a list has the same length and, if `compare_lists`, the same entries."""
        if len(listed) != self._length:
            return False
        return not compare_lists or _identical(self._copy, self._read(listed))

    def same(self, other: _Entries) -> bool:
        """Return True if both hold the same objects."""
        return _identical(self._copy, other._copy)


def _identical(one: Any, other: Any) -> bool:
    if type(one) is np.ndarray or type(other) is np.ndarray:
        return type(one) is type(other) and np.array_equal(one, other)
    return len(one) == len(other) and all(map(is_, one, other))


Step: TypeAlias = "str | tuple[Any]"
"""Name of an attribute, or the key of an entry in a tuple."""
Steps: TypeAlias = "tuple[Step, ...]"
"""Way from a dataset to one of its values."""
_Path: TypeAlias = "tuple[_Path | None, Step]"
"""Path of the holder, and a step; formatted only if the value has changed."""


def _path_text(path: _Path) -> str:
    holder, step = path
    before = "" if holder is None else _path_text(holder)
    if isinstance(step, tuple):
        return f"{before}[{_key_text(step[0])}]"
    return f"{before}.{step}" if before else step


def _steps(path: _Path) -> Steps:
    holder, step = path
    return () if holder is None else (*_steps(holder), step)


class AttributeChange(NamedTuple):
    """New value of an attribute of a dataset, or of an object within it."""

    value: Any
    in_place: bool  # the contents of a list, dict or set were changed


class AttributeSnapshot:
    """Values of a dataset and their paths, to compare with a later snapshot one by one.

    Objects that allow it are referenced weakly, so that a snapshot does not keep a dataset's old
    tensors alive. The others are referenced, so that no other object can get their identity. The
    `others`, settings of the loader, are compared by identity. Copies of long lists are shared with
    the snapshot `before`, if they are unchanged: in length, and if `compare_lists` in all entries.
    """

    def __init__(
        self,
        dataset: object,
        *others: object,
        before: AttributeSnapshot | None = None,
        compare_lists: bool = True,
    ) -> None:
        self._values: list[object] = []
        self._paths: list[_Path] = []
        self._entries: dict[int, _Entries] = {}  # by the ids of lists compared at any length
        self._earlier = {} if before is None else before._entries
        self._compare_lists = compare_lists
        self._seen: set[int] = set()
        self._leaves: list[tuple[int, int, _Path]] = []
        """First and end index within `_values` of each attribute without attributes of its own."""
        self._add_attributes(dataset, (None, "dataset"))
        self._num_leaves = len(self._leaves)  # of the dataset
        for other in others:
            self._add(other, (None, "the loader's settings"))
        del self._earlier

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttributeSnapshot) and self.change_from(other) is None

    __hash__ = None  # type: ignore[assignment]

    def change_from(self, before: AttributeSnapshot) -> str | None:
        """Path of the first difference from an earlier snapshot; None if they are equal."""
        for path, one, other in zip(self._paths, self._values, before._values, strict=False):
            if not _same(one, other):
                return _path_text(path)
        shorter, longer = sorted((self._paths, before._paths), key=len)
        return _path_text(longer[len(shorter)]) if len(longer) > len(shorter) else None

    def sendable_changes(
        self, before: AttributeSnapshot, dataset: object
    ) -> dict[Steps, AttributeChange] | None:
        """Changed attributes of the dataset, if workers can set them; None if they cannot.

        Each must be a number, text, None or a container of them, held by its object (not by its
        class) and by no other attribute. Of a container that was changed in place, the entries must
        be immutable: a worker changes its own in place, too.
        """
        own, others = self._parts_by_attribute()
        own_before, others_before = before._parts_by_attribute()
        if not (_all_same(others, others_before) and own.keys() >= own_before.keys()):
            return None
        changes: dict[Steps, AttributeChange] = {}
        holders = Counter(id(value) for value in map(_referent, self._values))
        for steps, values in own.items():
            values_before = own_before.get(steps, [])
            if _all_same(values, values_before):
                continue
            *holder_steps, name = steps
            holder = _follow(dataset, holder_steps)
            if not (isinstance(name, str) and _holds(holder, name)):
                return None
            value = _follow(holder, (name,))
            is_mutable = type(value) in _MUTABLE
            in_place = is_mutable and bool(values_before) and _same(values[1], values_before[1])
            if not _is_sendable(value, {} if in_place else holders, only_immutable=in_place):
                return None
            if not all(isinstance(step, str) or type(step[0]) in _BY_VALUE for step in steps):
                return None
            changes[steps] = AttributeChange(value, in_place)
        return changes

    def _parts_by_attribute(self) -> tuple[dict[Steps, list[object]], list[object]]:
        """Values of each attribute of the dataset without attributes of its own, and the others."""
        own: dict[Steps, list[object]] = {}
        others: list[object] = []
        end = 0
        for first, after, path in self._leaves[: self._num_leaves]:
            others += self._values[end:first]
            own[_steps(path)], end = self._values[first:after], after
        return own, others + self._values[end:]

    def _note(self, value: object, path: _Path) -> None:
        self._values.append(_reference(value))
        self._paths.append(path)

    def _add_attributes(self, thing: object, path: _Path) -> None:
        """Record all attributes of a dataset or a transform."""
        self._seen.add(id(thing))
        long_lists = _long_lists(type(thing))
        for name, value in attributes(thing):
            with self._attribute((path, name)) as attribute_path:
                if name in long_lists and _has_entries(value):
                    self._note(value, attribute_path)
                    self._add_entries(value, attribute_path)
                else:
                    self._add(value, attribute_path)

    @contextmanager
    def _attribute(self, path: _Path) -> Iterator[_Path]:
        """Context in which the values of one attribute are recorded."""
        first, leaves = len(self._values), len(self._leaves)
        self._note(path[1], path)
        yield path
        if len(self._leaves) == leaves:
            self._leaves.append((first, len(self._values), path))

    def _add_entries(self, listed: Any, path: _Path) -> None:
        key = id(listed)
        if key not in self._entries:
            entries = self._earlier.get(key)
            if entries is None or not entries.match(listed, compare_lists=self._compare_lists):
                entries = _Entries(listed)
            self._entries[key] = entries
            self._values.append(entries)
            self._paths.append(path)

    def _add(self, thing: Any, path: _Path, *, deeper: bool = True) -> None:
        """Record a value and its entries; `deeper`: also the attributes of plain objects."""
        self._note(thing, path)
        kind = type(thing)
        if kind in _BY_VALUE or id(thing) in self._seen or len(self._seen) > _MAX_INSPECTED:
            return
        if kind in _CONTAINERS:
            self._note(len(thing), path)
            if deeper and len(thing) <= _MAX_ENTRIES:
                self._seen.add(id(thing))
                for key in thing if kind in (dict, *_SETS) else ():
                    self._note(key, path)
                for key, part in _entries(thing):
                    self._add(part, (path, (key,)))
        elif kind in _TENSORS:
            if (version := _version(thing)) is not None:
                self._note(version, path)
        elif issubclass(kind, Dataset) or kind.__module__.startswith(_TRANSFORMS):
            self._add_attributes(thing, path)
        elif call := _call_of_users_class(thing):  # it may wrap transforms
            self._note(call, path)
            self._add_attributes(thing, path)
        elif deeper and is_plain_object(thing):
            self._seen.add(id(thing))
            for name, value in attributes(thing):
                if not name.startswith("_"):
                    with self._attribute((path, name)) as attribute_path:
                        self._add(value, attribute_path, deeper=False)


def _call_of_users_class(thing: object) -> types.FunctionType | None:
    """`__call__` of an object of a user-defined class; None for any other."""
    bases = _bases(type(thing))
    if any(base.__module__.partition(".")[0] in _LIBRARIES for base in bases):
        return None
    call = next((each["__call__"] for each in map(_members, bases) if "__call__" in each), None)
    return call if type(call) is types.FunctionType else None


def _reference(value: object) -> object:
    if type(value) in _BY_VALUE:
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _referent(reference: object) -> object:
    return reference() if isinstance(reference, weakref.ref) else reference


def _entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of a container's entries; a set has none."""
    if type(container) in _SETS:
        return ()
    return container.items() if type(container) is dict else enumerate(container)


def _is_sendable(
    value: Any, holders: Mapping[int, int], *, only_immutable: bool, depth: int = 0
) -> bool:
    """Return True for a number, text, None or a container of them, with no second holder.

    `only_immutable`: the entries of the outermost container must be immutable.
    """
    kind = type(value)
    if kind in _BY_VALUE or (issubclass(kind, np.number | np.bool_) and kind.__module__ == "numpy"):
        return True
    if kind not in _CONTAINERS or len(value) > _MAX_ENTRIES or depth > _MAX_DEPTH:
        return False
    if kind in _MUTABLE and (holders.get(id(value), 0) > 1 or (only_immutable and depth)):
        return False
    parts = chain(value, value.values()) if kind is dict else value
    return all(
        _is_sendable(part, holders, only_immutable=only_immutable, depth=depth + 1)
        for part in parts
    )


def _holds(thing: object, name: str) -> bool:
    """Return True if an object itself, not its class, has an attribute."""
    return name in _own_values(thing) or _slot(thing, name) is not None


def _own_values(thing: object) -> dict[str, Any]:
    """The `__dict__` of an object; an empty one if it has none, or a property defined by the user.

    No user code runs.
    """
    members = map(_members, _bases(type(thing)))
    own: Any = next((of["__dict__"] for of in members if "__dict__" in of), None)
    return own.__get__(thing) if type(own) is types.GetSetDescriptorType else {}


def _slot(thing: object, name: str) -> Any:
    """Descriptor of a slot; None for any other attribute."""
    member = next((of[name] for of in map(_members, _bases(type(thing))) if name in of), None)
    return member if type(member) is types.MemberDescriptorType else None


def _follow(thing: Any, steps: Iterable[Step]) -> Any:
    """Value at the end of the steps; raises KeyError or IndexError if there is none."""
    for step in steps:
        thing = dict(attributes(thing))[step] if isinstance(step, str) else thing[step[0]]
    return thing


def merge_changes(
    earlier: Mapping[Steps, AttributeChange], later: Mapping[Steps, AttributeChange]
) -> dict[Steps, AttributeChange]:
    """Merge changes for workers that have all, some or none of the earlier ones."""
    merged = dict(earlier)
    for steps, (value, in_place) in later.items():
        is_new_container = steps in earlier and not earlier[steps].in_place
        merged[steps] = AttributeChange(value, in_place and not is_new_container)
    return merged


class InitialAttributes:
    """Attributes of a dataset and of the objects within it, in a worker before its first sample."""

    def __init__(self, dataset: object) -> None:
        parts = (part for _, part in walk(("dataset", dataset)) if is_plain_object(part))
        self._values = {id(part): (part, dict(_own_values(part))) for part in parts}

    def restore(self, thing: object) -> None:
        """Undo what the worker itself has set or deleted since. Contents of containers stay."""
        if id(thing) in self._values:
            own, (_, values) = _own_values(thing), self._values[id(thing)]
            own.clear()
            own.update(values)


def apply_changes(
    dataset: object, changes: Mapping[Steps, AttributeChange], initial: InitialAttributes
) -> None:
    """Set changed attributes in a worker's copy of the dataset. No user code runs.

    Other attributes of the same objects get their initial values again: what the worker has derived
    from the old values, e.g. a `cached_property`, or a table that is made when it is None.

    Raises:
        LookupError: the copy has no such object.
    """
    for *holder_steps, _ in changes:
        initial.restore(_follow(dataset, holder_steps))
    for (*holder_steps, name), (value, in_place) in changes.items():
        holder = _follow(dataset, holder_steps)
        assert isinstance(name, str), "the last step is an attribute"
        if in_place:
            container = _follow(holder, (name,))
            container.clear()
            container.extend(value) if type(container) is list else container.update(value)
        elif (slot := _slot(holder, name)) is not None:
            slot.__set__(holder, value)
        else:
            _own_values(holder)[name] = value


def _all_same(values: Sequence[object], others: Sequence[object]) -> bool:
    return len(values) == len(others) and all(map(_same, values, others))


def _same(one: object, other: object) -> bool:
    if isinstance(one, weakref.ref) and isinstance(other, weakref.ref):
        return one() is not None and one() is other()
    if one is other:
        return True
    if isinstance(one, _Entries) and isinstance(other, _Entries):
        return one.same(other)
    return type(one) is type(other) and type(one) in _BY_VALUE and one == other


def _has_entries(value: object) -> bool:
    if type(value) is np.ndarray:
        return value.ndim > 0 and value.dtype.kind in "biu"
    return type(value) in (list, tuple)


def _long_lists(kind: type) -> tuple[str, ...]:
    """Names of a dataset's lists that are compared entry by entry at any length."""
    if Subset in kind.__mro__:
        return ("indices",)
    module: Any = sys.modules.get("torchvision.datasets.folder")
    return _OF_FOLDERS if module is not None and module.DatasetFolder in kind.__mro__ else ()


def _version(tensor: torch.Tensor) -> int | None:
    """Counter of a tensor's in-place changes; None without one, or if workers share the memory."""
    try:
        return None if tensor.is_shared() else tensor._version
    except RuntimeError:  # made in inference mode, or of no storage
        return None


_CDATA: type = ctypes.c_int.__mro__[-2]  # the base of all values and arrays of ctypes
_SHARED = (SynchronizedBase, BaseProxy, SharedMemory, Event, _CDATA)


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
    while (upcoming or later) and len(seen) < _MAX_INSPECTED:
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
        if kind.__len__(thing) <= _MAX_ENTRIES:
            yield from ((f"[{k}]", part) for k, part in enumerate(kind.__iter__(thing)))
    elif is_instance_of_any(thing, (dict,)):
        if dict.__len__(thing) <= _MAX_ENTRIES:
            yield from ((f"[{_key_text(key)}]", part) for key, part in list(dict.items(thing)))
    elif type(thing) is types.FunctionType:
        yield from _bound_values(thing)
        return
    elif type(thing) is types.BuiltinFunctionType:  # a method of an object that is written in C
        yield ".__self__", thing.__self__
        return
    if type(thing) not in (list, tuple, dict):
        yield from ((f".{name}", part) for name, part in attributes(thing))


def _key_text(key: object) -> str:
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
    return top in _LIBRARIES or top in _NO_GENERATORS or top in sys.stdlib_module_names


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """Attributes of an object, by name: its own, its slots, and those of user-defined classes."""
    values = _own_values(thing)
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
