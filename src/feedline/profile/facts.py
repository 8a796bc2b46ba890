"""Facts that the rules use: a run reduced to means per phase and shares of the workers' time.

Guarantees: pure; facts only, no judgement. None is a value that was not measured; no figure is
infinite or NaN, whatever the run contains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedline.profile.finding import Thresholds
from feedline.profile.lanes import WorkerLanes, summarise_cores, summarise_lanes
from feedline.profile.phases import PhaseFacts, summarise_phases, uses_device
from feedline.timing.run import Loader, Machine, Pass, Process, ResourceUse, Run, SlowSample

__all__ = ["RunFacts", "Stalls", "Starts", "summarise_run", "summarise_stalls", "summarise_starts"]


_IDLE_DEVICE = 0.7  # busy share below which the device waits for the host
_COMPUTES = 0.5  # share of the step from which on the trainer itself is ready for a core


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """A run in means, in milliseconds per batch unless another unit is given.

    Args:
        machine, loader, use: as recorded; the loader is the one with most steps.
        loaders: number of loaders.
        passes: as recorded.
        phases: in their first order; phases without a step are left out.
        steps: measured steps of all phases.
        starts_ms: time from requesting to receiving the first batch, of all passes but the first.
        restarts: number of starts in `starts_ms`.
        rebuilt_ms: part of `starts_ms` in first passes over a rebuilt loader.
        rebuilds: number of those starts.
        between_ms: time between passes: evaluation, checkpoints.
        lanes: time of the workers; None if not measured.
        stalls: distribution of the waiting over the steps.
        step_cpu_ms: CPU time of the trainer for a batch, all threads, without taking batches over.
        step_queued_ms: time for which the trainer's threads, together, were ready for a batch's
            step without a free core.
        hand_cpu_ms: part of the waiting in which the trainer itself was on a core.
        compute_cpu_ms: part of the computing in which the training thread was on a core.
        cores_used: cores in use by trainer and workers together.
        cores_wanted: `cores_used` and the cores they were ready for.
        crowding: factor by which the step's work on cores takes longer because of other programs.
        device: True if there is a device.
        spread: standard error of the mean step, as a share of it.
        decoded_px: mean shorter side of the decoded images.
        read_bytes: bytes read by calls, in workers or else the trainer, per batch.
        slowest: slowest samples, by name.
        seconds: length of the recording.
        thresholds: limits from which on findings are reported.
        notes: of the recording.
    """

    machine: Machine
    loader: Loader
    use: ResourceUse
    loaders: int
    passes: list[Pass]
    phases: list[PhaseFacts]
    steps: int
    starts_ms: float
    restarts: int
    rebuilt_ms: float
    rebuilds: int
    between_ms: float
    lanes: WorkerLanes | None
    stalls: Stalls
    step_cpu_ms: float | None
    step_queued_ms: float | None
    hand_cpu_ms: float | None
    compute_cpu_ms: float | None
    cores_used: float | None
    cores_wanted: float | None
    crowding: float
    device: bool
    spread: float
    decoded_px: float | None
    read_bytes: float | None
    slowest: list[SlowSample]
    seconds: float
    thresholds: Thresholds
    notes: list[str]

    @property
    def waits(self) -> bool:
        """True if steps wait so long that it is reported."""
        return 100 * self.steady_wait_share >= self.thresholds.moderate_pct

    @property
    def device_busy(self) -> bool:
        """True if a device is used that may be busy while the host is slow."""
        busy = self.use.gpu_busy
        return self.device and (busy is None or busy >= _IDLE_DEVICE)

    @property
    def samples(self) -> float | None:
        """Samples of a batch, mean; None if they could not be counted."""
        known = [phase for phase in self.phases if phase.samples is not None]
        if not known or len(known) < len(self.phases):
            return None
        return sum((phase.samples or 0.0) * phase.steps for phase in known) / max(1, self.steps)

    @property
    def bytes(self) -> float:
        """Bytes of a batch, mean."""
        return self._mean("bytes")

    @property
    def float_share(self) -> float:
        """Share of `bytes` that are images as floats."""
        return self._mean("float_bytes") / self.bytes if self.bytes > 0 else 0.0

    @property
    def cores(self) -> int:
        """Cores that this process may use, at least 1."""
        return max(1, self.machine.usable_cores)

    @property
    def workers(self) -> int:
        """Worker processes; 0 for none, or if the number is unknown."""
        return max(0, self.loader.workers or 0)

    @property
    def ahead(self) -> int:
        """Batches that workers make ahead; torch's default is 2 per worker."""
        return self.workers * (self.loader.prefetch_factor or 2)

    @property
    def step_ms(self) -> float:
        """Mean step."""
        return self._mean("step_ms")

    @property
    def wait_ms(self) -> float:
        """Mean waiting of a step."""
        return self._mean("wait_ms")

    @property
    def copy_ms(self) -> float | None:
        """Mean copying of a step; None if it was not measured separately."""
        known = [phase for phase in self.phases if phase.copy_ms is not None]
        if not known:
            return None
        steps = sum(phase.steps for phase in known)
        return sum((phase.copy_ms or 0.0) * phase.steps for phase in known) / steps

    @property
    def compute_ms(self) -> float:
        """Mean computing of a step."""
        return self._mean("compute_ms")

    @property
    def steady_compute_ms(self) -> float:
        """Mean computing of a step, without pauses."""
        return self.compute_ms - self._mean("pause_ms")

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
    def steady_wait_share(self) -> float:
        """Waiting within passes, as a share of `total_ms`."""
        return self.wait_ms * self.steps / self.total_ms if self.total_ms > 0 else 0.0

    def _mean(self, name: str) -> float:
        total = sum(float(getattr(phase, name)) * phase.steps for phase in self.phases)
        return total / self.steps if self.steps else 0.0


