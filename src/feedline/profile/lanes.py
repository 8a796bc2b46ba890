"""Time of the workers of a run, by stage, and the slow samples among others.

Guarantees: pure; facts only, no judgement; no figure is infinite or NaN, whatever the run contains.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.run import Loader, Process, Run, StageTime

LEAST_MS = 1e-9
"""Resolution of a clock: shorter times were not measured, and nothing is divided by them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerStage:
    """One stage of a batch, in milliseconds per batch, in one worker."""

    name: str
    cpu_ms: float  # on a core
    blocked_ms: float  # waiting for a disk, a network, a lock, a clock

    @property
    def ms(self) -> float:
        """Time per batch if a core is free."""
        return self.cpu_ms + self.blocked_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Samples that take far longer than the others."""

    share: float  # of all samples
    usual_ms: float  # median sample
    slow_ms: float  # mean of the slow samples
    excess_ms: float  # additional time of a batch because of them


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLanes:
    """Means per batch, in ms, over all workers together."""

    workers: int
    """Workers that share the work: fewer than there are if others are nearly idle; 1 without
    workers or if the number is unknown."""
    idle_workers: int  # that make nearly no batches
    work_ms: float  # to make one batch
    cpu_ms: float  # part of it on a core
    queued_ms: float  # part of it ready without a free core
    blocked_ms: float  # part of it waiting for anything else
    crowding: float
    """Factor by which the work takes longer because other programs use the cores; the run's own
    processes do not count."""
    all_cpu_ms: float | None
    """CPU time per batch of all threads, including work outside tasks; None if not measured."""
    busy: float  # share of the time that workers work on a task, without pauses of the step
    stages: tuple[WorkerStage, ...]  # most expensive first; empty if no task was timed
    tail: Tail | None

    @property
    def own_ms(self) -> float:
        """Work of a batch if a core is free: the sum of the stages."""
        return self.cpu_ms + self.blocked_ms

    @property
    def needed_ms(self) -> float:
        """Work of a batch, without what the run's own processes take from each other."""
        return self.cpu_ms * self.crowding + self.blocked_ms

    @property
    def blocked_share(self) -> float:
        """Share of the work that is blocked."""
        return self.blocked_ms / self.own_ms if self.own_ms > 0 else 0.0

    def of(self, *prefixes: str) -> WorkerStage:
        """Sum of all stages whose names start with one of the prefixes."""
        own = [stage for stage in self.stages if stage.name.startswith(prefixes)]
        return WorkerStage(
            name=", ".join(stage.name for stage in own),
            cpu_ms=sum(stage.cpu_ms for stage in own),
            blocked_ms=sum(stage.blocked_ms for stage in own),
        )


def summarise_workers(
    run: Run, loader: Loader, step_ms: float, pause_ms: float, queued: float, own: float
) -> WorkerLanes | None:
    """Summarise the workers of a run; None if their time was not measured.

    Args:
        run: the run with its workers.
        loader: the workers' loader.
        step_ms: mean step.
        pause_ms: part of it that is a pause.
        queued: seconds ready without a core, per second on one.
        own: demand of this run for cores, relative to the cores, at least 1.
    """
    steady_ms, batches = step_ms - pause_ms, sum(each.batches for each in run.passes)
    if not run.tasks or run.tasks_ms <= 0 or not batches or step_ms <= 0:
        return None
    one = run.tasks if all(each.kind == "torch" for each in run.loaders) else batches
    work_ms = run.tasks_ms / one
    workers = [each for each in run.use.processes if each.role == "worker"]
    seconds, cpu_s = sum(p.seconds for p in workers), sum(p.cpu_s for p in workers)
    timed = run.timed > 0 and run.timed_ms > 0
    on_core = run.timed_cpu_ms / run.timed_ms if timed else cpu_s / seconds if seconds else 1.0
    on_core = min(1.0, on_core)
    off_core = 1.0 - on_core
    waiting = min(off_core, on_core * queued)
    if timed and run.timed_queued_ms is not None:
        waiting = min(off_core, run.timed_queued_ms / run.timed_ms)
        queued = waiting / on_core if run.timed_cpu_ms > LEAST_MS else 0.0
    if work_ms * (1.0 - waiting) < 1000 * LEAST_MS:
        return None
    many = max(1, loader.workers or 1)
    makers = _makers(run, loader, workers, many)
    scale = work_ms / run.timed_ms if timed else 0.0
    # A stage's time off the cores is blocked to the same share as all such time.
    blocked = (off_core - waiting) / off_core if off_core > 0 else 0.0
    stages = [_stage(each, scale, blocked) for each in run.stages] if scale else []
    return WorkerLanes(
        workers=makers,
        idle_workers=many - makers,
        work_ms=work_ms,
        cpu_ms=work_ms * on_core,
        queued_ms=work_ms * waiting,
        blocked_ms=work_ms * max(0.0, off_core - waiting),
        crowding=max(1.0, (1.0 + queued) / own),
        all_cpu_ms=cpu_s / seconds * many * step_ms if seconds >= THRESHOLDS.watched_s else None,
        busy=min(1.0, work_ms / makers / steady_ms) if steady_ms > 0 else 1.0,
        stages=tuple(sorted(stages, key=lambda stage: -stage.ms)),
        tail=_tail(run, work_ms),
    )


