"""The phases of a run: its steps by image size and batch size.

Guarantees: pure; every step is in one phase; the order is that in which phases came first.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from feedline.diagnose.finding import PhaseSplit
from feedline.trace.histogram import Histogram
from feedline.trace.run import Pass, Run

__all__ = ["LEAST_MS", "Phase", "epochs_of", "phases_of", "split_of"]

LEAST_MS = (
    1e-9  # no clock tells less: what took less was not measured, and nothing is divided by it
)

_PAUSE = 8  # times the median step
_RARE = 16  # steps for each pause, at least: more often than that, batches ahead can bridge them


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Means of a phase, in milliseconds a batch.

    Args:
        image_size: in pixels; None where batches are no images of one size.
        batch_size: samples of a batch, at most.
        first_pass: the number of its first pass among the run's.
        passes: those it is made of.
        steps: that were measured.
        batches: that were handed out.
        wait_ms, compute_ms: of a step.
        copy_ms: likewise; None where it was not told from the rest.
        pause_ms: of the computing, what a few steps took beyond the median one: those in which a
            training is evaluated or saved. No loader changes that.
        work_ms: what workers spent on a batch, together; None where it was not measured.
        samples: of a batch, in the mean; None where they could not be counted.
        bytes: of a batch.
        float_bytes: of these, of images as floats.
        pinned: whether its batches lay in pinned memory.
        first_excess_ms: by how much its first steps took longer than its median step, together.
        first_excess_steps: how many did.
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
        """The whole step."""
        return self.wait_ms + (self.copy_ms or 0.0) + self.compute_ms

    @property
    def steady_ms(self) -> float:
        """The step without pauses."""
        return self.step_ms - self.pause_ms


def phases_of(run: Run) -> list[Phase]:
    """Sum up the passes of each image size and batch size."""
    found: dict[tuple[int | None, int | None], list[tuple[int, Pass]]] = {}
    for number, each in enumerate(run.passes):
        if each.compute.count > 0:
            found.setdefault((each.image_size, each.batch_size), []).append((number, each))
    return [_phase([each for _, each in own], own[0][0], run) for own in found.values()]


def _phase(passes: list[Pass], first: int, run: Run) -> Phase:
    wait, compute, copy = _joined(passes)
    steps = compute.count
    batches = max(1, sum(each.batches for each in passes))
    samples = [each.samples for each in passes]
    excess, late = _first_excess(passes)
    return Phase(
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


def _joined(passes: list[Pass]) -> tuple[Histogram, Histogram, Histogram | None]:
    wait, compute, copy = Histogram(), Histogram(), Histogram()
    for each in passes:
        wait += each.wait
        compute += each.compute
        if each.copy is not None:
            copy += each.copy
    return wait, compute, copy if copy.count else None


def _pauses_ms(passes: list[Pass], compute: Histogram, run: Run) -> float:
    """What few steps took beyond the median one, together."""
    usual = compute.quantile(0.5)
    if not usual or (run.machine.gpu is not None and not all(p.device_clock for p in passes)):
        # By the host's clock, a long step may be one that waits for what earlier ones asked of the
        # device.
        return 0.0
    long = [(ms - usual, count) for ms, count in compute.times() if ms > _PAUSE * usual]
    if _RARE * sum(count for _, count in long) > compute.count:
        return 0.0
    return min(sum(ms * count for ms, count in long), compute.total_ms)


def _work(passes: list[Pass], batches: int, run: Run) -> float | None:
    """What workers spend on a batch of a phase.

    A worker of torch's makes whole batches, so a task is a batch. feedline's divide batches; some
    tasks are for batches that are not handed out yet, and the more batches the less they count.
    """
    tasks = sum(each.tasks or 0 for each in passes)
    tasks_ms = sum(each.tasks_ms or 0.0 for each in passes)
    if not tasks and not any(each.tasks for each in run.passes):
        tasks, tasks_ms = run.tasks, run.tasks_ms
        batches = sum(each.batches for each in run.passes)
    if not tasks or tasks_ms <= 0 or batches <= 0:
        return None
    a_task_is_a_batch = all(loader.kind == "torch" for loader in run.loaders)
    return tasks_ms / (tasks if a_task_is_a_batch else batches)


def _first_excess(passes: list[Pass]) -> tuple[float, int]:
    """By how much the first steps of a shape were longer than its median one, and how many.

    Only of the first pass: a shape is new once. Steps of less than twice the median are no news.
    """
    first = passes[0]
    usual = first.compute.quantile(0.5)
    if usual is None or first.compute.count < 2 * len(first.first_steps_ms):
        usual = median(each.compute.mean_ms or 0.0 for each in passes[1:]) if passes[1:] else usual
    if usual is None:
        return 0.0, 0
    longer = [ms - usual for ms in first.first_steps_ms if ms > 2 * usual]
    return sum(longer), len(longer)


def split_of(phase: Phase, workers: int) -> PhaseSplit:
    """The split of a phase, as a verdict has it."""
    wait, compute, copy = _joined(list(phase.passes))
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
    """The same, pass by pass."""
    found = []
    for number, each in enumerate(run.passes):
        if each.compute.count > 0:
            found.append(split_of(_phase([each], number, run), workers))
    return found


def _three(histogram: Histogram) -> tuple[float, float, float] | None:
    """Median, 95th percentile, longest."""
    half, most = histogram.quantile(0.5), histogram.quantile(0.95)
    if half is None or most is None:
        return None
    return half, most, histogram.longest_ms
