"""Measurements of a loader over some steps: the steps, and the work of its workers meanwhile.

Guarantees: pure; no figure is negative; unknown values are None.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from feedline.timing.stage_page import StageTimings

__all__ = ["StepWindow", "workers_for"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWindow:
    """Consecutive steps without a change of settings."""

    phase: Hashable
    steps: int
    seconds: float
    wait_s: float
    tasks_s: float
    on_core: float | None
    queued: float | None
    workers: int
    tasks: int = 0
    prefetch: int = 0
    task_ms: float = 0.0
    error: float = 0.0

    @classmethod
    def between(
        cls,
        before: StageTimings,
        after: StageTimings,
        *,
        phase: Hashable,
        steps: int,
        seconds: float,
        wait_s: float,
        workers: int,
        prefetch: int = 0,
        task_ms: float = 0.0,
        error: float = 0.0,
    ) -> StepWindow:
        """Window from the workers' total times before and after it.

        If no task within it was timed, the tasks before it determine the share on a core.
        """
        timed = before if after.timed > before.timed else StageTimings()
        timed_ms = after.timed_ms - timed.timed_ms
        on_core = queued = None
        if timed_ms > 0:
            on_core = min(1.0, max(0.0, (after.timed_cpu_ms - timed.timed_cpu_ms) / timed_ms))
            if after.timed_queued_ms is not None and timed.timed_queued_ms is not None:
                queued = (after.timed_queued_ms - timed.timed_queued_ms) / timed_ms
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
            tasks=max(0, after.tasks - before.tasks),
            prefetch=prefetch,
            task_ms=task_ms,
            error=error,
        )

    @classmethod
    def joined(cls, windows: Sequence[StepWindow]) -> StepWindow:
        """Join windows of the same phase and settings."""
        seconds = sum(each.seconds for each in windows)
        return replace(
            windows[-1],
            steps=sum(each.steps for each in windows),
            seconds=seconds,
            wait_s=sum(each.wait_s for each in windows),
            tasks_s=sum(each.tasks_s for each in windows),
            on_core=_mean([(each.on_core, each.tasks_s) for each in windows]),
            queued=_mean([(each.queued, each.tasks_s) for each in windows]),
            tasks=sum(each.tasks for each in windows),
            error=math.hypot(*(each.error * each.seconds for each in windows)) / (seconds or 1.0),
        )

    @property
    def settings(self) -> tuple[int, int, float]:
        """Settings of the loader during the window."""
        return self.workers, self.prefetch, self.task_ms

    @property
    def wait_share(self) -> float:
        """Share of the time that steps waited for data."""
        return min(1.0, self.wait_s / self.seconds) if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Step time, including data wait."""
        return self.seconds / self.steps

    @property
    def own_s(self) -> float:
        """Step time without data wait."""
        return max(0.0, self.seconds - self.wait_s) / self.steps

    @property
    def work_s(self) -> float:
        """Work of one batch for one worker with a core, in seconds."""
        return self.tasks_s * (1.0 - (self.queued or 0.0)) / self.steps

    @property
    def need(self) -> float:
        """Number of workers that are busy all the time if steps never wait."""
        return self.work_s / self.own_s if self.own_s > 0 else math.inf

    def wanted(self, spare: float) -> int:
        """Recommended number of workers, for `spare` times the average need."""
        return workers_for(self.work_s, self.own_s, spare)

    @property
    def blocked_share(self) -> float:
        """Share of the work spent waiting for anything but a core."""
        if self.on_core is None:
            return 0.0
        own = 1.0 - (self.queued or 0.0)
        return min(1.0, max(0.0, 1.0 - self.on_core / own)) if own > 0 else 0.0

    @property
    def busy(self) -> float:
        """Share of the workers' time spent on tasks."""
        held = self.seconds * self.workers
        return min(1.0, self.tasks_s / held) if held > 0 else 0.0

    @property
    def task_s(self) -> float:
        """Mean time of a task; 0 if there was none."""
        return self.tasks_s / self.tasks if self.tasks else 0.0


def _mean(weighted: list[tuple[float | None, float]]) -> float | None:
    """Weighted mean of the known shares."""
    whole = sum(weight for share, weight in weighted if share is not None)
    known = sum(share * weight for share, weight in weighted if share is not None)
    return known / whole if whole > 0 else None


def workers_for(work_s: float, own_s: float, spare: float) -> int:
    """Workers needed for a work per batch and a step time, with a factor `spare`."""
    need = spare * work_s / own_s if own_s > 0 else math.inf
    return max(1, math.ceil(need)) if math.isfinite(need) else 1 << 30
