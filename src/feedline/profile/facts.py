"""Facts that the rules use: a run reduced to means per phase and the workers' time by stage.

Guarantees: pure; facts only, no judgement; shares are from 0 to 1. None is a value that was not
measured; no figure is infinite or NaN, whatever the run contains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from feedline.profile.lanes import LEAST_MS, summarise_workers
from feedline.throughput.step_model import is_compute_bound
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import error_of
from feedline.timing.run import Histogram, Loader, Pass, Process, RankTimes, Run


class StepMeans:
    """Mean times of steps, in milliseconds. None is a time that was not measured."""

    def __init__(self, sums: Pass | RankTimes) -> None:
        self.steps = sums.compute.count
        self.wait_ms = self.of_step(sums.wait.total_ms) or 0.0
        copy_ms = sums.copy.total_ms if sums.copy is not None and sums.copy.count else None
        self.copy_ms = self.of_step(copy_ms)  # wait for the copy of a batch
        self.compute_ms = self.of_step(sums.compute.total_ms) or 0.0
        self.compute_cpu_ms = self.of_step(sums.compute_cpu_ms)  # the thread on a core
        self.step_ms = self.wait_ms + (self.copy_ms or 0.0) + self.compute_ms

    def of_step(self, ms: float | None) -> float | None:
        """Return the mean of a sum over all steps."""
        return None if ms is None or not self.steps else ms / self.steps


class _PassMeans(StepMeans):
    """Steps of passes in means per batch."""

    pause_ms: float
    """Part of the computing that a few steps took beyond the median step, because the model was
    evaluated or saved. No loader changes that."""

    def __init__(self, passes: list[Pass]) -> None:
        self.passes, self.total = passes, Pass(loader=0, epoch=0, passes=0)
        for each in passes:
            self.total.add(each)
        super().__init__(self.total)
        self.hand_cpu_ms = self.of_step(self.total.wait_cpu_ms)
        """Part of the waiting in which the trainer itself was on a core."""
        samples, batches = self.total.samples, max(1, self.total.batches)
        self.samples = None if samples is None else samples / batches
        self.bytes = self.total.bytes / batches

    @property
    def steady_compute_ms(self) -> float:
        """Computing of a step without pauses."""
        return max(0.0, self.compute_ms - self.pause_ms)


class PhaseFacts(_PassMeans):
    """Steps of one image size and batch size in means; at least one."""

    def __init__(self, run: Run, passes: list[Pass], number: int) -> None:
        super().__init__(passes)
        self.number = number  # index of the first pass in the run
        self.image_size = passes[0].image_size  # in pixels; None if not images of one size
        self.work_ms = _work(passes, run)  # of all workers for a batch; None if not measured
        self.pause_ms = _pauses_ms(passes, self.total.compute, run) / self.steps
        excess = _first_excess(passes, device=_uses_device(run))
        self.first_excess_ms, self.first_excess_steps = excess

    @property
    def steady_ms(self) -> float:
        """Step without pauses."""
        return self.step_ms - self.pause_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowRank:
    """Rank that delays the others: ranks that synchronise gradients have equal steps."""

    rank: int
    part: str  # "input" or "computing", by which it is slow
    excess_ms: float  # of a step, over the median rank; of two ranks, over the other one
    hidden_ms: float  # part of it that this run's rank counts as computing


class RunFacts(_PassMeans):
    """All steps of a run in means, in milliseconds per batch unless another unit is given."""

    def __init__(self, run: Run) -> None:
        super().__init__([each for each in run.passes if each.compute.count])
        self.run, self.loader = run, _busiest(run)
        self.phases = summarise_phases(run)  # in their first order
        pauses_ms = sum(phase.pause_ms * phase.steps for phase in self.phases)
        self.pause_ms = pauses_ms / max(1, self.steps)
        self.cores = max(1, run.machine.usable_cores)  # that this process may use
        self.workers = max(0, self.loader.workers or 0)  # 0 if unknown, too
        self.worker_processes = _of_role(run, "worker")  # watched ones
        self.device = _uses_device(run)  # the run computes on one, not on the CPU
        self.error = _error(run)  # half of the 95% interval of the mean step, as a share of it
        self.slow_rank = find_slow_rank(run)
        trainer = _of_role(run, "trainer")[:1]
        self.watched_s = trainer[0].seconds if trainer else run.seconds
        """Time that `run.use` covers: of a resumed training, since the latest start."""
        self.read_bytes = _read(self.worker_processes or trainer, self.loader, self.step_ms)
        late = sum(count for ms, count in self.total.wait.times() if ms > self.step_ms / 10)
        self.waited = late / max(1, self.steps)
        """Share of the steps that waited longer than a tenth of the mean step."""

        starts = [each.start_ms for each in run.passes if each.start_ms.count]
        rebuilt = _rebuilt(run)
        # If several passes are summed up, the first is assumed to have the longest start.
        first_ms = starts[0].longest_ms if starts else 0.0
        self.restarts = max(0, sum(each.count for each in starts) - 1)
        self.rebuilds = sum(each.start_ms.count for each in rebuilt)
        self.between_ms, rebuilding_ms = _between_ms(run.passes, rebuilt)
        """Time between passes: evaluation, checkpoints; not to rebuild loaders."""
        self.starts_ms = max(0.0, sum(each.total_ms for each in starts) - first_ms) + rebuilding_ms
        """From requesting to receiving the first batch of all passes but the first (`restarts` in
        number), and to rebuild loaders."""
        self.rebuilt_ms = sum(each.start_ms.total_ms for each in rebuilt) + rebuilding_ms
        """Part of that to rebuild loaders, up to their first batch (`rebuilds` in number)."""

        cpu, queued = _rates(trainer)
        worker_cpu, worker_queued = _rates(self.worker_processes)
        self.cores_used: float | None = None  # by trainer and workers together
        self.cores_wanted: float | None = None  # these, and the cores they were ready for
        self.step_cpu_ms: float | None = None
        """CPU time of the trainer for a batch, all threads, without taking batches over."""
        self.step_queued_ms: float | None = None
        """Time for which the trainer's threads, together, were ready for a batch's step without a
        free core."""
        if cpu is not None:
            lanes_cpu = (worker_cpu or 0.0) * min(max(1, self.workers), len(self.worker_processes))
            self.cores_used = cpu + lanes_cpu
            self.cores_wanted = cpu * (1 + queued) + lanes_cpu * (1 + worker_queued)
            self.step_cpu_ms = max(0.0, self.step_ms * cpu - (self.hand_cpu_ms or 0.0))
            self.step_queued_ms = self.step_cpu_ms * queued
        # Demand of this run beyond the cores is its own fault; the rest is due to other programs.
        own = max(1.0, (self.cores_wanted or 0.0) / self.cores)
        if run.machine.shared_by > 1:
            # Ranks of one machine start at the same time, after each exchange of gradients: the
            # first processes find a core at once, the last when the others are done.
            own = max(own, (1 + (1 + self.workers) / self.cores) / 2)
        others = run.use.other_cores
        if others is not None and others < THRESHOLDS.other_cores * self.cores:
            own = math.inf  # waiting for a core is then for own processes, or to wake up
        waiting = worker_queued if self.workers else queued
        self.lanes = summarise_workers(run, self.loader, self.step_ms, self.pause_ms, waiting, own)
        """Time of the workers; None if not measured."""
        self.crowding = max(1.0, (1.0 + queued) / own)
        """Factor by which the step's work on cores takes longer because of other programs."""
        # A trainer that sleeps and wakes up often waits for a core, though it rarely uses one long.
        computes = (self.step_cpu_ms or 0.0) + (self.step_queued_ms or 0.0) >= self.step_ms / 2
        if self.lanes is not None and self.workers and not computes:
            self.crowding = min(self.crowding, self.lanes.crowding)

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
    def disk_faults(self) -> int:
        """Pages that workers read from a disk: of mapped files, or swapped out."""
        return sum(each.major_faults or 0 for each in self.worker_processes)


