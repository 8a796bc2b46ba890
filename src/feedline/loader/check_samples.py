"""A dataset, checked for what samples are asked for by.

Guarantees: what cannot be used is a UsageError that says what is missing.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from feedline.errors import UsageError

__all__ = ["check_length", "check_samples"]


def check_samples(dataset: object, *, sampled: bool) -> None:
    """Check that samples can be asked for, as must be when an iteration begins.

    Args:
        dataset: a map-style one; a loader may be built of anything, as torch's may.
        sampled: a sampler says which samples there are.

    Raises:
        UsageError: it lacks a method.
    """
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        endless = hasattr(dataset, "__iter__")
        raise UsageError(
            f"cannot load from a {type(dataset).__name__}: it has no __getitem__; pass "
            + (
                "a list of what it gives, or a torch IterableDataset whose __iter__ makes it"
                if endless
                else "a Dataset, a list, or anything else with __getitem__ and __len__"
            )
        )
    if not sampled:
        check_length(dataset, needed=False)


def check_length(dataset: Any, *, needed: bool) -> None:
    """Check that there is a number of samples.

    Args:
        dataset: of which no sampler says how many samples there are.
        needed: the number is needed at once; else a dataset may still be about to learn it.

    Raises:
        UsageError: it has none, or says something else.
    """
    name, length_of = type(dataset).__name__, getattr(type(dataset), "__len__", None)
    if length_of is None:
        raise UsageError(
            f"a {name} does not say how many samples it has: give it a __len__, give the loader a "
            "sampler, or make it a torch IterableDataset"
        )
    try:
        given = length_of(dataset)
    except Exception:
        return  # where the length is needed, the same error comes
    unknown = given is None or (isinstance(given, Integral) and given < 0)
    if (unknown and needed) or not (unknown or hasattr(given, "__index__")):
        raise UsageError(
            f"len() of a dataset must be a whole number of at least 0, and the __len__ of {name} "
            f"gives {given!r}"
        )
