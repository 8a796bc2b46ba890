"""What was seen of a loader for a while: the steps, and what its workers did beside them.

Guarantees: pure; no figure is negative, and what cannot be told is None.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from feedline.trace.stage_page import Spent

__all__ = ["Window"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Some steps, one after another, with the same crew.

    Args:
        phase: what their batches have in common: image size and rows. Others take other times.
        steps: how many, at least 1.
        seconds: from the first one's batch to the last one's end.
        wait_s: of these, waiting for batches.
        tasks_s: what all workers together spent on tasks meanwhile.
        on_core: share of that on a core, 0 to 1; None where it was not measured.
        queued: share of that in which a worker was ready and no core was free; likewise.
        workers: how many there were.
    """

    phase: Hashable
    steps: int
    seconds: float
    wait_s: float
    tasks_s: float
    on_core: float | None
    queued: float | None
    workers: int

    @classmethod
    def between(
        cls,
        before: Spent,
        after: Spent,
        *,
        phase: Hashable,
        steps: int,
        seconds: float,
        wait_s: float,
        workers: int,
    ) -> Window:
        """A window by what all workers together had spent before and have spent after it."""
        timed_ms = after.timed_ms - before.timed_ms
        on_core = queued = None
        if timed_ms > 0:
            on_core = min(1.0, max(0.0, (after.timed_cpu_ms - before.timed_cpu_ms) / timed_ms))
            if after.timed_queued_ms is not None and before.timed_queued_ms is not None:
                queued = (after.timed_queued_ms - before.timed_queued_ms) / timed_ms
                queued = min(1.0 - on_core, max(0.0, queued))
        return cls(
            phase=phase,
            steps=steps,
            seconds=seconds,
            wait_s=wait_s,
            tasks_s=max(0.0, after.tasks_ms - before.tasks_ms) / 1e3,
            on_core=on_core,
            queued=queued,
            workers=workers,
        )

    @property
    def wait_share(self) -> float:
        """Of the time, what the steps waited."""
        return min(1.0, self.wait_s / self.seconds) if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """A step, its waiting included."""
        return self.seconds / self.steps

    @property
    def own_s(self) -> float:
        """A step without its waiting."""
        return max(0.0, self.seconds - self.wait_s) / self.steps

    @property
    def work_s(self) -> float:
        """What one worker needs for a batch where it has a core."""
        return self.tasks_s * (1.0 - (self.queued or 0.0)) / self.steps

    @property
    def blocked_share(self) -> float:
        """Of that work, what is spent waiting for something else than a core."""
        if self.on_core is None:
            return 0.0
        own = 1.0 - (self.queued or 0.0)
        return min(1.0, max(0.0, 1.0 - self.on_core / own)) if own > 0 else 0.0

    @property
    def busy(self) -> float:
        """Of the workers' time, what they were at tasks."""
        held = self.seconds * self.workers
        return min(1.0, self.tasks_s / held) if held > 0 else 0.0