def _makers(run: Run, loader: Loader, workers: list[Process], many: int) -> int:
    """Effective number of workers: with t their CPU times, sum(t)**2 / sum(t**2).

    feedline's workers accept tasks when they are free. The workers of a second loader, for
    validation, may have less to do. A worker of a stream that has no data ends early.
    """
    if loader.kind != "torch" or len({each.loader for each in run.passes}) > 1:
        return many
    longest_s = max((each.seconds for each in workers), default=0.0)
    stream = loader.samples is None and len(workers) <= many
    known = [
        each.cpu_s / (longest_s if stream else each.seconds)
        for each in workers
        if each.seconds >= 2 * THRESHOLDS.watched_s
        or (stream and longest_s >= 2 * THRESHOLDS.watched_s)
    ]
    known += [0.0] * (many - len(known) if stream and known else 0)
    squares = sum(each * each for each in known)
    if len(known) < many or squares <= 0:
        return many
    makers = many * sum(known) ** 2 / squares / len(known)
    return max(1, round(makers)) if makers < THRESHOLDS.even * many else many


def _stage(each: StageTime, scale: float, blocked: float) -> WorkerStage:
    ms = each.total_ms * scale
    cpu = ms if each.cpu_ms is None else min(ms, each.cpu_ms * scale)
    return WorkerStage(name=each.name, cpu_ms=cpu, blocked_ms=max(0.0, ms - cpu) * blocked)


def _tail(run: Run, work_ms: float) -> Tail | None:
    """Summarise slow samples, if they are few and much slower than the others.

    The time of usual samples is known from the timed tasks. The time that slow samples add follows
    from all tasks, as the timed tasks hold few of them.
    """
    sizes = {k: (count, ms) for k, (count, ms) in run.sample_sizes.items() if count > 0}
    total = sum(count for count, _ in sizes.values())
    if total < 8 or not run.timed or run.timed_ms <= 0:
        return None
    middle, left = min(sizes), total / 2
    for k in sorted(sizes):
        left -= sizes[k][0]
        if left <= 0:
            middle = k
            break
    octaves = THRESHOLDS.slow_sample_octaves
    slow = [own for k, own in sizes.items() if k >= middle + octaves]
    usual_count, usual_ms = (sum(own[i] for own in sizes.values()) for i in (0, 1))
    slow_count, slow_ms = (sum(own[i] for own in slow) for i in (0, 1))
    usual_count, usual_ms = usual_count - slow_count, max(0.0, usual_ms - slow_ms)
    if slow_count > THRESHOLDS.slow_samples * total or usual_count <= 0:
        return None
    usual = usual_ms / usual_count
    if slow_count:
        timed_ms = (run.timed_ms - max(0.0, slow_ms - slow_count * usual)) / run.timed
        share, excess_ms = slow_count / total, work_ms - timed_ms
    else:
        # Slow samples too rare to be among the timed ones are at least among the slowest.
        named = [each.ms for each in run.slowest if each.ms > 2.0**octaves * usual]
        if not named:
            return None
        slow_count, slow_ms = len(named), sum(named)
        share = slow_count / (total * max(1.0, run.tasks / run.timed))
        excess_ms = work_ms * (slow_ms - slow_count * usual) / run.tasks_ms
    return Tail(
        share=min(share, THRESHOLDS.slow_samples),
        usual_ms=usual,
        slow_ms=slow_ms / slow_count,
        excess_ms=min(work_ms, max(0.0, excess_ms)),
    )
