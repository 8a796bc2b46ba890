"""Checks of the settings for batches ahead and task size, which may be set at any time.

Guarantees: an invalid value raises a UsageError with the valid range and the value.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, TypeGuard

from feedline.errors import UsageError
from feedline.order.batch_spec import TASK_NS

__all__ = ["check_no_factor", "check_prefetch", "check_prefetch_factor", "is_whole", "task_ns_of"]

_MAX_PREFETCH_FACTOR = 1024
_MAX_PREFETCH = 64
_MAX_PIECE_MS = 1e9  # twelve days: no batch has as much work


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for a whole number, also of numpy, but not for a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_prefetch_factor(factor: object, *, least: float = 1) -> None:
    """Check `prefetch_factor`.

    Raises:
        UsageError: it is neither None nor a whole number from `least` to 1024.
    """
    whole = is_whole(factor) and least <= factor <= _MAX_PREFETCH_FACTOR
    if not (factor is None or whole):
        raise UsageError(
            f"prefetch_factor must be None or a whole number from 1 to {_MAX_PREFETCH_FACTOR} "
            f"(batches each worker makes ahead), got {factor!r}"
        )


def check_no_factor(factor: object) -> None:
    """Check that `prefetch_factor` is not set for one of feedline's own sources.

    Raises:
        UsageError: it is set.
    """
    # 2 is what torch's own constructor makes of None, and what frameworks hand on.
    if factor not in (None, 2):
        raise UsageError(
            f"prefetch_factor={factor!r} has no effect here because all workers share each batch; "
            "set prefetch= to the number of batches made ahead"
        )


def check_prefetch(prefetch: object) -> None:
    """Check `prefetch`.

    Raises:
        UsageError: it is neither None nor a whole number from 1 to 64.
    """
    if prefetch is not None and not (is_whole(prefetch) and 1 <= prefetch <= _MAX_PREFETCH):
        raise UsageError(
            f"prefetch must be a whole number from 1 to {_MAX_PREFETCH}, got {prefetch!r}"
        )


def task_ns_of(task_ms: object) -> int:
    """Convert `task_ms` to ns.

    Args:
        task_ms: work per task in ms; None for the default.

    Raises:
        UsageError: it is not a number above 0.
    """
    if task_ms is None:
        return TASK_NS
    value: Any = task_ms
    number = isinstance(task_ms, Real) and not isinstance(task_ms, bool)
    if not (number and 0 < value < math.inf):
        raise UsageError(
            "task_ms (work per task) must be a number of milliseconds above 0, or None for "
            f"{TASK_NS / 1e6:g}, got {task_ms!r}"
        )
    return max(1, round(1e6 * float(min(value, _MAX_PIECE_MS))))
