"""Snapshots of a dataset's attributes, to detect its changes.

They are compared when an iteration begins, to tell whether persistent workers, and a compiled
pipeline, still match the dataset. If only small attributes of numbers and text have changed,
`AttributeSnapshot.sendable_changes` returns them.

Guarantees: no user code runs; see `attribute_walk`. A comparison is exact: attributes are compared
by identity, numbers and text by value, tensors also by torch's counter of in-place changes; lists,
dicts, sets and those of `collections` by identity and length, and entry by entry up to 1000
entries. The samples and labels of torchvision folders and the indices of Subsets are compared entry
by entry at any length: some 20 ms for a list of a million. Transforms, from libraries or
user-defined, are inspected like datasets; any other object one level deep, its public attributes
only, because private ones are often caches. Changes at deeper levels, and the contents of arrays,
are not detected.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from feedline.engine.attribute_changes import (
    BY_VALUE,
    CONTAINERS,
    SETS,
    AttributeChange,
    Step,
    Steps,
    find_change,
)
from feedline.engine.attribute_walk import (
    LIBRARIES,
    MAX_ENTRIES,
    MAX_INSPECTED,
    attributes,
    is_plain_object,
    key_text,
    members_of_classes,
)

_TRANSFORMS = ("torchvision.", "timm.", "torch.nn.modules.container")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_DICTS = (dict, OrderedDict, defaultdict, Counter)  # torch 2.2 has modules in an OrderedDict
_CONTAINERS = (*CONTAINERS, *_DICTS, deque)
_KEYED = (*_DICTS, *SETS)
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


_Path: TypeAlias = "tuple[_Path | None, Step]"
"""Path of the holder, and a step; formatted only if the value has changed."""


def _path_text(path: _Path) -> str:
    holder, step = path
    before = "" if holder is None else _path_text(holder)
    if isinstance(step, tuple):
        return f"{before}[{key_text(step[0])}]"
    return f"{before}.{step}" if before else step


def _steps(path: _Path) -> Steps:
    holder, step = path
    return () if holder is None else (*_steps(holder), step)


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
            change = find_change(
                dataset,
                steps,
                holders,
                is_same_object=bool(values_before) and _same(values[1], values_before[1]),
            )
            if change is None:
                return None
            changes[steps] = change
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
        if kind in BY_VALUE or id(thing) in self._seen or len(self._seen) > MAX_INSPECTED:
            return
        if kind in _CONTAINERS:
            self._note(len(thing), path)
            if deeper and len(thing) <= MAX_ENTRIES:
                self._seen.add(id(thing))
                for key in thing if kind in _KEYED else ():
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
    members = list(members_of_classes(type(thing)))
    if any(str(each.get("__module__")).partition(".")[0] in LIBRARIES for each in members):
        return None
    call = next((each["__call__"] for each in members if "__call__" in each), None)
    return call if type(call) is types.FunctionType else None


def _reference(value: object) -> object:
    if type(value) in BY_VALUE:
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _referent(reference: object) -> object:
    return reference() if isinstance(reference, weakref.ref) else reference


def _entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of a container's entries; a set has none."""
    if type(container) in SETS:
        return ()
    return container.items() if type(container) in _DICTS else enumerate(container)


def _all_same(values: Sequence[object], others: Sequence[object]) -> bool:
    return len(values) == len(others) and all(map(_same, values, others))


def _same(one: object, other: object) -> bool:
    if isinstance(one, weakref.ref) and isinstance(other, weakref.ref):
        return one() is not None and one() is other()
    if one is other:
        return True
    if isinstance(one, _Entries) and isinstance(other, _Entries):
        return one.same(other)
    return type(one) is type(other) and type(one) in BY_VALUE and one == other


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