def _uses_device(run: Run) -> bool:
    return run.machine.gpu is not None or any(each.device_clock for each in run.passes)


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
    ranks = [(each.rank, StepMeans(each)) for each in run.ranks if each.compute.count]
    if len(ranks) < 2:
        return None
    parts = {"input": [means.wait_ms for _, means in ranks]}
    if all(means.compute_cpu_ms is not None for _, means in ranks):
        parts["computing"] = [means.compute_cpu_ms or 0.0 for _, means in ranks]
    found = []
    for part, times in parts.items():
        usual = min(times) if len(times) == 2 else median(times)
        found.append((max(times) - usual, part, ranks[times.index(max(times))][0]))
    excess_ms, part, rank = max(found)
    own = part == "input" and rank == run.rank
    return SlowRank(rank=rank, part=part, excess_ms=excess_ms, hidden_ms=0.0 if own else excess_ms)


def _rebuilt(run: Run) -> list[Pass]:
    """First pass over each loader that was built again."""
    rebuilt, seen, identities = list[Pass](), set[tuple[int, int]](), list[tuple[object, ...]]()
    for each in run.passes:
        if each.start_ms.count:
            loader, identity = (each.loader, each.built), _identity(run.loaders, each)
            if loader not in seen and identity in identities:
                rebuilt.append(each)
            seen.add(loader)
            identities.append(identity)
    return rebuilt


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
    found: dict[object, list[int]] = {}
    for number, each in enumerate(run.passes):
        if each.compute.count > 0:
            key = number if each_pass else (each.image_size, each.batch_size)
            found.setdefault(key, []).append(number)
    return [PhaseFacts(run, [run.passes[k] for k in own], own[0]) for own in found.values()]


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
