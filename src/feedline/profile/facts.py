"""Facts that the rules use: a run reduced to means per phase and the workers' time by stage.

Guarantees: pure; facts only, no judgement; shares are from 0 to 1. None is a value that was not
measured; no figure is infinite or NaN, whatever the run contains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from feedline.throughput.step_model import is_compute_bound
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import error_of
from feedline.timing.run import Histogram, Loader, Pass, Process, Run, StageTime

__all__ = [
    "LEAST_MS",
    "PhaseFacts",
    "RunFacts",
    "WorkerLanes",
    "WorkerStage",
    "find_slow_rank",
    "summarise_run",
]

LEAST_MS = 1e-9
"""Resolution of a clock: shorter times were not measured, and nothing is divided by them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """Steps in means, in milliseconds per batch.

    Args:
        passes: their passes.
        total: sum of the passes.
        pause_ms: part of the computing that a few steps took beyond the median step, because the
            model was evaluated or saved. No loader changes that.
    """

    passes: tuple[Pass, ...]
    total: Pass
    pause_ms: float

    @property
    def steps(self) -> int:
        """Measured steps."""
        return self.total.compute.count

    def _per_step(self, ms: float | None) -> float | None:
        return None if ms is None or not self.steps else ms / self.steps

    def _per_batch(self, count: int) -> float:
        return count / max(1, self.total.batches)

    @property
    def wait_ms(self) -> float:
        """Data wait of a step."""
        return self._per_step(self.total.wait.total_ms) or 0.0

    @property
    def copy_ms(self) -> float | None:
        """Wait for the copy of a batch; None if it was not measured separately."""
        copy = self.total.copy
        return self._per_step(copy.total_ms) if copy is not None and copy.count else None

    @property
    def compute_ms(self) -> float:
        """Computing of a step."""
        return self._per_step(self.total.compute.total_ms) or 0.0

    @property
    def step_ms(self) -> float:
        """Whole step."""
        return self.wait_ms + (self.copy_ms or 0.0) + self.compute_ms

    @property
    def hand_cpu_ms(self) -> float | None:
        """Part of the waiting in which the trainer itself was on a core."""
        return self._per_step(self.total.wait_cpu_ms)

    @property
    def compute_cpu_ms(self) -> float | None:
        """Part of the computing in which the training thread was on a core."""
        return self._per_step(self.total.compute_cpu_ms)

    @property
    def steady_compute_ms(self) -> float:
        """Computing of a step without pauses."""
        return max(0.0, self.compute_ms - self.pause_ms)

    @property
    def samples(self) -> float | None:
        """Samples of a batch; None if they could not be counted."""
        return None if self.total.samples is None else self._per_batch(self.total.samples)

    @property
    def bytes(self) -> float:
        """Bytes of a batch."""
        return self._per_batch(self.total.bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseFacts(StepFacts):
    """Steps of one image size and batch size; at least one.

    Args:
        number: index of its first pass in the run.
        work_ms: work of all workers for a batch; None if not measured.
        first_excess_ms: excess of its first steps over its median step, together.
        first_excess_steps: number of those steps.
    """

    number: int
    work_ms: float | None
    first_excess_ms: float
    first_excess_steps: int

    @property
    def image_size(self) -> int | None:
        """In pixels; None if batches are not images of one size."""
        return self.passes[0].image_size

    @property
    def steady_ms(self) -> float:
        """Step without pauses."""
        return self.step_ms - self.pause_ms


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
        workers: workers that share the work: fewer than there are if others are nearly idle; 1
            without workers or if the number is unknown.
        idle_workers: workers that make nearly no batches.
        work_ms: time to make one batch.
        cpu_ms: part of `work_ms` on a core.
        queued_ms: part ready without a free core.
        blocked_ms: part waiting for anything else.
        crowding: factor by which the work takes longer because other programs use the cores; the
            run's own processes do not count.
        all_cpu_ms: CPU time per batch of all threads, including work outside tasks; None if not
            measured.
        busy: share of the time that workers work on a task, without pauses of the step.
        stages: most expensive first; empty if no task was timed.
        tail: samples that take far longer than others; None without any.
    """

    workers: int
    idle_workers: int
    work_ms: float
    cpu_ms: float
    queued_ms: float
    blocked_ms: float
    crowding: float
    all_cpu_ms: float | None
    busy: float
    stages: tuple[WorkerStage, ...]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """Rank that delays the others: ranks that synchronise gradients have equal steps.

    Args:
        rank: the slowest.
        part: "input" or "computing", by which it is slow.
        excess_ms: its excess over the median rank, of a step; of two ranks, over the other one.
        hidden_ms: part of it that this run's rank counts as computing.
    """

    rank: int
    part: str
    excess_ms: float
    hidden_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts(StepFacts):
    """All steps of a run in means, in milliseconds per batch unless another unit is given.

    Args:
        run: as recorded.
        loader: with most steps.
        phases: in their first order; phases without a step are left out.
        lanes: time of the workers; None if not measured.
        starts_ms: time from requesting to receiving the first batch, of all passes but the first,
            and to rebuild loaders.
        restarts: number of starts in `starts_ms`.
        rebuilt_ms: part of `starts_ms` to rebuild loaders, up to their first batch.
        rebuilds: number of those starts.
        between_ms: other time between passes: evaluation, checkpoints.
        waited: share of the steps that waited longer than a tenth of the mean step.
        step_cpu_ms: CPU time of the trainer for a batch, all threads, without taking batches over.
        step_queued_ms: time for which the trainer's threads, together, were ready for a batch's
            step without a free core.
        cores_used: cores in use by trainer and workers together.
        cores_wanted: `cores_used` and the cores they were ready for.
        crowding: factor by which the step's work on cores takes longer because of other programs.
        error: half-width of the 95% interval of the mean step, as a share of it.
        read_bytes: bytes read by calls, in workers or else the trainer, per batch.
        slow_rank: rank with the largest excess; None in a run of one process.
    """

    run: Run
    loader: Loader
    phases: list[PhaseFacts]
    lanes: WorkerLanes | None
    starts_ms: float
    restarts: int
    rebuilt_ms: float
    rebuilds: int
    between_ms: float
    waited: float
    step_cpu_ms: float | None
    step_queued_ms: float | None
    cores_used: float | None
    cores_wanted: float | None
    crowding: float
    error: float
    read_bytes: float | None
    slow_rank: SlowRank | None

    @property
    def waits(self) -> bool:
        """True if steps wait so long that it is reported."""
        waited_ms = self.wait_ms * self.steps
        return self.total_ms > 0 and not is_compute_bound(waited_ms / self.total_ms)

    @property
    def tiny(self) -> bool:
        """True if a batch is so little work that its fixed cost matters."""
        samples, work = self.samples, self.lanes.own_ms if self.lanes is not None else 0.0
        if samples is None or samples > THRESHOLDS.tiny_batch:
            return False
        little = max(work, self.compute_ms / 2) <= THRESHOLDS.min_task_ms
        return little and self.bytes <= THRESHOLDS.large_batch_bytes

    @property
    def device(self) -> bool:
        """True if the run computes on a device, not on the CPU."""
        return self.run.machine.gpu is not None or any(p.device_clock for p in self.passes)

    @property
    def device_busy(self) -> bool:
        """True if a device is used that may be busy while the host is slow."""
        busy = self.run.use.gpu_busy
        return self.device and (busy is None or busy >= THRESHOLDS.idle_device)

    @property
    def float_share(self) -> float:
        """Share of `bytes` that are images as floats."""
        return self.total.float_bytes / self.total.bytes if self.total.bytes > 0 else 0.0

    @property
    def worst_crowding(self) -> float:
        """`crowding` of the step's work or of the workers', whichever is larger."""
        return max(self.crowding, self.lanes.crowding if self.lanes is not None else 1.0)

    @property
    def cores(self) -> int:
        """Cores that this process may use, at least 1."""
        return max(1, self.run.machine.usable_cores)

    @property
    def workers(self) -> int:
        """Worker processes; 0 for none, or if the number is unknown."""
        return max(0, self.loader.workers or 0)

    @property
    def ahead(self) -> int:
        """Batches that workers make ahead; torch's default is 2 per worker."""
        return self.workers * (self.loader.prefetch_factor or 2)

    @property
    def total_ms(self) -> float:
        """All steps, the starts of all passes but the first, and the time between passes."""
        return self.step_ms * self.steps + self.starts_ms + self.between_ms

    @property
    def wait_pct(self) -> float:
        """Data wait in percent of `total_ms`, including the starts of later passes."""
        waited = self.wait_ms * self.steps + self.starts_ms
        return 100 * waited / self.total_ms if self.total_ms > 0 else 0.0

    @property
    def worker_processes(self) -> list[Process]:
        """Watched worker processes."""
        return _of_role(self.run, "worker")

    @property
    def disk_faults(self) -> int:
        """Pages that workers read from a disk: of mapped files, or swapped out."""
        return sum(each.major_faults or 0 for each in self.worker_processes)


def summarise_run(run: Run) -> RunFacts:
    """Summarise a run."""
    phases, loader = summarise_phases(run), _busiest(run)
    total = _sum_passes(passes := tuple(each for each in run.passes if each.compute.count))
    pause_ms = sum(phase.pause_ms * phase.steps for phase in phases) / max(1, total.compute.count)
    steps = StepFacts(passes=passes, total=total, pause_ms=pause_ms)
    trainer, workers = _of_role(run, "trainer")[:1], _of_role(run, "worker")
    cpu, queued = _rates(trainer)
    worker_cpu, worker_queued = _rates(workers)
    used = wanted = cpu_ms = queued_ms = None
    if cpu is not None:
        lanes_cpu = (worker_cpu or 0.0) * min(max(1, loader.workers or 1), len(workers))
        used, wanted = cpu + lanes_cpu, cpu * (1 + queued) + lanes_cpu * (1 + worker_queued)
        cpu_ms = max(0.0, steps.step_ms * cpu - (steps.hand_cpu_ms or 0.0))
        queued_ms = cpu_ms * queued
    # Demand of this run beyond the cores is its own fault; the rest is due to other programs.
    cores = max(1, run.machine.usable_cores)
    own = max(1.0, (wanted or 0.0) / cores)
    if run.machine.shared_by > 1:
        # Ranks of one machine start at the same time, after each exchange of gradients: the first
        # processes find a core at once, the last when the others are done.
        own = max(own, (1 + (1 + (loader.workers or 0)) / cores) / 2)
    lanes = _lanes(run, loader, steps, worker_queued if loader.workers else queued, own)
    starts_ms, restarts, rebuilt_ms, rebuilt = _starts(run)
    between_ms, rebuilding_ms = _between_ms(run.passes, rebuilt)
    # A trainer that sleeps and wakes up often waits for a core, though it rarely uses one for long.
    crowding = max(1.0, (1.0 + queued) / own)
    computes = (cpu_ms or 0.0) + (queued_ms or 0.0) >= steps.step_ms / 2
    if lanes is not None and loader.workers and not computes:
        crowding = min(crowding, lanes.crowding)
    late = sum(count for ms, count in total.wait.times() if ms > steps.step_ms / 10)
    return RunFacts(
        passes=passes,
        total=total,
        pause_ms=pause_ms,
        run=run,
        loader=loader,
        phases=phases,
        lanes=lanes,
        starts_ms=starts_ms + rebuilding_ms,
        restarts=restarts,
        rebuilt_ms=rebuilt_ms + rebuilding_ms,
        rebuilds=sum(each.start_ms.count for each in rebuilt),
        between_ms=between_ms,
        waited=late / max(1, steps.steps),
        step_cpu_ms=cpu_ms,
        step_queued_ms=queued_ms,
        cores_used=used,
        cores_wanted=wanted,
        crowding=crowding,
        error=_error(run),
        read_bytes=_read(workers or trainer, loader, steps.step_ms),
        slow_rank=find_slow_rank(run),
    )


def _sum_passes(passes: Iterable[Pass]) -> Pass:
    total = Pass(loader=0, epoch=0, passes=0)
    for each in passes:
        total.add(each)
    return total


def _of_role(run: Run, role: str) -> list[Process]:
    return [each for each in run.use.processes if each.role == role]


def _rates(processes: list[Process]) -> tuple[float | None, float]:
    """Cores in use by one of the processes, and its time without a core per second on one."""
    seconds = sum(each.seconds for each in processes)
    cpu = sum(each.cpu_s for each in processes)
    queued = [each.queued_s for each in processes]
    known = cpu > 0 and None not in queued
    ratio = sum(each or 0.0 for each in queued) / cpu if known else 0.0
    return (cpu / seconds if seconds >= THRESHOLDS.watched_s else None), ratio


def _busiest(run: Run) -> Loader:
    """Loader with most steps, or an empty description if its number is not in the run."""
    steps: dict[int, int] = {}
    for each in run.passes:
        steps[each.loader] = steps.get(each.loader, 0) + each.compute.count
    known = [number for number in steps if 0 <= number < len(run.loaders)]
    if not known:
        return run.loaders[0] if run.loaders else Loader(kind="other", name="")
    return run.loaders[max(known, key=lambda number: steps[number])]


def _between_ms(passes: list[Pass], rebuilt: list[Pass]) -> tuple[float, float]:
    """Time between passes, and the part of it to rebuild loaders, which is not in the first.

    Before the first pass of a rebuilt loader, more time than before any other pass ends the old
    workers and lists the samples again; if all passes rebuild, it may as well be an evaluation.
    Gaps longer than all passes, pauses of a notebook's user, do not count.
    """
    gaps_s, all_busy_s, ended_s = list[tuple[float, bool]](), 0.0, -math.inf
    for each in sorted(passes, key=lambda each: each.begun_s):
        parts = [each.start_ms, each.wait, each.compute, *([each.copy] if each.copy else [])]
        busy_s = sum(part.total_ms for part in parts) / 1000
        gaps_s.append((each.begun_s - ended_s, any(each is one for one in rebuilt)))
        if each.passes > 1:  # summed up, with the time between them
            gaps_s.append((each.ended_s - each.begun_s - busy_s, False))
        all_busy_s += busy_s
        ended_s = max(ended_s, each.ended_s)
    gaps_s = [(gap_s, rebuilds) for gap_s, rebuilds in gaps_s if 0 < gap_s <= all_busy_s]
    usual_s = max((gap_s for gap_s, rebuilds in gaps_s if not rebuilds), default=math.inf)
    rebuilding_s = sum(max(0.0, gap_s - usual_s) for gap_s, rebuilds in gaps_s if rebuilds)
    return 1000 * (sum(gap_s for gap_s, _ in gaps_s) - rebuilding_s), 1000 * rebuilding_s


def _read(processes: list[Process], loader: Loader, step_ms: float) -> float | None:
    """Bytes per batch that all workers together read by calls."""
    called = [each.called_bytes for each in processes]
    watched_s = sum(each.seconds for each in processes)
    if not called or None in called or watched_s <= 0:
        return None
    per_s = sum(each or 0 for each in called) / watched_s * max(1, loader.workers or 1)
    return per_s * step_ms / 1000


def _error(run: Run) -> float:
    """Half-width of the 95% interval of the mean step, relative to the mean of its image size."""
    points = [each for each in run.course if each.batches > 0 and math.isfinite(each.seconds)]
    if len(points) < THRESHOLDS.window_steps:
        return min(1.0, error_of(_latest_steps(run)))
    sums: dict[int | None, tuple[float, int]] = {}
    for each in points:
        seconds, batches = sums.get(each.image_size, (0.0, 0))
        sums[each.image_size] = seconds + each.seconds, batches + each.batches
    usual = {size: max(LEAST_MS, seconds / batches) for size, (seconds, batches) in sums.items()}
    relative = [each.seconds / usual[each.image_size] for each in points]
    return min(1.0, error_of(relative, [each.batches for each in points]))


def _latest_steps(run: Run) -> list[float]:
    """Duration of the latest steps in ms, in order; a short run has too few points of time."""
    events = [each for excerpt in run.excerpts[:1] for each in excerpt.events]
    starts = [each.begun_ms for each in events if (each.lane, each.stage) == ("step", "compute")]
    return [after - before for before, after in pairwise(starts)]


def find_slow_rank(run: Run) -> SlowRank | None:
    """Return the rank with the largest excess; None in a run of one process."""
    ranks = [each for each in run.ranks if each.compute.count]
    if len(ranks) < 2:
        return None
    parts = {"input": [each.wait.total_ms / each.compute.count for each in ranks]}
    if all(each.compute_cpu_ms is not None for each in ranks):
        parts["computing"] = [(each.compute_cpu_ms or 0.0) / each.compute.count for each in ranks]
    found = []
    for part, times in parts.items():
        usual = min(times) if len(times) == 2 else median(times)
        found.append((max(times) - usual, part, ranks[times.index(max(times))].rank))
    excess_ms, part, rank = max(found)
    own = part == "input" and rank == run.rank
    return SlowRank(rank=rank, part=part, excess_ms=excess_ms, hidden_ms=0.0 if own else excess_ms)


def _starts(run: Run) -> tuple[float, int, float, list[Pass]]:
    """Time and number of all starts but the first, and time and passes of rebuilt loaders."""
    total = rebuilt_ms = 0.0
    count, rebuilt = 0, list[Pass]()
    seen: set[tuple[int, int]] = set()
    identities: list[tuple[object, ...]] = []
    for each in run.passes:
        if not each.start_ms.count:
            continue
        own, starts = each.start_ms.total_ms, each.start_ms.count
        loader, identity = (each.loader, each.built), _identity(run.loaders, each)
        if not seen:
            # If several passes are summed up, the first is assumed to have the longest start.
            own, starts = max(0.0, own - each.start_ms.longest_ms), starts - 1
        elif loader not in seen and identity in identities:
            rebuilt_ms += own
            rebuilt.append(each)
        seen.add(loader)
        identities.append(identity)
        total, count = total + own, count + starts
    return total, count, rebuilt_ms, rebuilt


def _identity(loaders: list[Loader], one: Pass) -> tuple[object, ...]:
    """Key that stays the same if a loop rebuilds its loader, with another batch size as well."""
    if not 0 <= one.loader < len(loaders):
        return (one.loader,)
    loader = loaders[one.loader]
    if loader.samples is None:  # streams have no length to compare
        return (one.loader,)
    return loader.kind, loader.name, loader.dataset, loader.samples


def summarise_phases(run: Run, *, each_pass: bool = False) -> list[PhaseFacts]:
    """Summarise the passes of each image size and batch size, or each pass on its own."""
    found: dict[object, list[tuple[int, Pass]]] = {}
    for number, each in enumerate(run.passes):
        if each.compute.count > 0:
            key = number if each_pass else (each.image_size, each.batch_size)
            found.setdefault(key, []).append((number, each))
    return [_phase([each for _, each in own], own[0][0], run) for own in found.values()]


def _phase(passes: list[Pass], number: int, run: Run) -> PhaseFacts:
    total = _sum_passes(passes)
    device = run.machine.gpu is not None or any(each.device_clock for each in run.passes)
    excess, late = _first_excess(passes, device=device)
    return PhaseFacts(
        number=number,
        passes=tuple(passes),
        total=total,
        work_ms=_work(passes, run),
        pause_ms=_pauses_ms(passes, total.compute, run) / total.compute.count,
        first_excess_ms=excess,
        first_excess_steps=late,
    )


def _pauses_ms(passes: list[Pass], compute: Histogram, run: Run) -> float:
    """Time of rare long steps beyond the median step, together."""
    usual = compute.quantile(0.5)
    if not usual or (run.machine.gpu is not None and not all(p.device_clock for p in passes)):
        # By the host's clock, a long step may be one that waits for the device to finish the work
        # of earlier ones.
        return 0.0
    limit_ms = THRESHOLDS.pause * usual
    long = [(ms - usual, count) for ms, count in compute.times() if ms > limit_ms]
    if THRESHOLDS.steps_per_pause * sum(count for _, count in long) > compute.count:
        return 0.0
    return min(sum(ms * count for ms, count in long), compute.total_ms)


def _work(passes: list[Pass], run: Run) -> float | None:
    """Work of all workers for a batch of a phase.

    A torch worker makes whole batches, so a task is a batch. feedline's workers share batches; some
    tasks belong to batches that were not delivered, which matters less the more batches there are.
    """
    tasks, tasks_ms = sum(p.tasks or 0 for p in passes), sum(p.tasks_ms or 0.0 for p in passes)
    batches = sum(each.batches for each in passes)
    if not tasks and not any(each.tasks for each in run.passes):
        tasks, tasks_ms = run.tasks, run.tasks_ms
        batches = sum(each.batches for each in run.passes)
    if not tasks or tasks_ms <= 0 or batches <= 0:
        return None
    whole_batches = all(loader.kind == "torch" for loader in run.loaders)
    return tasks_ms / (tasks if whole_batches else batches)


def _first_excess(passes: list[Pass], *, device: bool) -> tuple[float, int]:
    """Excess of the first steps of a shape over its median one, and the number of those steps.

    Only the first pass counts: a shape is new once. Steps below twice the median do not count.
    Without a device kernels are selected and compiled on a core: only the excess of the training
    thread's CPU time counts, as the rest is waiting, for a core for example.
    """
    first, later = passes[0], passes[1:]
    usual = first.compute.quantile(0.5)
    if usual is None or first.compute.count < 2 * len(first.first_steps_ms):
        usual = median(each.compute.mean_ms or 0.0 for each in later) if later else usual
    if usual is None:
        return 0.0, 0
    longer = [ms - usual for ms in first.first_steps_ms if ms > 2 * usual]
    excess_ms = sum(longer)
    if not device:
        early, known = first.first_steps_cpu_ms, first.compute_cpu_ms
        steps = sum(each.compute.count for each in passes) - len(early)
        if known is None or steps <= 0:
            return 0.0, 0
        cpu_ms = known - sum(early) + sum(each.compute_cpu_ms or 0.0 for each in later)
        on_core = [ms - max(0.0, cpu_ms / steps) for ms in early]
        excess_ms = min(excess_ms, sum(ms for ms in on_core if ms > usual))
    return (excess_ms, len(longer)) if excess_ms > 0 else (0.0, 0)


def _lanes(
    run: Run, loader: Loader, steps: StepFacts, queued: float, own: float
) -> WorkerLanes | None:
    """Summarise the workers of a run; None if their time was not measured.

    Args:
        run: the run with its workers.
        loader: the workers' loader.
        steps: of the run.
        queued: seconds ready without a core, per second on one.
        own: demand of this run for cores, relative to the cores, at least 1.
    """
    step_ms, steady_ms = steps.step_ms, steps.step_ms - steps.pause_ms
    batches = sum(each.batches for each in run.passes)
    if not run.tasks or run.tasks_ms <= 0 or not batches or step_ms <= 0:
        return None
    one = run.tasks if all(each.kind == "torch" for each in run.loaders) else batches
    work_ms = run.tasks_ms / one
    workers = _of_role(run, "worker")
    seconds, cpu_s = sum(p.seconds for p in workers), sum(p.cpu_s for p in workers)
    timed = run.timed > 0 and run.timed_ms > 0
    on_core = run.timed_cpu_ms / run.timed_ms if timed else cpu_s / seconds if seconds else 1.0
    on_core = min(1.0, on_core)
    off_core = 1.0 - on_core
    waiting = min(off_core, on_core * queued)
    if timed and run.timed_queued_ms is not None:
        waiting = min(off_core, run.timed_queued_ms / run.timed_ms)
        queued = waiting / on_core if on_core > 0 else 0.0
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
