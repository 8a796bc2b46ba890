"""A training with uneven batches, simulated batch by batch on its own clock.

Workers make whole batches, each as soon as a worker is free and the prefetch limit allows; the
training reads them in order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from feedline.throughput.windows import StepWindow

_STEPS = 2000
_WARM = 200


@dataclass(frozen=True)
class Uneven:
    """A running training.

    Args:
        batch_ms: work of a usual batch.
        every: one in this many batches is slow.
        times: factor of the work of a slow batch.
        own_ms: duration of a step without waiting.
    """

    batch_ms: float
    every: int
    times: float
    own_ms: float

    def step_ms(self, workers: int, factor: int) -> float:
        """A step, its waiting included."""
        return 1e3 * self.window(workers, factor).step_s

    def window(self, workers: int, factor: int) -> StepWindow:
        """Measurements with this many workers and prefetched batches per worker."""
        free = [0.0] * workers
        taken: list[float] = []
        now = waited = tasks = begun = 0.0
        for k in range(_STEPS + _WARM):
            if k == _WARM:
                begun, waited, tasks = now, 0.0, 0.0
            work = self.batch_ms * (self.times if k % self.every == self.every // 2 else 1.0)
            ahead = k - factor * workers
            start = max(heapq.heappop(free), taken[ahead] if ahead >= 0 else 0.0)
            heapq.heappush(free, start + work)
            made = start + work
            waited += max(0.0, made - now)
            now = max(now, made)
            taken.append(now)
            now += self.own_ms
            tasks += work
        return StepWindow(
            phase=None,
            steps=_STEPS,
            seconds=(now - begun) / 1e3,
            wait_s=waited / 1e3,
            tasks_s=tasks / 1e3,
            on_core=1.0,
            queued=0.0,
            workers=workers,
        )
