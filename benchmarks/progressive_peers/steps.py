"""Simulated training steps: consume the batches of a run and record the times.

An accelerator runs asynchronously: while it computes one batch, the program fetches the next. So
the next batch is requested when a step begins, and its wait only counts if it outlasts that step.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

__all__ = ["PacedSteps", "Step", "Steps"]


class Step(NamedTuple):
    """Times of one step, in seconds on one clock."""

    size: int
    rows: int
    begin_s: float
    end_s: float


class Steps(Protocol):
    """Consumes batches: images of shape (N, 3, size, size) and labels."""

    def alone_s(self, size: int, rows: int) -> float:
        """Seconds of a step that does not wait for a batch."""
        ...

    def take(self, images: Any, labels: Any) -> None:
        """Begin a step. Returns when the next batch may be requested."""
        ...

    def step_times(self) -> list[Step]:
        """All steps, after the last one has ended."""
        ...


class PacedSteps:
    """Steps with the duration of an accelerator of a given speed that use no CPU.

    Args:
        rates: images per second, by size.
    """

    def __init__(self, rates: dict[int, float]) -> None:
        self._rates = rates
        self._steps: list[Step] = []
        self._computed: Any = None

    def alone_s(self, size: int, rows: int) -> float:
        return rows / self._rates[size]

    def take(self, images: Any, labels: Any) -> None:
        begin_s = time.perf_counter()
        if self._steps:
            free_s = self._steps[-1].end_s
            time.sleep(max(0.0, free_s - begin_s))
            # The planned end, not that of the sleep: an accelerator does not oversleep.
            begin_s = max(begin_s, free_s)
        self._computed = images, labels  # releases the previous batch
        size, rows = images.shape[-1], len(images)
        self._steps.append(Step(size, rows, begin_s, begin_s + self.alone_s(size, rows)))

    def step_times(self) -> list[Step]:
        return self._steps
