"""Arguments of a tuning that can be checked before anything large is imported."""

from __future__ import annotations

from numbers import Real

from feedline.errors import UsageError

__all__ = ["check_budget", "check_step_ms"]

_LEAST_BUDGET_S = 2.0  # two trials of the shortest


def check_step_ms(step_ms: float | None) -> None:
    """Refuse what is no time of a step; None is none.

    Raises:
        UsageError: so it is.
    """
    if step_ms is not None and not (isinstance(step_ms, Real) and 0 <= step_ms < float("inf")):
        raise UsageError(
            f"must be a number of milliseconds, 0 or above, got {step_ms!r}", argument="step_ms"
        )


def check_budget(budget_s: float) -> None:
    """Refuse what is no time for a search.

    Raises:
        UsageError: so it is.
    """
    if not (isinstance(budget_s, Real) and _LEAST_BUDGET_S <= budget_s < float("inf")):
        raise UsageError(
            f"must be at least {_LEAST_BUDGET_S:g} seconds, got {budget_s!r}",
            argument="budget_s",
            hint="a search usually takes 20 seconds for each image size",
        )
