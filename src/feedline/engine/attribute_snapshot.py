"""Passive inspection of a dataset: attribute snapshots, and memory shared with workers.

Snapshots are compared when an iteration begins, to tell whether persistent workers, and a compiled
pipeline, still match the dataset.

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
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from multiprocessing.managers import BaseProxy
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from multiprocessing.synchronize import Event
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from feedline.recognition.subsets import has_images
from feedline.recognition.wrappers import users_call

__all__ = [
    "AttributeSnapshot",
    "attributes",
    "class_of_any",
    "find_shared_memory",
    "is_plain_object",
    "take_snapshot",
    "walk",
]

_MAX_PARTS = 1000  # of a list; a longer one counts by identity and length
_MAX_INSPECTED = 10_000
_TRANSFORMS = ("torchvision.", "timm.", "torch.nn.modules.container")
_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
_SETS = (set, frozenset)
_CONTAINERS = (list, tuple, dict, *_SETS)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OF_FOLDERS = ("samples", "targets", "imgs")


class _AttributePath(NamedTuple):
    """Path to a value from the dataset; formatted only if the value has changed."""

    holder: _AttributePath | None
    name: str

    def __str__(self) -> str:
        return self.name if self.holder is None else f"{self.holder}{self.name}"


class _ListEntries:
    """All entries of a list, compared by identity; of entries that are lists, their entries too.

    Args:
        listed: a list or tuple, or an array of numbers.
        before: an earlier copy of its entries. It is shared if nothing has changed.
        whole: look at all entries; else at their number only, if there is an earlier copy.
    """

    def __init__(self, listed: Any, before: _ListEntries | None, *, whole: bool) -> None:
        self._length = len(listed)
        self._nested = False
        self._copy: Any
        if before is not None and before._length == self._length:
            self._nested = before._nested
            if not whole or _identical(before._copy, self._read(listed)):
                self._copy = before._copy
                return
        if type(listed) is np.ndarray:
            self._copy = listed.copy()
        else:
            self._nested = list in map(type, listed)
            self._copy = list(self._read(listed))

    def _read(self, listed: Any) -> Any:
        if not self._nested:
            return listed
        parts = ([each, *each] if type(each) is list else [each] for each in listed)
        return list(chain.from_iterable(parts))

    def same(self, other: _ListEntries) -> bool:
        """Return True if both hold the same objects."""
        return self._copy is other._copy or _identical(self._copy, other._copy)


def _identical(one: Any, other: Any) -> bool:
    if type(one) is np.ndarray or type(other) is np.ndarray:
        return type(one) is type(other) and np.array_equal(one, other)
    return len(one) == len(other) and all(map(is_, one, other))


def _has_entries(value: object) -> bool:
    if type(value) is np.ndarray:
        return value.ndim > 0 and value.dtype.kind in "biu"
    return type(value) in (list, tuple)


class AttributeSnapshot:
    """Values to compare one by one.

    Args:
        builder: values and their paths. Objects that allow it are referenced weakly, so
            that a snapshot does not keep a dataset's old tensors alive. The others are referenced,
            so that no other object can get their identity.
    """

    def __init__(self, builder: _SnapshotBuilder) -> None:
        self._values = list(map(_reference, builder.values))
        self._places = builder.places
        self.entries = builder.entries
        """Copies of the lists compared at any length, by the lists' ids."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttributeSnapshot) and self.change_from(other) is None

    __hash__ = None  # type: ignore[assignment]

    def change_from(self, before: AttributeSnapshot) -> str | None:
        """Name of the first difference from an earlier snapshot; None if there is none."""
        mine, theirs = self._values, before._values
        for place, one, other in zip(self._places, mine, theirs, strict=False):
            if not _same(one, other):
                return str(place)
        if len(mine) == len(theirs):
            return None
        longer = self if len(mine) > len(theirs) else before
        return str(longer._places[min(len(mine), len(theirs))])


def take_snapshot(
    dataset: object, *others: object, before: AttributeSnapshot | None = None, whole: bool = True
) -> AttributeSnapshot:
    """Take a snapshot of a dataset, and of other objects that are compared by identity.

    Args:
        dataset: any object.
        others: settings of its loader.
        before: an earlier snapshot, whose copies of unchanged long lists are shared.
        whole: compare all entries of those lists; otherwise only their lengths.
    """
    builder = _SnapshotBuilder({} if before is None else before.entries, whole=whole)
    builder.add_attributes(dataset, _AttributePath(None, "dataset"))
    for other in others:
        builder.add(other, _AttributePath(None, "the loader's settings"))
    return AttributeSnapshot(builder)


def _reference(value: object) -> object:
    if isinstance(value, _ListEntries):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _same(one: object, other: object) -> bool:
    if isinstance(one, weakref.ref) and isinstance(other, weakref.ref):
        return one() is not None and one() is other()
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, _ListEntries) and isinstance(other, _ListEntries):
        return one.same(other)
    return type(one) in _BY_VALUE and one == other


