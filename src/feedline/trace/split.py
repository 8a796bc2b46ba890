"""The mean step, split into waiting, copying and computing.

Guarantees: the three parts add up to the time from one batch handed out to the next; only
exposed time counts as wait or copy (work hidden behind the step is not seen here). Sums only grow,
so any number of readers can each take the difference of two readings.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Split", "Timing", "Totals"]

_values = operator.attrgetter("steps", "wait_ms", "copy_ms", "compute_ms")


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Means over some steps, in milliseconds.

    Args:
        steps: how many steps were measured; with 0 the means are 0 and say nothing.
        wait_ms: the step waited for workers to finish its batch.
        copy_ms: the step waited for its finished batch to be copied and normalised.
        compute_ms: all the rest: the user's own work.
    """

    steps: int
    wait_ms: float
    copy_ms: float
    compute_ms: float

    @property
    def step_ms(self) -> float:
        """The whole step."""
        return self.wait_ms + self.copy_ms + self.compute_ms


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over some steps, in milliseconds. The parts are those of `Split`."""

    steps: int = 0
    wait_ms: float = 0.0
    copy_ms: float = 0.0
    compute_ms: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(operator.add, _values(self), _values(other)))

    def __sub__(self, earlier: Totals) -> Totals:
        """The steps since an earlier reading."""
        return Totals(*map(operator.sub, _values(self), _values(earlier)))

    def mean(self) -> Split:
        """The mean step."""
        steps = max(1, self.steps)
        return Split(
            steps=self.steps,
            wait_ms=self.wait_ms / steps,
            copy_ms=self.copy_ms / steps,
            compute_ms=self.compute_ms / steps,
        )


class Timing:
    """Sums up steps."""

    def __init__(self) -> None:
        self._totals = Totals()
        self.listener: Callable[[float, float, float], None] | None = None
        """Is told of each step: wait, copy, compute, in milliseconds."""

    def add(self, *, wait_ms: float, copy_ms: float, compute_ms: float) -> None:
        """Add one step, in milliseconds."""
        self.go_on_from(Totals(steps=1, wait_ms=wait_ms, copy_ms=copy_ms, compute_ms=compute_ms))
        if self.listener is not None:
            self.listener(wait_ms, copy_ms, compute_ms)

    def go_on_from(self, totals: Totals) -> None:
        """Count steps that were summed up elsewhere."""
        self._totals += totals

    def totals(self) -> Totals:
        """All steps so far."""
        return self._totals
