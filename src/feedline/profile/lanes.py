"""Time of the workers: on a core, waiting for a core, or blocked; by stage.

Guarantees: pure; shares are from 0 to 1, and those of a lane add up to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.timing.run import Loader, Process, Run, StageTime

__all__ = ["CoreUse", "Tail", "WorkerLanes", "WorkerStage", "summarise_cores", "summarise_lanes"]


_SLOW_OCTAVES = 3  # a slow sample takes at least 8 times the median
_NO_WORK_MS = 1e-6  # below the resolution of a clock
_SLOW_SHARE = 0.1  # limit of the share of slow samples
_EVEN = 0.65  # minimum share of busy workers if work is spread evenly
_MIN_RATE_S = 1.0  # of watching a worker, to know its rate


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerStage:
    """One stage of a batch.

    Args:
        name: as recorded.
        cpu_ms: on a core, per batch, in one worker.
        blocked_ms: waiting for a disk, a network, a lock, a clock.
    """

    name: str
    cpu_ms: float
    blocked_ms: float

    @property
    def ms(self) -> float:
        """Time per batch if a core is free."""
        return self.cpu_ms + self.blocked_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Samples that take far longer than the others.

    Args:
        share: share of all samples, 0 to 1.
        usual_ms: time of the median sample.
        slow_ms: mean time of the slow samples.
        excess_ms: additional time of a batch because of them.
    """

    share: float
    usual_ms: float
    slow_ms: float
    excess_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLanes:
    """Means per batch, in ms, over all workers together.

    Args:
        workers: number of workers; 1 without workers or if the number is unknown.
        work_ms: time to make one batch.
        cpu_ms: part of `work_ms` on a core.
        queued_ms: part ready without a free core.
        blocked_ms: part waiting for anything else.
        crowding: factor by which the work takes longer because other programs use the cores; the
            run's own processes do not count.
        all_cpu_ms: CPU time per batch of all threads, including work outside tasks; None if not
            measured.
        makers: effective number of workers that share the work: with t the workers' CPU times,
            sum(t)**2 / sum(t**2); None if not measured for long enough.
        busy: share of the time that workers work on a task, without pauses of the step.
        stages: most expensive first; empty if no task was timed.
        tail: samples that take far longer than others; None without any.
        timed: number of timed tasks that the shares follow from.
    """

    workers: int
    work_ms: float
    cpu_ms: float
    queued_ms: float
    blocked_ms: float
    crowding: float
    all_cpu_ms: float | None
    makers: float | None
    busy: float
    stages: tuple[WorkerStage, ...]
    tail: Tail | None
    timed: int

    @property
    def uneven(self) -> bool:
        """True if some workers are nearly idle while others work."""
        return self.makers is not None and self.makers < _EVEN * self.workers

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


def summarise_lanes(
    run: Run, loader: Loader, step_ms: float, steady_ms: float, cores: CoreUse
) -> WorkerLanes | None:
    """Summarise the workers of a run; None if their time was not measured.

    Args:
        run: the run with its workers.
        loader: the workers' loader.
        step_ms: mean step.
        steady_ms: mean step without pauses.
        cores: use of the cores.
    """
    batches = sum(each.batches for each in run.passes)
    if not run.tasks or run.tasks_ms <= 0 or not batches or step_ms <= 0:
        return None
    one = run.tasks if all(each.kind == "torch" for each in run.loaders) else batches
    work_ms = run.tasks_ms / one
    workers = [each for each in run.use.processes if each.role == "worker"]
    cpu_s = sum(each.cpu_s for each in workers)
    seconds = sum(each.seconds for each in workers)
    ratio = cores.workers_queued if loader.workers else cores.trainer_queued
    if run.timed and run.timed_ms > 0:
        on_core = min(1.0, run.timed_cpu_ms / run.timed_ms)
    elif seconds > 0:
        on_core = min(1.0, cpu_s / seconds)
    else:
        on_core = 1.0
    off_core = 1.0 - on_core
    waiting = min(off_core, on_core * ratio)
    if run.timed and run.timed_queued_ms is not None and run.timed_ms > 0:
        waiting = min(off_core, run.timed_queued_ms / run.timed_ms)
        ratio = waiting / on_core if on_core > 0 else 0.0
    if work_ms * (1.0 - waiting) < _NO_WORK_MS:
        return None
    lanes = max(1, loader.workers or 1)
    scale = work_ms / run.timed_ms if run.timed and run.timed_ms > 0 else 0.0
    # A stage's time off the cores is blocked to the same share as all such time.
    blocked = (off_core - waiting) / off_core if off_core > 0 else 0.0
    stages = [_stage(each, scale, blocked) for each in run.stages] if scale else []
    return WorkerLanes(
        workers=lanes,
        work_ms=work_ms,
        cpu_ms=work_ms * on_core,
        queued_ms=work_ms * waiting,
        blocked_ms=work_ms * max(0.0, off_core - waiting),
        crowding=cores.slowdown_by_others(ratio),
        all_cpu_ms=cpu_s / seconds * lanes * step_ms if seconds >= 0.5 else None,
        makers=_makers(run, workers, lanes),
        busy=min(1.0, work_ms / lanes / steady_ms) if steady_ms > 0 else 1.0,
        stages=tuple(sorted(stages, key=lambda stage: -stage.ms)),
        tail=_tail(run, work_ms),
        timed=run.timed,
    )


