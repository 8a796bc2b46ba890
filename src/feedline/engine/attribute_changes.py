"""Changes of a dataset's attributes that are sent to running workers.

Guarantees: only numbers, text and small containers of them are sent. In a worker, a change also
undoes what the worker itself has set in the same object since its first sample. No user code runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from feedline.engine.attribute_walk import (
    MAX_ENTRIES,
    attributes,
    find_slot,
    is_plain_object,
    own_values,
    walk,
)

BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
"""Types that are compared and sent by value."""
SETS = (set, frozenset)
CONTAINERS = (list, tuple, dict, *SETS)
_MUTABLE = (list, dict, set)
_MAX_DEPTH = 10  # of containers within a value that is sent

Step: TypeAlias = "str | tuple[Any]"
"""Name of an attribute, or the key of an entry in a tuple."""
Steps: TypeAlias = "tuple[Step, ...]"
"""Way from a dataset to one of its values."""


class AttributeChange(NamedTuple):
    """New value of an attribute of a dataset, or of an object within it."""

    value: Any
    in_place: bool  # the contents of a list, dict or set were changed


def find_change(
    dataset: object, steps: Steps, holders: Mapping[int, int], *, is_same_object: bool
) -> AttributeChange | None:
    """Change that sets an attribute of a worker's dataset to its current value; None if it cannot.

    Args:
        dataset: the dataset with the new value.
        steps: way to the attribute.
        holders: number of holders of each object in the dataset, by its id.
        is_same_object: True if the value is the object that it was before.
    """
    *holder_steps, name = steps
    holder = _follow(dataset, holder_steps)
    if not (isinstance(name, str) and _holds(holder, name)):
        return None
    if not all(isinstance(step, str) or type(step[0]) in BY_VALUE for step in steps):
        return None
    value = _follow(holder, (name,))
    in_place = type(value) in _MUTABLE and is_same_object
    if not _is_sendable(value, {} if in_place else holders, only_immutable=in_place):
        return None
    return AttributeChange(value, in_place)


def _is_sendable(
    value: Any, holders: Mapping[int, int], *, only_immutable: bool, depth: int = 0
) -> bool:
    """Return True for a number, text, None or a container of them, with no second holder.

    `only_immutable`: the entries of the outermost container must be immutable.
    """
    kind = type(value)
    if kind in BY_VALUE or (issubclass(kind, np.number | np.bool_) and kind.__module__ == "numpy"):
        return True
    if kind not in CONTAINERS or len(value) > MAX_ENTRIES or depth > _MAX_DEPTH:
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
    return name in own_values(thing) or find_slot(thing, name) is not None


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
    """Attributes of a dataset and of the objects within it, in a worker before its first sample.

    Their values stay in memory, also those that the worker replaces: one may be needed again.
    """

    def __init__(self, dataset: object) -> None:
        parts = (part for _, part in walk(("dataset", dataset)) if is_plain_object(part))
        self._values = {id(part): (part, dict(own_values(part))) for part in parts}

    def restore(self, thing: object) -> None:
        """Undo what the worker itself has set or deleted since. Contents of containers stay."""
        if id(thing) in self._values:
            own, (_, values) = own_values(thing), self._values[id(thing)]
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
        elif (slot := find_slot(holder, name)) is not None:
            slot.__set__(holder, value)
        else:
            own_values(holder)[name] = value
