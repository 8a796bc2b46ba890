"""The mean step, split into waiting, copying and computing.

Guarantees: the three parts add up to the time from one batch handed out to the next; only
exposed time counts as wait or copy (work hidden behind the step is not seen here).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Split", "Timing"]


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


class Timing:
    """Sums up steps until they are read."""

    def __init__(self) -> None:
        self._steps = 0
        self._sums_ms = [0.0, 0.0, 0.0]

    def add(self, *, wait_ms: float, copy_ms: float, compute_ms: float) -> None:
        """Add one step, in milliseconds."""
        self._steps += 1
        for k, part in enumerate((wait_ms, copy_ms, compute_ms)):
            self._sums_ms[k] += part

    def read(self) -> Split:
        """The mean step since the last reading; begins anew."""
        steps = self._steps
        wait, copy, compute = (part / max(1, steps) for part in self._sums_ms)
        self._steps, self._sums_ms = 0, [0.0, 0.0, 0.0]
        return Split(steps=steps, wait_ms=wait, copy_ms=copy, compute_ms=compute)