class _SnapshotBuilder:
    """Records the values of a dataset and their paths.

    Args:
        known: copies of long lists from an earlier snapshot.
        whole: see `_ListEntries`.
    """

    def __init__(self, known: dict[int, _ListEntries], *, whole: bool) -> None:
        self.values: list[object] = []
        self.places: list[_AttributePath] = []
        self.entries: dict[int, _ListEntries] = {}
        self._known, self._whole = known, whole
        self._seen: set[int] = set()

    def _note(self, value: object, place: _AttributePath) -> None:
        self.values.append(value)
        self.places.append(place)

    def add_attributes(self, thing: object, place: _AttributePath) -> None:
        """Record all attributes of a dataset or a transform."""
        self._seen.add(id(thing))
        whole = _lists_of(type(thing))
        for name, value in attributes(thing):
            there = _AttributePath(place, f".{name}")
            self._note(name, there)
            if name in whole and _has_entries(value):
                self._note(value, there)
                self._note_entries(value, there)
            else:
                self.add(value, there)

    def _note_entries(self, listed: Any, place: _AttributePath) -> None:
        key = id(listed)
        if key not in self.entries:
            self.entries[key] = _ListEntries(listed, self._known.get(key), whole=self._whole)
            self._note(self.entries[key], place)

    def add(self, thing: Any, place: _AttributePath, *, deeper: bool = True) -> None:
        """Record a value and its entries; `deeper`: also the attributes of plain objects."""
        self._note(thing, place)
        kind = type(thing)
        if kind in _BY_VALUE or id(thing) in self._seen or len(self._seen) > _MAX_INSPECTED:
            return
        if kind in _CONTAINERS:
            self._note(len(thing), place)
            if deeper and len(thing) <= _MAX_PARTS:
                self._seen.add(id(thing))
                self._add_parts(thing, place)
        elif kind in _TENSORS:
            if (version := _version(thing)) is not None:
                self._note(version, place)
        elif (
            issubclass(kind, Dataset) or kind.__module__.startswith(_TRANSFORMS) or has_images(kind)
        ):
            self.add_attributes(thing, place)
        elif call := users_call(thing):  # it may wrap transforms
            self._note(call, place)
            self.add_attributes(thing, place)
        elif deeper and is_plain_object(thing):
            self._seen.add(id(thing))
            for name, value in attributes(thing):
                if not name.startswith("_"):
                    self.add(value, _AttributePath(place, f".{name}"), deeper=False)

    def _add_parts(self, thing: Any, place: _AttributePath) -> None:
        if type(thing) is dict:
            for key in thing:
                self._note(key, place)
            parts = thing.values()
        elif type(thing) in _SETS:
            for part in thing:
                self._note(part, place)
            return
        else:
            parts = thing
        for part in parts:
            self.add(part, place)


def _lists_of(kind: type) -> tuple[str, ...]:
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

    Args:
        dataset: any object. It is searched like for generators, up to 10,000 objects.
        forked: workers start by fork. With other methods all CPU tensors become shared.
    """
    shared = (path for path, part in walk(("dataset", dataset)) if _is_shared(part, forked=forked))
    return next(shared, None)


def _is_shared(thing: Any, *, forked: bool) -> bool:
    if type(thing) is torch.Tensor:
        return thing.device.type == "cpu" and (not forked or thing.is_shared())
    if type(thing) is np.ndarray:
        return thing.flags.writeable and _is_mapped(thing)
    return class_of_any(thing, _SHARED)


def _is_mapped(array: Any) -> bool:
    """Return True for an array over multiprocessing's shared memory, or over a file."""
    while type(array) is np.ndarray:
        array = array.base
    if type(array) is memoryview:
        array = array.obj
    return class_of_any(array, (mmap.mmap, _CDATA))


_MAX_OBJECTS = 10_000
_MAX_ENTRIES = 1000
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


def walk(
    *roots: tuple[str, Any],
    is_leaf: Callable[[Any], object] = lambda thing: False,
    max_depth: int = sys.maxsize,
) -> Iterator[tuple[str, Any]]:
    """Yield each object that can be reached once, with its path: at most 10,000, the nearest first.

    Args:
        roots: objects to start from, with their paths.
        is_leaf: parts of an object are not visited if this returns something true.
        max_depth: largest distance from a root, in steps.
    """
    known: set[int] = set()
    upcoming = deque((0, path, thing) for path, thing in roots)
    while upcoming and len(known) < _MAX_OBJECTS:
        depth, path, thing = upcoming.popleft()
        if id(thing) in known:
            continue
        known.add(id(thing))
        yield path, thing
        if depth < max_depth and not is_leaf(thing):
            upcoming.extend((depth + 1, path + name, part) for name, part in parts(thing))


def parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Parts of an object, each with its suffix (e.g. ".name" or "[0]")."""
    if class_of_any(thing, _OPAQUE):
        return
    if class_of_any(thing, (list, tuple)):
        kind: Any = list if class_of_any(thing, (list,)) else tuple
        if kind.__len__(thing) <= _MAX_ENTRIES:
            yield from ((f"[{k}]", part) for k, part in enumerate(kind.__iter__(thing)))
    elif class_of_any(thing, (dict,)):
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
    if type(own) is types.GetSetDescriptorType:  # otherwise a property of the user's class
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
