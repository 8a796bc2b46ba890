"""What the rules go by: a run, reduced to means for each phase and shares of the workers' time.

Guarantees: pure; nothing here is a judgement. None stands for what was not measured; no figure is
infinite or not a number, whatever the run says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedline.diagnose.cores import cores_of
from feedline.diagnose.finding import Thresholds
from feedline.diagnose.lanes import Lanes, lanes_of
from feedline.diagnose.phases import Phase, phases_of
from feedline.diagnose.stalls import Stalls, stalls_of
from feedline.diagnose.starts import starts_of
from feedline.trace.run import Loader, Machine, Pass, Process, Run, SlowSample, Use

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A run in means, in milliseconds a batch unless another unit is named.

    Args:
        machine, loader, use: as recorded; the loader is the one of most steps.
        loaders: how many there were.
        passes: as recorded.
        phases: in the order in which they came; those without a step are left out.
        steps: measured ones, of all phases.
        starts_ms: of all passes but the first, from asking for the first batch to having it.
        restarts: how many starts `starts_ms` sums up.
        rebuilt_ms: of `starts_ms`, those of first passes over a loader that was built anew,
        rebuilds: and how many those are.
        lanes: what workers did; None where their time was not measured.
        stalls: how the waiting is spread over the steps.
        step_cpu_ms: of the trainer, all threads, for a batch, without taking batches over.
        step_queued_ms: for how long the trainer's threads, together, were ready for a batch's step
            and no core was free.
        hand_cpu_ms: for how long of the waiting the trainer itself was on a core.
        compute_cpu_ms: for how long of the computing the training thread was on a core.
        cores_used: by trainer and workers together, in cores,
        cores_wanted: and those that they were ready for, these included.
        crowding: how many times as long the step's work on cores takes because programs of others
            have them.
        device: whether there is one.
        spread: standard error of the mean step, as a share of it.
        decoded_px: mean shorter side of the images that are decoded.
        read_bytes: by calls, in workers or else the trainer, a batch.
        slowest: samples, by name.
        seconds: that the run was watched.
        thresholds: from which on something is said.
        notes: of the recording.
    """

    machine: Machine
    loader: Loader
    use: Use
    loaders: int
    passes: list[Pass]
    phases: list[Phase]
    steps: int
    starts_ms: float
    restarts: int
    rebuilt_ms: float
    rebuilds: int
    lanes: Lanes | None
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
        """Whether steps wait for so long that something is said of it."""
        return 100 * self.steady_wait_share >= self.thresholds.moderate_pct

    @property
    def samples(self) -> float | None:
        """Of a batch; None where they could not be counted."""
        known = [phase for phase in self.phases if phase.samples is not None]
        if not known or len(known) < len(self.phases):
            return None
        return sum((phase.samples or 0.0) * phase.steps for phase in known) / max(1, self.steps)

    @property
    def bytes(self) -> float:
        """Of a batch."""
        return self._mean("bytes")

    @property
    def float_share(self) -> float:
        """Of these, what is images as floats."""
        return self._mean("float_bytes") / self.bytes if self.bytes > 0 else 0.0

    @property
    def cores(self) -> int:
        """Cores that this process may use, at least 1."""
        return max(1, self.machine.usable_cores)

    @property
    def workers(self) -> int:
        """Worker processes; 0 for none, or where the number is unknown."""
        return max(0, self.loader.workers or 0)

    @property
    def ahead(self) -> int:
        """Batches that workers make ahead; torch's default is 2 for each."""
        return self.workers * (self.loader.prefetch_factor or 2)

    @property
    def step_ms(self) -> float:
        """The mean step."""
        return self._mean("step_ms")

    @property
    def wait_ms(self) -> float:
        """Its waiting."""
        return self._mean("wait_ms")

    @property
    def copy_ms(self) -> float | None:
        """Its copying; None where that was not told from the rest."""
        known = [phase for phase in self.phases if phase.copy_ms is not None]
        if not known:
            return None
        steps = sum(phase.steps for phase in known)
        return sum((phase.copy_ms or 0.0) * phase.steps for phase in known) / steps

    @property
    def compute_ms(self) -> float:
        """Its computing."""
        return self._mean("compute_ms")

    @property
    def steady_compute_ms(self) -> float:
        """Its computing without pauses."""
        return self.compute_ms - self._mean("pause_ms")

    @property
    def total_ms(self) -> float:
        """All steps, and the starts of all passes but the first, which nothing can save."""
        return self.step_ms * self.steps + self.starts_ms

    @property
    def wait_pct(self) -> float:
        """Exposed waiting in percent of all that, the starts of later passes included."""
        waited = self.wait_ms * self.steps + self.starts_ms
        return 100 * waited / self.total_ms if self.total_ms > 0 else 0.0

    @property
    def steady_wait_share(self) -> float:
        """Waiting within passes, of the total time, 0 to 1."""
        return self.wait_ms * self.steps / self.total_ms if self.total_ms > 0 else 0.0

    def _mean(self, name: str) -> float:
        total = sum(float(getattr(phase, name)) * phase.steps for phase in self.phases)
        return total / self.steps if self.steps else 0.0


