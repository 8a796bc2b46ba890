"""Measured rates of a phase, with one or several worker pools, and of sizes between them.

A size between two measured ones: step time and work of an image are interpolated by the pixels.
Beyond the measured sizes only the step time is scaled by the pixels. The `basis` of the rates
reports both.

Guarantees: pure; an unchanged setting predicts its measurement; rates that were not measured are
always marked.
Relies on: `diagnose.step_load` for the model of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from feedline.errors import UsageError
from feedline.throughput.step_model import StepLoad
from feedline.throughput.step_window import StepWindow

__all__ = ["PoolRate", "Rates", "pool_rate", "rates_at"]


_MIN_RATIO = 1.3  # of busy workers between two pools, to see the effect on their waiting

_READY = 0.6  # of a step, as time for a batch: below, the workers are fast enough on average
_HAND_OVER = 0.3  # of a step: longest wait for a batch that is ready
_HAND_OVER_CPU = 2.0  # of the CPU time of the hand-over
_LATE = 0.05  # of a step: a shorter wait does not prove late batches
_MIN_MS = 1e-3  # shorter steps were not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRate:
    """Measurement of one worker pool.

    Args:
        load: needs of a step.
        step_ms: duration of a step, including its data wait.
        error: half of the 95% interval of `step_ms`, relative to it; 1 if unknown.
    """

    load: StepLoad
    step_ms: float
    error: float = 1.0

    @property
    def lanes(self) -> float:
        """Mean number of busy workers."""
        return self.load.work_ms / self.step_ms if self.step_ms > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Measured rates of a phase.

    Args:
        size: image size in pixels; None if batches have no single image size.
        rows: images in a batch; None if they cannot be counted.
        points: measurements of worker pools; predictions are compared with the first.
        level_px: shorter side of the copies that were read; None for the originals.
        basis: source of the rates if they were not measured.
    """

    size: int | None
    rows: float | None
    points: tuple[PoolRate, ...]
    level_px: int | None = None
    basis: str = ""

    @property
    def now(self) -> PoolRate:
        """Measurement that predictions are compared with."""
        return self.points[0]

    def nearest(self, workers: int) -> PoolRate:
        """Return the measured pool most similar to a number of workers."""
        return min(self.points, key=lambda point: _distance(point.load.workers, workers))

    @property
    def unit(self) -> str:
        """Unit of the rates."""
        return "steps/s" if self.rows is None else "images/s"

    def per_s(self, step_ms: float) -> float:
        """Return images/s, or steps/s if the images are unknown."""
        return (self.rows or 1.0) * 1000 / max(_MIN_MS, step_ms)

    @property
    def shared(self) -> float | None:
        """Degree to which waiting workers wait for each other, 0 to 1; None if unknown.

        Measured by the growth of their waiting with the number of busy workers: proportional
        growth is 1.
        """
        few = min(self.points, key=lambda point: point.lanes)
        many = max(self.points, key=lambda point: point.lanes)
        if few.lanes <= 0 or many.lanes < _MIN_RATIO * few.lanes or few.load.work_blocked_ms <= 0:
            return None
        longer = many.load.work_blocked_ms / few.load.work_blocked_ms
        if longer <= 0:
            return 0.0
        return min(1.0, max(0.0, math.log(longer) / math.log(many.lanes / few.lanes)))

    def scale(self, *, compute: float, work: float, **changes: object) -> Rates:
        """Scale the times of a step and of a batch's work by factors."""

        def scale(point: PoolRate) -> PoolRate:
            now = point.load
            then = replace(
                now,
                compute_ms=now.compute_ms * compute,
                step_cpu_ms=now.step_cpu_ms * compute,
                hand_ms=now.hand_ms * work,
                hand_cpu_ms=now.hand_cpu_ms * work,
                work_cpu_ms=now.work_cpu_ms * work,
                work_blocked_ms=now.work_blocked_ms * work,
                beside_cpu_ms=now.beside_cpu_ms * work,
                late_ms=now.late_ms * work,
            )
            stretch = point.step_ms / now.step_ms if now.step_ms > 0 else 1.0
            return PoolRate(load=then, step_ms=then.step_ms * stretch)

        return replace(self, points=tuple(map(scale, self.points)), **changes)  # type: ignore[arg-type]


