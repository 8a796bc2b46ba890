"""Checks of tuning arguments before torch is imported."""

from __future__ import annotations

from numbers import Real

from feedline.errors import UsageError

__all__ = ["check_budget", "check_step_ms"]

_MIN_BUDGET_S = 2.0  # two of the shortest trials


def check_step_ms(step_ms: float | None) -> None:
    """Check the duration of a step. None passes.

    Raises:
        UsageError: it is negative or not a finite number.
    """
    if step_ms is not None and not (isinstance(step_ms, Real) and 0 <= step_ms < float("inf")):
        raise UsageError(
            f"must be a number of milliseconds, 0 or above, got {step_ms!r}", argument="step_ms"
        )


def check_budget(budget_s: float) -> None:
    """Check the time limit of a search.

    Raises:
        UsageError: it is too short or not a finite number.
    """
    if not (isinstance(budget_s, Real) and _MIN_BUDGET_S <= budget_s < float("inf")):
        raise UsageError(
            f"must be at least {_MIN_BUDGET_S:g} seconds, got {budget_s!r}",
            argument="budget_s",
            hint="a search usually takes 20 seconds for each image size",
        )
