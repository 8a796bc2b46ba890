"""What was set on a dataset: its attributes, and those of the datasets it wraps.

An outline is compared when an iteration begins, and tells workers that live on from epoch to epoch
whether the dataset is still what they began with.

Guarantees: exact, about a millisecond, and no code of the user's runs. Attributes are compared by
identity; numbers and text by value; lists and dicts by identity and length, and part by part if
they are short. Transforms, libraries' and a user's own, are looked into as datasets are. Changes
deeper inside go unseen.
Relies on: `attributes`, which reads them passively.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import Dataset

from feedline.dataset.attributes import attributes
from feedline.recognition.subsets import has_images
from feedline.recognition.wrappers import users_call

__all__ = ["Outline", "outline"]

_MOST_PARTS = 1000  # of a list; a longer one counts by identity and length
_MOST_LOOKED_INTO = 10_000
_TRANSFORMS = ("torchvision.", "timm.", "torch.nn.modules.container")
_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))


class Outline:
    """Values to be compared one by one.

    Args:
        values: the objects. Those that allow it are held weakly: an outline must not keep a
            dataset's old tensors. The others are kept, so that none can take another's identity.
    """

    def __init__(self, values: list[object]) -> None:
        self._values = list(map(_held, values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outline) or len(self._values) != len(other._values):
            return False
        return all(map(_same, self._values, other._values))

    __hash__ = None  # type: ignore[assignment]


def outline(dataset: object, *others: object) -> Outline:
    """The outline of a dataset, and of other objects that count by identity."""
    values: list[object] = []
    seen: set[int] = set()
    _look_into(dataset, values, seen)
    for other in others:
        _add(other, values, seen)
    return Outline(values)


def _held(value: object) -> object:
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _same(one: object, other: object) -> bool:
    if isinstance(one, weakref.ref) and isinstance(other, weakref.ref):
        return one() is not None and one() is other()
    if one is other:
        return True
    return type(one) is type(other) and type(one) in _BY_VALUE and one == other


def _add(thing: Any, values: list[object], seen: set[int]) -> None:
    values.append(thing)
    kind = type(thing)
    if kind in _BY_VALUE or id(thing) in seen or len(seen) > _MOST_LOOKED_INTO:
        return
    if kind in (list, tuple, dict):
        values.append(len(thing))
        if len(thing) <= _MOST_PARTS:
            seen.add(id(thing))
            if kind is dict:
                values.extend(thing)  # the keys
            for part in thing.values() if kind is dict else thing:
                _add(part, values, seen)
    elif issubclass(kind, Dataset) or kind.__module__.startswith(_TRANSFORMS) or has_images(kind):
        _look_into(thing, values, seen)
    elif call := users_call(thing):  # it may stand for the transforms that it has
        values.append(call)
        _look_into(thing, values, seen)


def _look_into(thing: object, values: list[object], seen: set[int]) -> None:
    seen.add(id(thing))
    for name, value in attributes(thing):
        values.append(name)
        _add(value, values, seen)