def summarise_run(run: Run, thresholds: Thresholds) -> RunFacts:
    """Summarise a run."""
    phases = summarise_phases(run)
    steps = sum(phase.steps for phase in phases)
    loader = _busiest(run)
    starts = summarise_starts(run)
    step_ms = sum(phase.step_ms * phase.steps for phase in phases) / steps if steps else 0.0
    hand = _sum(run.passes, "wait_cpu_ms", steps)
    cores = summarise_cores(run, loader)
    trainer = [each for each in run.use.processes if each.role == "trainer"][:1]
    workers = [each for each in run.use.processes if each.role == "worker"]
    cpu_ms = queued_ms = None
    if cores.trainer_cpu is not None:
        cpu_ms = max(0.0, step_ms * cores.trainer_cpu - (hand or 0.0))
        queued_ms = cpu_ms * cores.trainer_queued
    steady_ms = sum(phase.steady_ms * phase.steps for phase in phases) / steps if steps else 0.0
    lanes = summarise_lanes(run, loader, step_ms, steady_ms, cores)
    # A trainer that sleeps and wakes up often waits for a core, though it rarely uses one for long.
    crowding = cores.slowdown_by_others(cores.trainer_queued)
    computes = (cpu_ms or 0.0) + (queued_ms or 0.0) >= _COMPUTES * step_ms
    if lanes is not None and loader.workers and not computes:
        crowding = min(crowding, lanes.crowding)
    return RunFacts(
        machine=run.machine,
        loader=loader,
        use=run.use,
        loaders=len({(each.loader, each.built) for each in run.passes}),
        passes=run.passes,
        phases=phases,
        steps=steps,
        starts_ms=starts.total_ms,
        restarts=starts.count,
        rebuilt_ms=starts.rebuilt_ms,
        rebuilds=starts.rebuilds,
        between_ms=_between_ms(run.passes),
        lanes=lanes,
        stalls=summarise_stalls(run),
        step_cpu_ms=cpu_ms,
        step_queued_ms=queued_ms,
        hand_cpu_ms=hand,
        compute_cpu_ms=_sum(run.passes, "compute_cpu_ms", steps),
        cores_used=cores.used,
        cores_wanted=cores.wanted,
        crowding=crowding,
        device=uses_device(run),
        spread=_spread(run.passes, step_ms, steps),
        decoded_px=run.decoded_px,
        read_bytes=_read(workers or trainer, loader, step_ms),
        slowest=run.slowest,
        seconds=run.seconds,
        thresholds=thresholds,
        notes=run.notes,
    )


def _busiest(run: Run) -> Loader:
    """Loader with most steps, or an empty description if its number is not in the run."""
    steps: dict[int, int] = {}
    for each in run.passes:
        steps[each.loader] = steps.get(each.loader, 0) + each.compute.count
    known = [number for number in steps if 0 <= number < len(run.loaders)]
    if not known:
        return run.loaders[0] if run.loaders else Loader(kind="other", name="")
    return run.loaders[max(known, key=lambda number: steps[number])]


def _sum(passes: list[Pass], name: str, steps: int) -> float | None:
    """Mean per step of a sum over passes; None if a pass does not know it."""
    values = [getattr(each, name) for each in passes if each.compute.count]
    if not steps or not values or None in values:
        return None
    return float(sum(values)) / steps


