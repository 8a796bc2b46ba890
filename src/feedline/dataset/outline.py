"""Attribute snapshot of a dataset and of the datasets and transforms it holds.

Snapshots are compared when an iteration begins, to tell whether persistent workers, and a compiled
pipeline, still match the dataset.

Guarantees: exact in what it compares, and no user code runs. Attributes are compared by identity,
numbers and text by value, tensors also by torch's counter of in-place changes; lists, dicts and
sets by identity and length, and entry by entry up to 1000 entries. The samples and labels of
torchvision folders and the indices of Subsets are compared entry by entry at any length: some 20 ms
for a list of a million. Transforms, from libraries or user-defined, are inspected like datasets;
any other object one level deep, its public attributes only, because private ones are often caches.
Changes at deeper levels, and the contents of arrays, are not detected.
Relies on: `attributes` for passive inspection.
"""

from __future__ import annotations

import sys
import weakref
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from feedline.dataset.attributes import attributes, is_plain_object
from feedline.recognition.subsets import has_images
from feedline.recognition.wrappers import users_call

__all__ = ["Outline", "outline"]

_MOST_PARTS = 1000  # of a list; a longer one counts by identity and length
_MOST_LOOKED_INTO = 10_000
_TRANSFORMS = ("torchvision.", "timm.", "torch.nn.modules.container")
_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
_SETS = (set, frozenset)
_CONTAINERS = (list, tuple, dict, *_SETS)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OF_FOLDERS = ("samples", "targets", "imgs")


class _Place(NamedTuple):
    """Path to a value from the dataset; formatted only if the value has changed."""

    holder: _Place | None
    name: str

    def __str__(self) -> str:
        return self.name if self.holder is None else f"{self.holder}{self.name}"


class _Entries:
    """All entries of a list, compared by identity; of entries that are lists, their entries too.

    Args:
        listed: a list or tuple, or an array of numbers.
        before: an earlier copy of its entries. It is shared if nothing has changed.
        whole: look at all entries; else at their number only, if there is an earlier copy.
    """

    def __init__(self, listed: Any, before: _Entries | None, *, whole: bool) -> None:
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

    def same(self, other: _Entries) -> bool:
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


class Outline:
    """Values to compare one by one.

    Args:
        walk: finished walk through the objects. Objects that allow it are referenced weakly, so
            that a snapshot does not keep a dataset's old tensors alive. The others are referenced,
            so that no other object can get their identity.
    """

    def __init__(self, walk: _Walk) -> None:
        self._values = list(map(_held, walk.values))
        self._places = walk.places
        self.entries = walk.entries
        """Copies of the lists compared at any length, by the lists' ids."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outline) and self.change_from(other) is None

    __hash__ = None  # type: ignore[assignment]

    def change_from(self, before: Outline) -> str | None:
        """Name of the first difference from an earlier snapshot; None if there is none."""
        mine, theirs = self._values, before._values
        for place, one, other in zip(self._places, mine, theirs, strict=False):
            if not _same(one, other):
                return str(place)
        if len(mine) == len(theirs):
            return None
        longer = self if len(mine) > len(theirs) else before
        return str(longer._places[min(len(mine), len(theirs))])


def outline(
    dataset: object, *others: object, before: Outline | None = None, whole: bool = True
) -> Outline:
    """Take a snapshot of a dataset, and of other objects that are compared by identity.

    Args:
        dataset: any object.
        others: settings of its loader.
        before: an earlier snapshot, whose copies of unchanged long lists are shared.
        whole: compare all entries of those lists; otherwise only their lengths.
    """
    walk = _Walk({} if before is None else before.entries, whole=whole)
    walk.look_into(dataset, _Place(None, "dataset"))
    for other in others:
        walk.add(other, _Place(None, "the loader's settings"))
    return Outline(walk)


def _held(value: object) -> object:
    if isinstance(value, _Entries):
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
    if isinstance(one, _Entries) and isinstance(other, _Entries):
        return one.same(other)
    return type(one) in _BY_VALUE and one == other


class _Walk:
    """Walk through a dataset that records values and their paths.

    Args:
        known: copies of long lists from an earlier walk.
        whole: see `_Entries`.
    """

    def __init__(self, known: dict[int, _Entries], *, whole: bool) -> None:
        self.values: list[object] = []
        self.places: list[_Place] = []
        self.entries: dict[int, _Entries] = {}
        self._known, self._whole = known, whole
        self._seen: set[int] = set()

    def _note(self, value: object, place: _Place) -> None:
        self.values.append(value)
        self.places.append(place)

    def look_into(self, thing: object, place: _Place) -> None:
        """Record all attributes of a dataset or a transform."""
        self._seen.add(id(thing))
        whole = _lists_of(type(thing))
        for name, value in attributes(thing):
            there = _Place(place, f".{name}")
            self._note(name, there)
            if name in whole and _has_entries(value):
                self._note(value, there)
                self._note_entries(value, there)
            else:
                self.add(value, there)

    def _note_entries(self, listed: Any, place: _Place) -> None:
        key = id(listed)
        if key not in self.entries:
            self.entries[key] = _Entries(listed, self._known.get(key), whole=self._whole)
            self._note(self.entries[key], place)

    def add(self, thing: Any, place: _Place, *, deeper: bool = True) -> None:
        """Record a value and its entries; `deeper`: also the attributes of plain objects."""
        self._note(thing, place)
        kind = type(thing)
        if kind in _BY_VALUE or id(thing) in self._seen or len(self._seen) > _MOST_LOOKED_INTO:
            return
        if kind in _CONTAINERS:
            self._note(len(thing), place)
            if deeper and len(thing) <= _MOST_PARTS:
                self._seen.add(id(thing))
                self._add_parts(thing, place)
        elif kind in _TENSORS:
            if (version := _version(thing)) is not None:
                self._note(version, place)
        elif (
            issubclass(kind, Dataset) or kind.__module__.startswith(_TRANSFORMS) or has_images(kind)
        ):
            self.look_into(thing, place)
        elif call := users_call(thing):  # it may wrap transforms
            self._note(call, place)
            self.look_into(thing, place)
        elif deeper and is_plain_object(thing):
            self._seen.add(id(thing))
            for name, value in attributes(thing):
                if not name.startswith("_"):
                    self.add(value, _Place(place, f".{name}"), deeper=False)

    def _add_parts(self, thing: Any, place: _Place) -> None:
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
