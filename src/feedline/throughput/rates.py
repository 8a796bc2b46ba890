"""Measured rates of a training by phase, and those of sizes that were not measured.

A size between two measured ones: step time and work of an image are interpolated by the pixels.
Beyond the measured sizes only the step time is scaled by the pixels.

Guarantees: pure; rates that were not measured are marked by their `basis`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import UsageError
from feedline.throughput.step_model import StepLoad
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import StepWindow

__all__ = ["PoolRate", "Rates", "pool_rate", "rates_at"]

_MIN_MS = 1e-3  # shorter steps were not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRate:
    """Measurement of one worker pool."""

    load: StepLoad
    step_ms: float  # duration of a step, including its data wait
    error: float  # half of the 95% interval of `step_ms`, relative to it; 1 if unknown

    @property
    def busy_workers(self) -> float:
        """Mean number of busy workers."""
        return self.load.work_ms / self.step_ms if self.step_ms > 0 else 0.0


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
    """Derive the load of a step from the times of a window.

    If the workers are fast enough on average, a wait of every step is the hand-over of a ready
    batch. A wait of some steps only, or a longer one, is for late batches.

    Args:
        window: times of the steps.
        error: see `PoolRate`.
        cores: available to all processes.
        compute_s: compute-bound step time; None: as in the window.
        step_cpu_s: CPU time of the step, all threads.
        hand_cpu_s: CPU time of the hand-over of a batch.
        usual_wait_s: median data wait of a step; None: the mean.
    """
    step_ms, wait_ms = 1e3 * window.step_s, 1e3 * window.wait_s / window.steps
    compute_ms = 1e3 * (window.own_s if compute_s is None else min(window.own_s, compute_s))
    hand_ms = min(1e3 * hand_cpu_s, wait_ms)
    load = replace(
        window.load(float(cores)),
        compute_ms=compute_ms,
        step_cpu_ms=min(1e3 * step_cpu_s, compute_ms * cores),
        hand_ms=hand_ms,
        hand_cpu_ms=hand_ms,
    )
    # If other programs use the cores, workers are late with little work.
    busy_ms = 1e3 * window.tasks_s / window.steps / max(1, window.workers)
    usual_ms = wait_ms if usual_wait_s is None else 1e3 * usual_wait_s
    limits = THRESHOLDS
    ready_ms = max(limits.hand_over_cpu * hand_ms, min(usual_ms, limits.hand_over * step_ms))
    late_ms = limits.late * step_ms
    are_ready = max(load.produce_ms, busy_ms) <= limits.ready * step_ms
    if are_ready and wait_ms <= ready_ms + late_ms:
        load = replace(load, hand_ms=wait_ms)
    unexplained_ms = min(step_ms - load.even_ms, wait_ms - load.hand_ms)
    enough = load.produce_ms <= limits.ready * step_ms or not load.waits
    if enough and unexplained_ms > late_ms:
        load = replace(load, late_ms=unexplained_ms)
    return PoolRate(load=load, step_ms=step_ms, error=error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Measured rates of a phase."""

    size: int | None  # of images, in pixels; None if batches have no single one
    rows: float | None  # images in a batch; None if they cannot be counted
    points: tuple[PoolRate, ...]  # by worker pool; predictions are compared with the first
    level_px: int | None = None  # shorter side of the copies read; None for the originals
    basis: str = ""  # source of the rates if they were not measured

    @property
    def now(self) -> PoolRate:
        """Measurement that predictions are compared with."""
        return self.points[0]

    @property
    def unit(self) -> str:
        """Unit of the rates."""
        return "steps/s" if self.rows is None else "images/s"

    def nearest(self, workers: int) -> PoolRate:
        """Return the measured pool most similar to a number of workers."""

        def distance(point: PoolRate) -> float:
            return abs(math.log(max(1, point.load.workers) / max(1, workers)))

        return min(self.points, key=distance)

    def per_s(self, step_ms: float) -> float:
        """Return images/s, or steps/s if the images are unknown."""
        return (self.rows or 1.0) * 1000 / max(_MIN_MS, step_ms)

    @property
    def shared(self) -> float | None:
        """Degree to which waiting workers wait for each other, 0 to 1; None if unknown.

        Measured by the growth of their waiting with the number of busy workers: proportional
        growth is 1.
        """
        few = min(self.points, key=lambda point: point.busy_workers)
        many = max(self.points, key=lambda point: point.busy_workers)
        ratio = many.busy_workers / few.busy_workers if few.busy_workers > 0 else 0.0
        if ratio < THRESHOLDS.pools_differ or few.load.work_blocked_ms <= 0:
            return None
        longer = many.load.work_blocked_ms / few.load.work_blocked_ms
        return min(1.0, max(0.0, math.log(longer) / math.log(ratio))) if longer > 0 else 0.0

    def scale(self, *, compute: float, work: float, **changes: Any) -> Rates:
        """Scale the times of a step and of a batch's work by factors."""

        def scale(point: PoolRate) -> PoolRate:
            now, load = point.load, point.load.scaled(compute=compute, work=work)
            stretch = point.step_ms / now.step_ms if now.step_ms > 0 else 1.0
            return replace(point, load=load, step_ms=load.step_ms * stretch)

        return replace(self, points=tuple(map(scale, self.points)), **changes)


def rates_at(measured: Sequence[Rates], size: int | None, rows: int | None = None) -> Rates:
    """Return the rates of an image size and a batch size, scaled if they were not measured.

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
    """Return the rates of a size that was not measured; `sized` is in the order of sizes."""

    def pixels(rates: Rates) -> int:
        return (rates.size or 0) ** 2

    near = min(sized, key=lambda each: abs(pixels(each) - size**2))
    low = next((each for each in reversed(sized) if pixels(each) < size**2), None)
    high = next((each for each in sized if pixels(each) > size**2), None)
    if low is None or high is None:
        return near.scale(
            compute=size**2 / pixels(near),
            work=1.0,
            size=size,
            basis=f"not measured: scaled from {near.size} px, with a step time proportional to the "
            "pixels and the same work for an image",
        )
    share = (size**2 - pixels(low)) / (pixels(high) - pixels(low))

    def factor(name: str) -> float:
        """Ratio of an interpolated time to that of the nearer size."""
        first, last, own = (
            getattr(each.now.load, name) / (each.rows or 1.0) for each in (low, high, near)
        )
        return float(((1 - share) * first + share * last) / own) if own > 0 else 1.0

    return near.scale(
        compute=factor("compute_ms"),
        work=factor("work_ms"),
        size=size,
        basis=f"interpolated between {low.size} and {high.size} px by the pixels",
    )
