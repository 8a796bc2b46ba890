"""Snapshot of a dataset: its attributes, and those of the datasets and transforms it holds.

A snapshot is compared when an iteration begins. It tells whether workers that are kept from epoch
to epoch, and a recognised pipeline, still have the dataset as it is.

Guarantees: exact in what it compares, and no code of the user's runs. Attributes are compared by
identity, numbers and text by value, tensors also by the counter of changes in place that torch
keeps; lists, dicts and sets by identity and length, and entry by entry up to 1000 entries. The
samples and labels of torchvision folders and the indices of Subsets are compared entry by entry at
any length: some 20 ms for a list of a million. Transforms, libraries' and a user's own, are
looked into as datasets are; any other object is looked into one level deep, its public attributes
only, as private ones are often caches. Changes deeper inside, and the contents of arrays, are not
seen.
Relies on: `attributes`, which reads them passively.
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
    """Path to a value from the dataset; joined to a text only if it has changed."""

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
    """Values to be compared one by one.

    Args:
        walk: through the objects. Those that allow it are held weakly: an outline must not keep a
            dataset's old tensors. The others are kept, so that none can take another's identity.
    """

    def __init__(self, walk: _Walk) -> None:
        self._values = list(map(_held, walk.values))
        self._places = walk.places
        self.entries = walk.entries
        """Copies of the lists that are compared at any length, by the lists' ids."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outline) and self.change_from(other) is None

    __hash__ = None  # type: ignore[assignment]

    def change_from(self, before: Outline) -> str | None:
        """Name of the first thing that is another than before; None if nothing is."""
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
    """Take the snapshot of a dataset, and of other objects that count by identity.

    Args:
        dataset: any object.
        others: settings of its loader.
        before: an earlier snapshot, whose copies of long lists are shared if nothing has changed.
        whole: look for changes among all entries of those lists; else only at their lengths.
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
    """A walk through a dataset, which notes values and where they were found.

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
        """Note all attributes of a dataset or a transform."""
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
        """Note a value, and what it holds; `deeper`: also the attributes of plain objects."""
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
        elif call := users_call(thing):  # it may stand for the transforms that it has
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
    """Names of a dataset's lists that are compared entry by entry, however long they are."""
    if Subset in kind.__mro__:
        return ("indices",)
    module: Any = sys.modules.get("torchvision.datasets.folder")
    return _OF_FOLDERS if module is not None and module.DatasetFolder in kind.__mro__ else ()


def _version(tensor: torch.Tensor) -> int | None:
    """Counter of a tensor's changes in place; None without one, or if workers share the memory."""
    try:
        return None if tensor.is_shared() else tensor._version
    except RuntimeError:  # made in inference mode, or of no storage
        return None