def pool_rate(
    window: StepWindow,
    *,
    error: float,
    cores: int,
    compute_s: float | None,
    step_cpu_s: float,
    hand_cpu_s: float,
    usual_wait_s: float | None = None,
) -> PoolRate:
    """Derive the needs of a step from the times of a window.

    If the workers are fast enough on average, a wait of every step is the hand-over of a ready
    batch. A wait of some steps only, or a longer one, is for late batches.

    Args:
        window: times of the steps.
        error: half of the 95% interval of the mean step time, relative to it.
        cores: cores available to all processes.
        compute_s: compute-bound step time; None: as in the window.
        step_cpu_s: CPU time of the step, all threads.
        hand_cpu_s: CPU time of the hand-over of a batch.
        usual_wait_s: median data wait of a step; None: the mean.
    """
    compute_ms = 1e3 * (window.own_s if compute_s is None else min(window.own_s, compute_s))
    work_ms, wait_ms = 1e3 * window.work_s, 1e3 * window.wait_s / window.steps
    hand_ms = min(1e3 * hand_cpu_s, wait_ms)
    load = StepLoad(
        workers=window.workers,
        cores=float(cores),
        compute_ms=compute_ms,
        step_cpu_ms=min(1e3 * step_cpu_s, compute_ms * cores),
        hand_ms=hand_ms,
        hand_cpu_ms=hand_ms,
        work_cpu_ms=work_ms * (1.0 - window.blocked_share),
        work_blocked_ms=work_ms * window.blocked_share,
        beside_cpu_ms=0.0,
    )
    step_ms = 1e3 * window.step_s
    # If other programs use the cores, workers are late with little work.
    busy_ms = 1e3 * window.tasks_s / window.steps / max(1, window.workers)
    usual_ms = wait_ms if usual_wait_s is None else 1e3 * usual_wait_s
    ready_ms = max(_HAND_OVER_CPU * hand_ms, min(usual_ms, _HAND_OVER * step_ms))
    if max(load.produce_ms, busy_ms) <= _READY * step_ms and wait_ms <= ready_ms + _LATE * step_ms:
        load = replace(load, hand_ms=wait_ms)
    late_ms = min(step_ms - load.even_ms, wait_ms - load.hand_ms)
    enough = load.produce_ms <= _READY * step_ms or load.limit == "step"
    if enough and late_ms > _LATE * step_ms:
        load = replace(load, late_ms=late_ms)
    return PoolRate(load=load, step_ms=step_ms, error=error)


def _distance(one: int, other: int) -> float:
    return abs(math.log(max(1, one) / max(1, other)))


def rates_at(measured: Sequence[Rates], size: int | None, rows: int | None = None) -> Rates:
    """Return the rates of a size and a batch size, scaled if they were not measured.

    Raises:
        UsageError: the measured phases have no sizes and one is requested, or the reverse.
    """
    same = [each for each in measured if each.size == size]
    # One size may be measured with several batch sizes.
    found = min(same, key=lambda each: abs((each.rows or 0) - rows) if rows else 0, default=None)
    if found is None:
        sized = sorted((each for each in measured if each.size), key=lambda each: each.size or 0)
        if size is None or not sized:
            raise UsageError(
                f"the schedule has {size or 'no'} px, but the measured phases have "
                f"{'other sizes' if sized else 'no sizes'}",
                hint="measure the sizes of the schedule",
            )
        found = _interpolate(sized, size)
    if rows and found.rows and rows != round(found.rows):
        factor = rows / found.rows
        note = f"scaled from batches of {found.rows:.0f}"
        basis = f"{found.basis}, {note}" if found.basis else note
        found = found.scale(compute=factor, work=factor, rows=float(rows), basis=basis)
    return found


def _interpolate(sized: Sequence[Rates], size: int) -> Rates:
    """Return the rates of a size that was not measured."""
    below = [each for each in sized if (each.size or 0) < size]
    above = [each for each in sized if (each.size or 0) > size]
    near = min(sized, key=lambda each: abs((each.size or 0) ** 2 - size**2))
    near_px = near.size or size
    if not below or not above:
        return near.scale(
            compute=(size / near_px) ** 2,
            work=1.0,
            size=size,
            basis=f"not measured: scaled from {near_px} px, with a step time proportional to the "
            "pixels and the same work for an image",
        )
    low, high = below[-1], above[0]
    low_px, high_px = low.size or 0, high.size or 0
    share = (size**2 - low_px**2) / (high_px**2 - low_px**2)

    def factor(name: str) -> float:
        """Ratio of an interpolated time to that of the nearer size."""
        ends = [getattr(each.now.load, name) / (each.rows or 1.0) for each in (low, high)]
        own = getattr(near.now.load, name) / (near.rows or 1.0)
        return ((1 - share) * ends[0] + share * ends[1]) / own if own > 0 else 1.0

    return near.scale(
        compute=factor("compute_ms"),
        work=factor("work_ms"),
        size=size,
        basis=f"interpolated between {low_px} and {high_px} px by the pixels",
    )
