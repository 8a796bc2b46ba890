"""Mean step, split into waiting, copying and computing.

Guarantees: the three parts add up to the time from one delivered batch to the next; only time that
a step waited counts as wait or copy, not work done meanwhile. Sums only grow, so each reader can
take the difference of two readings.
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
        steps: number of measured steps; if 0, the means are 0 and have no meaning.
        wait_ms: wait for workers to finish the batch.
        copy_ms: wait for the finished batch to be copied and normalised.
        compute_ms: the rest: the training step's own work.
    """

    steps: int
    wait_ms: float
    copy_ms: float
    compute_ms: float

    @property
    def step_ms(self) -> float:
        """Whole step."""
        return self.wait_ms + self.copy_ms + self.compute_ms


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over some steps, in milliseconds. For the parts see `Split`."""

    steps: int = 0
    wait_ms: float = 0.0
    copy_ms: float = 0.0
    compute_ms: float = 0.0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(operator.add, _values(self), _values(other)))

    def __sub__(self, earlier: Totals) -> Totals:
        """Steps since an earlier reading."""
        return Totals(*map(operator.sub, _values(self), _values(earlier)))

    def mean(self) -> Split:
        """Mean step."""
        steps = max(1, self.steps)
        return Split(
            steps=self.steps,
            wait_ms=self.wait_ms / steps,
            copy_ms=self.copy_ms / steps,
            compute_ms=self.compute_ms / steps,
        )


class Timing:
    """Sums of all steps."""

    def __init__(self) -> None:
        self._steps = 0
        self._wait_ms = self._copy_ms = self._compute_ms = 0.0
        self.listener: Callable[[float, float, float], None] | None = None
        """Called with each step: wait, copy, compute, in milliseconds."""

    def add(self, *, wait_ms: float, copy_ms: float, compute_ms: float) -> None:
        """Add one step, in milliseconds."""
        self._steps += 1
        self._wait_ms += wait_ms
        self._copy_ms += copy_ms
        self._compute_ms += compute_ms
        if self.listener is not None:
            self.listener(wait_ms, copy_ms, compute_ms)

    def totals(self) -> Totals:
        """Return the sums of all steps so far."""
        return Totals(self._steps, self._wait_ms, self._copy_ms, self._compute_ms)
