"""What was seen of a loader for a while: the steps, and what its workers did beside them.

Guarantees: pure; no figure is negative, and what cannot be told is None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from feedline.trace.stage_timings import StageTimings

__all__ = ["Window", "error_of", "workers_for"]

_BLOCKS = 8  # of steps, whose means tell the error: neighbouring steps are not independent


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Some steps, one after another, with nothing changed between them.

    Args:
        phase: what their batches have in common: image size and rows. Others take other times.
        steps: how many, at least 1.
        seconds: from the first one's batch to the last one's end.
        wait_s: of these, waiting for batches.
        tasks_s: what all workers together spent on tasks meanwhile.
        on_core: share of that on a core, 0 to 1; None where it was not measured.
        queued: share of that in which a worker was ready and no core was free; likewise.
        workers: how many there were.
        tasks: how many these have made.
        prefetch: whole batches that might be ahead; 0 where batches are made of rows.
        piece_ms: how much work a piece of a batch of rows might hold; 0 for whole batches.
        error: of the mean step, see `error_of`; 0 where it was not measured.
    """

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
    piece_ms: float = 0.0
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
        piece_ms: float = 0.0,
        error: float = 0.0,
    ) -> Window:
        """A window by what all workers together had spent before and have spent after it.

        Where no task in it was timed, those before it tell what tasks take of a core.
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
            piece_ms=piece_ms,
            error=error,
        )

    @classmethod
    def joined(cls, windows: Sequence[Window]) -> Window:
        """Windows of the same phase, with the same settings, as one."""
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
        """What the loader worked with."""
        return self.workers, self.prefetch, self.piece_ms

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
    def need(self) -> float:
        """Workers that are busy all the time where steps never wait."""
        return self.work_s / self.own_s if self.own_s > 0 else math.inf

    def wanted(self, spare: float) -> int:
        """How many workers there should be, with so many times what is needed on average."""
        return workers_for(self.work_s, self.own_s, spare)

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

    @property
    def task_s(self) -> float:
        """A task, on average; 0 where none was made."""
        return self.tasks_s / self.tasks if self.tasks else 0.0


def _mean(weighted: list[tuple[float | None, float]]) -> float | None:
    """Of the shares that are known, by their weights."""
    whole = sum(weight for share, weight in weighted if share is not None)
    known = sum(share * weight for share, weight in weighted if share is not None)
    return known / whole if whole > 0 else None


def workers_for(work_s: float, own_s: float, spare: float) -> int:
    """Workers for batches of so much work and steps of so much time; `spare` times as many."""
    need = spare * work_s / own_s if own_s > 0 else math.inf
    return max(1, math.ceil(need)) if math.isfinite(need) else 1 << 30


def error_of(times: Sequence[float]) -> float:
    """Half of the 95% interval of the mean of steps' times, as a share of it, from block means.

    Student's t of 7 degrees of freedom, 97.5%: 2.365.

    Args:
        times: one after another; 1.0 is the answer to fewer than there are blocks.
    """
    if len(times) < _BLOCKS:
        return 1.0
    # No step is left out: a window often ends with the one that was waited for.
    edges = [len(times) * k // _BLOCKS for k in range(_BLOCKS + 1)]
    means = [statistics.fmean(times[start:stop]) for start, stop in pairwise(edges)]
    mean = statistics.fmean(means)
    return 2.365 * statistics.stdev(means) / math.sqrt(_BLOCKS) / mean if mean > 0 else 1.0
