"""What a run's batches are given to: something that takes one step after the other, and notes when.

An accelerator runs behind its program: while it computes one batch, the program fetches the next.
So the next batch is asked for when a step begins, and the wait for it is exposed only where it
outlasts that step.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

__all__ = ["PacedSteps", "Step", "Steps"]


class Step(NamedTuple):
    """One step; seconds on one clock."""

    size: int
    rows: int
    begin_s: float
    end_s: float


class Steps(Protocol):
    """Takes batches: images of shape (N, 3, size, size) and labels."""

    def alone_s(self, size: int, rows: int) -> float:
        """Seconds of a step that waits for no batch."""
        ...

    def take(self, images: Any, labels: Any) -> None:
        """Begin a step. Returns when the next batch may be asked for."""
        ...

    def taken(self) -> list[Step]:
        """All steps, once the last one has ended."""
        ...


class PacedSteps:
    """Steps as long as those of an accelerator of given speed, at no cost of CPU.

    Args:
        rates: the speed, in images per second at each size.
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
            # Not when the sleep ended: an accelerator does not oversleep.
            begin_s = max(begin_s, free_s)
        self._computed = images, labels  # and the batch before is let go
        size, rows = images.shape[-1], len(images)
        self._steps.append(Step(size, rows, begin_s, begin_s + self.alone_s(size, rows)))

    def taken(self) -> list[Step]:
        return self._steps
