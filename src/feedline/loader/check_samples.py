"""Checks that a dataset has the methods to request its samples.

Guarantees: a missing method raises a UsageError that names it.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from feedline.errors import UsageError

__all__ = ["check_length", "check_samples"]


def check_samples(dataset: object, *, sampled: bool) -> None:
    """Check that samples can be requested, when an iteration begins.

    Args:
        dataset: map-style dataset; as in torch, a loader may be built with any object.
        sampled: a sampler defines the samples.

    Raises:
        UsageError: a method is missing.
    """
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        endless = hasattr(dataset, "__iter__")
        raise UsageError(
            f"cannot load from a {type(dataset).__name__}: it has no __getitem__; pass "
            + (
                "a list of its values, or a torch IterableDataset with an __iter__ that yields them"
                if endless
                else "a Dataset, a list, or any object with __getitem__ and __len__"
            )
        )
    if not sampled:
        check_length(dataset, needed=False)


def check_length(dataset: Any, *, needed: bool) -> None:
    """Check that a dataset has a length.

    Args:
        dataset: dataset whose samples no sampler defines.
        needed: the length is needed now; otherwise the dataset may still get one.

    Raises:
        UsageError: it has none, or an invalid one.
    """
    name, length_of = type(dataset).__name__, getattr(type(dataset), "__len__", None)
    if length_of is None:
        raise UsageError(
            f"a {name} has no length: add a __len__, give the loader a sampler, or make it a torch "
            "IterableDataset"
        )
    try:
        given = length_of(dataset)
    except Exception:
        return  # where the length is needed, the same error comes
    unknown = given is None or (isinstance(given, Integral) and given < 0)
    if (unknown and needed) or not (unknown or hasattr(given, "__index__")):
        raise UsageError(
            f"len() of a dataset must be a whole number of at least 0, but {name}.__len__ returns "
            f"{given!r}"
        )
