"""What workers did with their time: on a core, in wait for one, or for something else; by stage.

Guarantees: pure; shares are from 0 to 1, and those of a lane add up to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.diagnose.cores import Cores
from feedline.trace.run import Loader, Process, Run, StageTime

__all__ = ["Lanes", "Stage", "Tail", "lanes_of"]

_SLOW_OCTAVES = 3  # a sample is slow that takes at least 8 times the median
_NO_WORK_MS = 1e-6  # below what a clock can tell
_SLOW_SHARE = 0.1  # and slow ones are few
_EVEN = 0.65  # of the workers at least are at work where each has its share
_WATCHED_S = 1.0  # a worker, to know how much it does


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of a batch.

    Args:
        name: as recorded.
        cpu_ms: on a core, of a batch, in one worker.
        blocked_ms: waiting for a disk, a network, a lock, a clock.
    """

    name: str
    cpu_ms: float
    blocked_ms: float

    @property
    def ms(self) -> float:
        """What it takes of a batch, where a core is free."""
        return self.cpu_ms + self.blocked_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Samples that take far longer than others.

    Args:
        share: how many of all samples they are, 0 to 1.
        usual_ms: the median sample,
        slow_ms: and these in the mean.
        excess_ms: what they add to a batch, beyond what usual ones take.
    """

    share: float
    usual_ms: float
    slow_ms: float
    excess_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """Means for a batch, in ms, over all workers together.

    Args:
        workers: how many there are; 1 where there are none or the number is unknown.
        work_ms: to make one batch.
        cpu_ms: of that, on a core; likewise
        queued_ms: ready, and no core was free;
        blocked_ms: waiting for something else.
        crowding: how many times as long the work takes on its core because programs of others have
            the cores, 1 for not at all; what the run's own processes take is not in it.
        all_cpu_ms: on a core for one batch, with all that workers do beside their tasks, all
            threads; None where that was not measured.
        makers: workers among which the work is spread, as if each of them did as much: of their
            time on cores, the square of the sum over the sum of the squares; None where that was
            not measured for long enough.
        busy: share of the time that workers are at a task; pauses of the step left out.
        stages: most expensive first; empty where no task was timed.
        tail: samples that take far longer than others; None where there are none.
        timed: tasks that the shares follow from.
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
    stages: tuple[Stage, ...]
    tail: Tail | None
    timed: int

    @property
    def uneven(self) -> bool:
        """Whether some workers have next to nothing to do while others work."""
        return self.makers is not None and self.makers < _EVEN * self.workers

    @property
    def own_ms(self) -> float:
        """A batch's work where a core is free: what stages are parts of."""
        return self.cpu_ms + self.blocked_ms

    @property
    def needed_ms(self) -> float:
        """A batch's work without what the run's own processes take from each other."""
        return self.cpu_ms * self.crowding + self.blocked_ms

    @property
    def blocked_share(self) -> float:
        """Of the work."""
        return self.blocked_ms / self.own_ms if self.own_ms > 0 else 0.0

    def of(self, *prefixes: str) -> Stage:
        """The sum of all stages whose names begin like this."""
        own = [stage for stage in self.stages if stage.name.startswith(prefixes)]
        return Stage(
            name=", ".join(stage.name for stage in own),
            cpu_ms=sum(stage.cpu_ms for stage in own),
            blocked_ms=sum(stage.blocked_ms for stage in own),
        )


def lanes_of(
    run: Run, loader: Loader, step_ms: float, steady_ms: float, cores: Cores
) -> Lanes | None:
    """What the workers of a run did; None where their time was not measured.

    Args:
        run: with its workers.
        loader: whose workers they are.
        step_ms: the mean step,
        steady_ms: and without its pauses.
        cores: who has them.
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
    # Of the time that a stage is on no core, as much is spent blocked as of all such time.
    blocked = (off_core - waiting) / off_core if off_core > 0 else 0.0
    stages = [_stage(each, scale, blocked) for each in run.stages] if scale else []
    return Lanes(
        workers=lanes,
        work_ms=work_ms,
        cpu_ms=work_ms * on_core,
        queued_ms=work_ms * waiting,
        blocked_ms=work_ms * max(0.0, off_core - waiting),
        crowding=cores.others(ratio),
        all_cpu_ms=cpu_s / seconds * lanes * step_ms if seconds >= 0.5 else None,
        makers=_makers(run, workers, lanes),
        busy=min(1.0, work_ms / lanes / steady_ms) if steady_ms > 0 else 1.0,
        stages=tuple(sorted(stages, key=lambda stage: -stage.ms)),
        tail=_tail(run, work_ms),
        timed=run.timed,
    )


def _makers(run: Run, workers: list[Process], lanes: int) -> float | None:
    known = [each.cpu_s / each.seconds for each in workers if each.seconds >= _WATCHED_S]
    squares = sum(each * each for each in known)
    # Those of a second loader, for validation, may well have less to do.
    if len(known) < lanes or squares <= 0 or len({each.loader for each in run.passes}) > 1:
        return None
    return lanes * sum(known) ** 2 / squares / len(known)


def _stage(each: StageTime, scale: float, blocked: float) -> Stage:
    ms = each.total_ms * scale
    cpu = ms if each.cpu_ms is None else min(ms, each.cpu_ms * scale)
    return Stage(name=each.name, cpu_ms=cpu, blocked_ms=max(0.0, ms - cpu) * blocked)


def _tail(run: Run, work_ms: float) -> Tail | None:
    """Slow samples, where they are few and much slower than the others.

    What usual ones take is known from the tasks that were timed. How much slow ones add follows
    from all tasks, as few of a few samples are in those that were timed.
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
    # Those that are too few to be among the timed ones are at least among the slowest.
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
