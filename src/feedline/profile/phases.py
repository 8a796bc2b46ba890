"""Phases of a run: its steps by image size and batch size.

Guarantees: pure; every step is in one phase; phases are in the order of their first pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from feedline.profile.finding import PhaseSplit
from feedline.timing.histogram import Histogram
from feedline.timing.run import Pass, Run

__all__ = ["LEAST_MS", "PhaseFacts", "epochs_of", "split_of", "summarise_phases", "uses_device"]

LEAST_MS = 1e-9
"""Resolution of a clock: shorter times were not measured, and nothing is divided by them."""

_PAUSE = 8  # times the median step
_RARE = 16  # minimum steps per pause: prefetched batches can bridge more frequent ones


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseFacts:
    """Means of a phase, in milliseconds per batch.

    Args:
        image_size: in pixels; None if batches are not images of one size.
        batch_size: samples of a batch, maximum.
        first_pass: index of its first pass in the run.
        passes: its passes.
        steps: measured steps.
        batches: delivered batches.
        wait_ms, compute_ms: of a step.
        copy_ms: of a step; None if it was not measured separately.
        pause_ms: part of the computing that a few steps took beyond the median step, because the
            model was evaluated or saved. No loader changes that.
        work_ms: work of all workers for a batch; None if not measured.
        samples: of a batch, mean; None if they could not be counted.
        bytes: of a batch.
        float_bytes: part of `bytes` that are images as floats.
        pinned: True if its batches are in pinned memory.
        first_excess_ms: excess of its first steps over its median step, together.
        first_excess_steps: number of those steps.
    """

    image_size: int | None
    batch_size: int | None
    first_pass: int
    passes: tuple[Pass, ...]
    steps: int
    batches: int
    wait_ms: float
    compute_ms: float
    copy_ms: float | None
    pause_ms: float
    work_ms: float | None
    samples: float | None
    bytes: float
    float_bytes: float
    pinned: bool | None
    first_excess_ms: float
    first_excess_steps: int

    @property
    def step_ms(self) -> float:
        """Whole step."""
        return self.wait_ms + (self.copy_ms or 0.0) + self.compute_ms

    @property
    def steady_ms(self) -> float:
        """Step without pauses."""
        return self.step_ms - self.pause_ms


def summarise_phases(run: Run) -> list[PhaseFacts]:
    """Summarise the passes of each image size and batch size."""
    found: dict[tuple[int | None, int | None], list[tuple[int, Pass]]] = {}
    for number, each in enumerate(run.passes):
        if each.compute.count > 0:
            found.setdefault((each.image_size, each.batch_size), []).append((number, each))
    return [_phase([each for _, each in own], own[0][0], run) for own in found.values()]


def _phase(passes: list[Pass], first: int, run: Run) -> PhaseFacts:
    wait, compute, copy = _join(passes)
    steps = compute.count
    batches = max(1, sum(each.batches for each in passes))
    samples = [each.samples for each in passes]
    excess, late = _first_excess(passes, device=uses_device(run))
    return PhaseFacts(
        image_size=passes[0].image_size,
        batch_size=passes[0].batch_size,
        first_pass=first,
        passes=tuple(passes),
        steps=steps,
        batches=batches,
        wait_ms=wait.total_ms / steps,
        compute_ms=compute.total_ms / steps,
        copy_ms=None if copy is None else copy.total_ms / steps,
        pause_ms=_pauses_ms(passes, compute, run) / steps,
        work_ms=_work(passes, batches, run),
        samples=None if None in samples else sum(each or 0 for each in samples) / batches,
        bytes=sum(each.bytes for each in passes) / batches,
        float_bytes=sum(each.float_bytes for each in passes) / batches,
        pinned=passes[-1].pinned,
        first_excess_ms=excess,
        first_excess_steps=late,
    )


def _join(passes: list[Pass]) -> tuple[Histogram, Histogram, Histogram | None]:
    wait, compute, copy = Histogram(), Histogram(), Histogram()
    for each in passes:
        wait += each.wait
        compute += each.compute
        if each.copy is not None:
            copy += each.copy
    return wait, compute, copy if copy.count else None


def _pauses_ms(passes: list[Pass], compute: Histogram, run: Run) -> float:
    """Time of rare long steps beyond the median step, together."""
    usual = compute.quantile(0.5)
    if not usual or (run.machine.gpu is not None and not all(p.device_clock for p in passes)):
        # By the host's clock, a long step may be one that waits for the device to finish the work
        # of earlier ones.
        return 0.0
    long = [(ms - usual, count) for ms, count in compute.times() if ms > _PAUSE * usual]
    if _RARE * sum(count for _, count in long) > compute.count:
        return 0.0
    return min(sum(ms * count for ms, count in long), compute.total_ms)


def _work(passes: list[Pass], batches: int, run: Run) -> float | None:
    """Work of all workers for a batch of a phase.

    A torch worker makes whole batches, so a task is a batch. feedline's workers share batches; some
    tasks belong to batches that were not delivered, which matters less the more batches there are.
    """
    tasks = sum(each.tasks or 0 for each in passes)
    tasks_ms = sum(each.tasks_ms or 0.0 for each in passes)
    if not tasks and not any(each.tasks for each in run.passes):
        tasks, tasks_ms = run.tasks, run.tasks_ms
        batches = sum(each.batches for each in run.passes)
    if not tasks or tasks_ms <= 0 or batches <= 0:
        return None
    whole_batches = all(loader.kind == "torch" for loader in run.loaders)
    return tasks_ms / (tasks if whole_batches else batches)


def uses_device(run: Run) -> bool:
    """Return True if the run computes on a device, not on the CPU."""
    return run.machine.gpu is not None or any(each.device_clock for each in run.passes)


def _first_excess(passes: list[Pass], *, device: bool) -> tuple[float, int]:
    """Excess of the first steps of a shape over its median one, and the number of those steps.

    Only the first pass counts: a shape is new once. Steps below twice the median do not count.
    Without a device kernels are selected and compiled on a core: only the excess of the training
    thread's CPU time counts, as the rest is waiting, for a core for example.
    """
    first = passes[0]
    usual = first.compute.quantile(0.5)
    if usual is None or first.compute.count < 2 * len(first.first_steps_ms):
        usual = median(each.compute.mean_ms or 0.0 for each in passes[1:]) if passes[1:] else usual
    if usual is None:
        return 0.0, 0
    longer = [ms - usual for ms in first.first_steps_ms if ms > 2 * usual]
    if device:
        return sum(longer), len(longer)
    excess_ms = min(sum(longer), _first_cpu_excess_ms(passes, usual))
    return (excess_ms, len(longer)) if excess_ms > 0 else (0.0, 0)


def _first_cpu_excess_ms(passes: list[Pass], least_ms: float) -> float:
    """Excess of the training thread's CPU time in first steps over its mean in later ones.

    Steps with an excess up to `least_ms` do not count. 0 if CPU times were not measured.
    """
    early, known = passes[0].first_steps_cpu_ms, passes[0].compute_cpu_ms
    cpu_ms, steps = (known or 0.0) - sum(early), passes[0].compute.count - len(early)
    for each in passes[1:]:
        cpu_ms, steps = cpu_ms + (each.compute_cpu_ms or 0.0), steps + each.compute.count
    if known is None or steps <= 0:
        return 0.0
    longer = [ms - max(0.0, cpu_ms / steps) for ms in early]
    return sum(ms for ms in longer if ms > least_ms)


def split_of(phase: PhaseFacts, workers: int) -> PhaseSplit:
    """Return the split of a phase, for a diagnosis."""
    wait, compute, copy = _join(list(phase.passes))
    seconds = phase.step_ms * phase.steps / 1000
    hidden = None
    if phase.work_ms is not None and workers > 0:
        hidden = max(0.0, phase.work_ms / workers - phase.wait_ms)
    return PhaseSplit(
        image_size=phase.image_size,
        batch_size=phase.batch_size,
        epochs=(
            min(each.epoch for each in phase.passes),
            max(each.epoch + each.passes - 1 for each in phase.passes),
        ),
        steps=phase.steps,
        images_per_s=None
        if phase.samples is None or seconds <= 0
        else phase.samples * phase.steps / seconds,
        wait_ms=_three(wait),
        copy_ms=None if copy is None else _three(copy),
        compute_ms=_three(compute),
        hidden_ms=hidden,
        wait_pct=100 * phase.wait_ms / phase.step_ms if phase.step_ms > 0 else None,
    )


def epochs_of(run: Run, workers: int) -> list[PhaseSplit]:
    """Return the split of each pass."""
    found = []
    for number, each in enumerate(run.passes):
        if each.compute.count > 0:
            found.append(split_of(_phase([each], number, run), workers))
    return found


def _three(histogram: Histogram) -> tuple[float, float, float] | None:
    """Median, 95th percentile, maximum."""
    half, most = histogram.quantile(0.5), histogram.quantile(0.95)
    if half is None or most is None:
        return None
    return half, most, histogram.longest_ms
