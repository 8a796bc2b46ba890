"""Windows of steps: rates, the error of a mean, the work of the workers, and the load of a step.

Guarantees: pure, except for the clock of `RateMeter`; no figure is negative; unknown values are
None; nothing that was not counted has a rate.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from feedline.throughput.step_model import StepLoad
from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.stage_page import StageTimings

_STUDENT_T = 2.365  # for 95%, of `window_steps` blocks


class RateMeter:
    """Counts what steps finish, after a warm-up.

    Args:
        seconds: time to count, at least.
        warmup: steps that are not counted, such as those of batches that were made ahead.
        least: steps to count, at least.
        until: end on the monotonic clock; then the steps counted so far suffice.
    """

    def __init__(
        self, seconds: float, *, warmup: int = 0, least: int = 1, until: float = math.inf
    ) -> None:
        self._least_s, self._least, self._until = seconds, least, until
        self._warmup = warmup
        self.count = self.steps = 0  # counted things, and the steps that finished them
        self._start = self._end = time.perf_counter()

    def add(self, count: int = 1) -> bool:
        """Count a step that has just finished `count` things. Return True if more are needed."""
        self._end = time.perf_counter()
        if self._warmup:
            self._warmup -= 1
            self._start = self._end
            return True
        self.count += count
        self.steps += 1
        enough = self.steps >= self._least and self.seconds >= self._least_s
        return not enough and time.monotonic() < self._until

    @property
    def seconds(self) -> float:
        """Counted time, up to the latest step."""
        return self._end - self._start

    @property
    def per_s(self) -> float:
        """Rate over the counted time."""
        return self.count / max(1e-9, self.seconds)


def error_of(values: Sequence[float], per: Sequence[float] | None = None) -> float:
    """Relative half-width of the 95% confidence interval of a mean, such as that of step times.

    Neighbouring steps are correlated, so the means of long blocks of them count as independent
    ("method of batch means"). `per` are weights, such as seconds for numbers of images. The result
    is 1.0 if there are fewer values than blocks, or their mean is not above 0.
    """
    blocks = THRESHOLDS.window_steps
    # No step is left out: a window often ends with the one that was waited for.
    edges = [len(values) * k // blocks for k in range(blocks + 1)]
    weights = [1.0] * len(values) if per is None else per
    sums = [(sum(values[a:b]), sum(weights[a:b])) for a, b in pairwise(edges)]
    means = [total / weight for total, weight in sums if weight > 0]
    if len(means) < blocks or not (mean := statistics.fmean(means)) > 0:
        return 1.0
    return _STUDENT_T * statistics.stdev(means) / math.sqrt(blocks) / mean


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWindow:
    """Consecutive steps without a change of settings, and the work of the workers meanwhile."""

    phase: Hashable  # key of the phase
    steps: int
    seconds: float  # of all steps
    wait_s: float  # part of it in wait for data
    workers: int
    tasks_s: float = 0.0  # duration of all tasks, over all workers
    on_core: float | None = None  # share of `tasks_s` on a core; None if unknown
    queued: float | None = None  # share of `tasks_s` ready without a free core; None if unknown
    tasks: int = 0
    prefetch: int = 0  # whole batches ahead, of all workers
    task_ms: float = 0.0  # duration of a task of some rows; 0 for whole batches
    error: float = 0.0  # of the mean step, see `error_of`
    usual_wait_s: float | None = None  # median data wait of a step; None if unknown
    wait_cpu_s: float = 0.0  # mean CPU time of the training thread in a data wait

    def with_tasks(self, before: StageTimings, after: StageTimings) -> StepWindow:
        """Add the work of the workers, from their total times before and after the window.

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
        return replace(
            self,
            tasks_s=max(0.0, after.tasks_ms - before.tasks_ms) / 1e3,
            on_core=on_core,
            queued=queued,
            tasks=max(0, after.tasks - before.tasks),
        )

    @classmethod
    def joined(cls, windows: Sequence[StepWindow]) -> StepWindow:
        """Join windows of the same phase and settings."""

        def share(name: str) -> float | None:
            known = [each for each in windows if getattr(each, name) is not None]
            tasks_s = sum(each.tasks_s for each in known)
            whole = sum(getattr(each, name) * each.tasks_s for each in known)
            return whole / tasks_s if tasks_s > 0 else None

        sums: dict[str, Any] = {
            name: sum(getattr(each, name) for each in windows)
            for name in ("steps", "seconds", "wait_s", "tasks_s", "tasks")
        }
        error_s = math.hypot(*(each.error * each.seconds for each in windows))
        return replace(
            windows[-1],
            **sums,
            on_core=share("on_core"),
            queued=share("queued"),
            error=error_s / (sums["seconds"] or 1.0),
        )

    def load(self, cores: float = math.inf) -> StepLoad:
        """Load of a step, whose time without data wait is its own work."""
        work_ms = 1e3 * self.work_s
        return StepLoad(
            workers=self.workers,
            cores=cores,
            compute_ms=1e3 * self.own_s,
            work_cpu_ms=work_ms * (1.0 - self.blocked_share),
            work_blocked_ms=work_ms * self.blocked_share,
        )

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
    def blocked_share(self) -> float:
        """Share of the work spent waiting for anything but a core."""
        own = 1.0 - (self.queued or 0.0)
        if self.on_core is None or own <= 0:
            return 0.0
        return min(1.0, max(0.0, 1.0 - self.on_core / own))

    @property
    def busy(self) -> float:
        """Share of the workers' time spent on tasks."""
        held = self.seconds * self.workers
        return min(1.0, self.tasks_s / held) if held > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRate:
    """Measurement of one worker pool."""

    load: StepLoad
    step_ms: float  # duration of a step, including its data wait
    error: float  # half of the 95% interval of `step_ms`, relative to it; 1 if unknown

    @property
    def busy_workers(self) -> float:
        """Mean number of busy workers."""
        return self.load.work_ms / self.step_ms if self.step_ms > 0 else 0.0