def facts_of(run: Run, thresholds: Thresholds) -> Facts:
    """Reduce a run."""
    phases = phases_of(run)
    steps = sum(phase.steps for phase in phases)
    loader = _busiest(run)
    starts = starts_of(run)
    step_ms = sum(phase.step_ms * phase.steps for phase in phases) / steps if steps else 0.0
    hand = _sum(run.passes, "wait_cpu_ms", steps)
    cores = cores_of(run, loader)
    trainer = [each for each in run.use.processes if each.role == "trainer"][:1]
    workers = [each for each in run.use.processes if each.role == "worker"]
    cpu_ms = queued_ms = None
    if cores.trainer_cpu is not None:
        cpu_ms = max(0.0, step_ms * cores.trainer_cpu - (hand or 0.0))
        queued_ms = cpu_ms * cores.trainer_queued
    steady_ms = sum(phase.steady_ms * phase.steps for phase in phases) / steps if steps else 0.0
    lanes = lanes_of(run, loader, step_ms, steady_ms, cores)
    # A trainer that sleeps and wakes waits for a core more often than it uses one for long.
    crowding = cores.others(cores.trainer_queued)
    if lanes is not None and loader.workers:
        crowding = min(crowding, lanes.crowding)
    return Facts(
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
        lanes=lanes,
        stalls=stalls_of(run),
        step_cpu_ms=cpu_ms,
        step_queued_ms=queued_ms,
        hand_cpu_ms=hand,
        compute_cpu_ms=_sum(run.passes, "compute_cpu_ms", steps),
        cores_used=cores.used,
        cores_wanted=cores.wanted,
        crowding=crowding,
        device=run.machine.gpu is not None or any(each.device_clock for each in run.passes),
        spread=_spread(run.passes, step_ms, steps),
        decoded_px=run.decoded_px,
        read_bytes=_read(workers or trainer, loader, step_ms),
        slowest=run.slowest,
        seconds=run.seconds,
        thresholds=thresholds,
        notes=run.notes,
    )


def _busiest(run: Run) -> Loader:
    """The loader of most steps; where its number is none of the run's, one that says nothing."""
    steps: dict[int, int] = {}
    for each in run.passes:
        steps[each.loader] = steps.get(each.loader, 0) + each.compute.count
    known = [number for number in steps if 0 <= number < len(run.loaders)]
    if not known:
        return run.loaders[0] if run.loaders else Loader(kind="other", name="")
    return run.loaders[max(known, key=lambda number: steps[number])]


def _sum(passes: list[Pass], name: str, steps: int) -> float | None:
    """The mean for a step of what passes sum up; None where one of them does not know it."""
    values = [getattr(each, name) for each in passes if each.compute.count]
    if not steps or not values or None in values:
        return None
    return float(sum(values)) / steps


def _read(processes: list[Process], loader: Loader, step_ms: float) -> float | None:
    """Bytes that all lanes together read by calls for a batch."""
    called = [each.called_bytes for each in processes]
    watched_s = sum(each.seconds for each in processes)
    if not called or None in called or watched_s <= 0:
        return None
    a_second = sum(each or 0 for each in called) / watched_s * max(1, loader.workers or 1)
    return a_second * step_ms / 1000


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