def _makers(run: Run, workers: list[Process], lanes: int) -> float | None:
    known = [each.cpu_s / each.seconds for each in workers if each.seconds >= _MIN_RATE_S]
    squares = sum(each * each for each in known)
    # The workers of a second loader, for validation, may have less to do.
    if len(known) < lanes or squares <= 0 or len({each.loader for each in run.passes}) > 1:
        return None
    return lanes * sum(known) ** 2 / squares / len(known)


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
    slow = {k: own for k, own in sizes.items() if k >= middle + _SLOW_OCTAVES}
    few = {k: own for k, own in sizes.items() if k not in slow}
    usual_count, usual_ms = (sum(own[i] for own in few.values()) for i in (0, 1))
    slow_count, slow_ms = (sum(own[i] for own in slow.values()) for i in (0, 1))
    if slow_count > _SLOW_SHARE * total or usual_count <= 0:
        return None
    usual = usual_ms / usual_count
    timed_ms = (run.timed_ms - max(0.0, slow_ms - slow_count * usual)) / run.timed
    if slow_count:
        return Tail(
            share=slow_count / total,
            usual_ms=usual,
            slow_ms=slow_ms / slow_count,
            excess_ms=min(work_ms, max(0.0, work_ms - timed_ms)),
        )
    # Slow samples too rare to be among the timed ones are at least among the slowest.
    named = [each.ms for each in run.slowest if each.ms > 2.0**_SLOW_OCTAVES * usual]
    if not named:
        return None
    excess_ms = sum(named) - len(named) * usual
    return Tail(
        share=min(_SLOW_SHARE, len(named) / (total * max(1.0, run.tasks / run.timed))),
        usual_ms=usual,
        slow_ms=sum(named) / len(named),
        excess_ms=min(work_ms, work_ms * excess_ms / run.tasks_ms),
    )


_MIN_WATCHED_S = 0.5  # of watching a process, to know its rate


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreUse:
    """Cores used by the trainer and the workers.

    Args:
        used: cores in use by both, mean; None if not measured.
        wanted: `used` plus the time ready without a core; None if not measured.
        allowed: cores that may be used.
        trainer_cpu: CPU seconds per second of the trainer, all threads.
        trainer_queued: seconds ready without a core, per second on one, of the trainer.
        workers_cpu, workers_queued: the same of all workers together.
    """

    used: float | None
    wanted: float | None
    allowed: int
    trainer_cpu: float | None
    trainer_queued: float
    workers_cpu: float | None
    workers_queued: float

    def slowdown_by_others(self, queued: float) -> float:
        """Factor by which work takes longer because of other programs.

        `queued` is the time ready without a core, per second on one. Demand of this run beyond the
        cores is its own fault; the rest is due to other programs.
        """
        own = max(1.0, (self.wanted or 0.0) / self.allowed)
        return max(1.0, (1.0 + queued) / own)


def summarise_cores(run: Run, loader: Loader) -> CoreUse:
    """Summarise the kernel's counters of a run's processes."""
    trainer = [each for each in run.use.processes if each.role == "trainer"][:1]
    workers = [each for each in run.use.processes if each.role == "worker"]
    many = min(max(1, loader.workers or 1), len(workers))
    own, own_queued = _rates(trainer)
    made, made_queued = _rates(workers)
    used = wanted = None
    if own is not None:
        lanes = (made or 0.0) * many
        used = own + lanes
        wanted = own * (1 + own_queued) + lanes * (1 + made_queued)
    return CoreUse(
        used=used,
        wanted=wanted,
        allowed=max(1, run.machine.usable_cores),
        trainer_cpu=own,
        trainer_queued=own_queued,
        workers_cpu=None if made is None else made * many,
        workers_queued=made_queued,
    )


def _rates(processes: list[Process]) -> tuple[float | None, float]:
    """Cores in use by one of the processes, and its time without a core per second on one."""
    seconds = sum(each.seconds for each in processes)
    cpu = sum(each.cpu_s for each in processes)
    queued = [each.queued_s for each in processes]
    known = cpu > 0 and None not in queued
    ratio = sum(each or 0.0 for each in queued) / cpu if known else 0.0
    return (cpu / seconds if seconds >= _MIN_WATCHED_S else None), ratio