def pool_rate(
    window: StepWindow, *, cores: int, compute_s: float | None = None, step_cpu_s: float = 0.0
) -> PoolRate:
    """Derive the load of a step from the times of a window.

    If the workers are fast enough on average, a wait of every step is the hand-over of a ready
    batch. A wait of some steps only, or a longer one, is for late batches. Without workers nothing
    is handed over, and no batch is late. All processes share `cores`; `compute_s` is the
    compute-bound step time, `step_cpu_s` the CPU time of all threads of the step.
    """
    step_ms, wait_ms = 1e3 * window.step_s, 1e3 * window.wait_s / window.steps
    compute_ms = 1e3 * (window.own_s if compute_s is None else min(window.own_s, compute_s))
    hand_ms = min(1e3 * window.wait_cpu_s, wait_ms) if window.workers else 0.0
    load = replace(
        window.load(float(cores)),
        compute_ms=compute_ms,
        step_cpu_ms=min(1e3 * step_cpu_s, compute_ms * cores),
        hand_ms=hand_ms,
        hand_cpu_ms=hand_ms,
    )
    if window.workers:
        # If other programs use the cores, workers are late with little work.
        busy_ms = 1e3 * window.tasks_s / window.steps / window.workers
        usual_ms = wait_ms if window.usual_wait_s is None else 1e3 * window.usual_wait_s
        limits = THRESHOLDS
        ready_ms = max(limits.hand_over_cpu * hand_ms, min(usual_ms, limits.hand_over * step_ms))
        late_ms = limits.late * step_ms
        are_ready = max(load.produce_ms, busy_ms) <= limits.ready * step_ms
        if are_ready and wait_ms <= ready_ms + late_ms:
            load = replace(load, hand_ms=wait_ms)
        unexplained_ms = min(step_ms - load.even_ms, wait_ms - load.hand_ms)
        enough = load.produce_ms <= limits.ready * step_ms or not load.waits
        if enough and unexplained_ms > late_ms:
            load = replace(load, late_ms=unexplained_ms)
    return PoolRate(load=load, step_ms=step_ms, error=window.error)