def _between_ms(passes: list[Pass]) -> float:
    """Time between passes, without gaps longer than all passes: pauses of a notebook's user."""
    gaps_s, all_busy_s, ended_s = list[float](), 0.0, -math.inf
    for each in sorted(passes, key=lambda each: each.begun_s):
        parts = [each.start_ms, each.wait, each.compute, *([each.copy] if each.copy else [])]
        busy_s = sum(part.total_ms for part in parts) / 1000
        gaps_s.append(each.begun_s - ended_s)
        if each.passes > 1:  # summed up, with the time between them
            gaps_s.append(each.ended_s - each.begun_s - busy_s)
        all_busy_s += busy_s
        ended_s = max(ended_s, each.ended_s)
    return 1000 * sum(gap_s for gap_s in gaps_s if 0 < gap_s <= all_busy_s)


def _read(processes: list[Process], loader: Loader, step_ms: float) -> float | None:
    """Bytes per batch that all lanes together read by calls."""
    called = [each.called_bytes for each in processes]
    watched_s = sum(each.seconds for each in processes)
    if not called or None in called or watched_s <= 0:
        return None
    per_s = sum(each or 0 for each in called) / watched_s * max(1, loader.workers or 1)
    return per_s * step_ms / 1000


def _spread(passes: list[Pass], step_ms: float, steps: int) -> float:
    """Standard error of the mean step, as a share of it, from the spread of its parts."""
    if steps < 2 or step_ms <= 0:
        return 1.0
    variance = 0.0
    for each in passes:
        for part in (each.wait, each.compute):
            mean = part.mean_ms or 0.0
            variance += sum(count * (ms - mean) ** 2 for ms, count in part.times())
    return min(1.0, math.sqrt(variance / steps) / math.sqrt(steps) / step_ms)


_MIN_STEPS = 24  # to detect a period
_MAX_PERIOD = 12
_SIMILAR = 0.5  # autocorrelation from which on steps repeat each other


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalls:
    """Waiting in all steps.

    Args:
        waited: share of the steps that waited longer than a tenth of the mean step.
        longest_ms: longest wait of a step.
        period: steps from one long wait to the next; None if there is no period.
    """

    waited: float
    longest_ms: float
    period: int | None


def summarise_stalls(run: Run) -> Stalls:
    """Summarise the waits of a run."""
    steps = sum(each.wait.count for each in run.passes)
    total = sum(each.wait.total_ms + each.compute.total_ms for each in run.passes)
    least_ms = 0.1 * total / steps if steps else 0.0
    waited = sum(count for each in run.passes for ms, count in each.wait.times() if ms > least_ms)
    waits: dict[int, float] = {}
    for excerpt in run.excerpts:
        for event in excerpt.events:
            if excerpt.why == "latest" and event.lane == "step" and event.stage == "wait":
                waits[event.batch] = event.ended_ms - event.begun_ms
    return Stalls(
        waited=waited / steps if steps else 0.0,
        longest_ms=max((each.wait.longest_ms for each in run.passes), default=0.0),
        period=_period([waits[batch] for batch in sorted(waits)]),
    )


def _period(waits: list[float]) -> int | None:
    """Lag of at least 2 with the highest autocorrelation of the waits, or None."""
    if len(waits) < _MIN_STEPS:
        return None
    mean = sum(waits) / len(waits)
    centred = [wait - mean for wait in waits]
    power = sum(each * each for each in centred)
    if power <= 0:
        return None
    correlation = {
        lag: sum(a * b for a, b in zip(centred, centred[lag:], strict=False))
        / power
        * len(waits)
        / (len(waits) - lag)
        for lag in range(1, _MAX_PERIOD + 1)
    }
    best = max(range(2, _MAX_PERIOD + 1), key=lambda lag: correlation[lag])
    return best if correlation[best] > max(_SIMILAR, correlation[1]) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Starts:
    """Starts of all passes but the first, which cannot be saved.

    Args:
        total_ms: time from requesting to receiving their first batches, together.
        count: number of starts.
        rebuilt_ms: part of `total_ms` in first passes over a loader that replaced another.
        rebuilds: number of those starts.
    """

    total_ms: float
    count: int
    rebuilt_ms: float
    rebuilds: int


def summarise_starts(run: Run) -> Starts:
    """Summarise the starts of a run."""
    total = rebuilt = 0.0
    count, rebuilds = 0, 0
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
            rebuilt += own
            rebuilds += starts
        seen.add(loader)
        identities.append(identity)
        total += own
        count += starts
    return Starts(total_ms=total, count=count, rebuilt_ms=rebuilt, rebuilds=rebuilds)


def _identity(loaders: list[Loader], one: Pass) -> tuple[object, ...]:
    """Key that stays the same if a loop rebuilds its loader, with another batch size as well."""
    if not 0 <= one.loader < len(loaders):
        return (one.loader,)
    loader = loaders[one.loader]
    if loader.samples is None:  # streams have no length to compare
        return (one.loader,)
    return loader.kind, loader.name, loader.dataset, loader.samples
