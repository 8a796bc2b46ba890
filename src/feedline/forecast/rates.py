"""What was measured of a phase: what its steps and its batches need, with one crew or several.

Guarantees: pure; a change of nothing predicts what was measured.
Relies on: `diagnose.step_load` for the model of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from feedline.control.window import Window
from feedline.diagnose.step_load import StepLoad

__all__ = ["Point", "Rates", "point_of"]

_APART = 1.3  # times as many workers at work, to see what more of them do to each other's waiting

_READY = 0.6  # of a step, that a batch takes: then workers are enough on average
_HANDED = 0.3  # of a step, that is waited for a batch that lies ready, at most
_HANDED_CPU = 2.0  # times what that takes on a core
_LATE = 0.05  # of a step: what is waited for less than that is no sign of late batches
_LEAST_MS = 1e-3  # a step that takes less was not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A crew at work.

    Args:
        load: what a step needed,
        step_ms: and how long it took, its waiting included.
        error: half of the 95% interval of that, as a share of it; 1 where it is not known.
    """

    load: StepLoad
    step_ms: float
    error: float = 1.0

    @property
    def lanes(self) -> float:
        """Workers that were at work at the same time, in the mean."""
        return self.load.work_ms / self.step_ms if self.step_ms > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """A phase as it was measured.

    Args:
        size: of its images, in pixels; None where batches are no images of one size.
        rows: of a batch; None where they could not be counted.
        points: the crews that were at work, the one that all is compared with first.
        wanted_px: the shorter side at which its images are wanted of a cache.
        level_px: that of the copies that were read; None for the originals.
        basis: where this was not measured itself, what it follows from.
    """

    size: int | None
    rows: float | None
    points: tuple[Point, ...]
    wanted_px: int | None = None
    level_px: int | None = None
    basis: str = ""

    @property
    def now(self) -> Point:
        """What all is compared with."""
        return self.points[0]

    def near(self, workers: int) -> Point:
        """The crew that is most like one of so many workers."""
        return min(self.points, key=lambda point: _away(point.load.workers, workers))

    @property
    def unit(self) -> str:
        """Of its rates."""
        return "steps/s" if self.rows is None else "images/s"

    def per_s(self, step_ms: float) -> float:
        """Images in a second, or steps where rows are not known."""
        return (self.rows or 1.0) * 1000 / max(_LEAST_MS, step_ms)

    @property
    def shared(self) -> float | None:
        """How far what workers wait for serves one at a time, 0 to 1; None: cannot be told.

        By how much longer each of them waited where more were at work: with as many more, as much
        longer is 1.
        """
        few = min(self.points, key=lambda point: point.lanes)
        many = max(self.points, key=lambda point: point.lanes)
        if few.lanes <= 0 or many.lanes < _APART * few.lanes or few.load.work_blocked_ms <= 0:
            return None
        longer = many.load.work_blocked_ms / few.load.work_blocked_ms
        if longer <= 0:
            return 0.0
        return min(1.0, max(0.0, math.log(longer) / math.log(many.lanes / few.lanes)))

    def scaled(self, *, compute: float, work: float, **changes: object) -> Rates:
        """The same with other times: a step's own and a batch's, so many times as long."""

        def other(point: Point) -> Point:
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
            return Point(load=then, step_ms=then.step_ms * stretch)

        return replace(self, points=tuple(map(other, self.points)), **changes)  # type: ignore[arg-type]


def point_of(
    window: Window,
    *,
    error: float,
    cores: int,
    compute_s: float | None,
    step_cpu_s: float,
    hand_cpu_s: float,
    usual_wait_s: float | None = None,
) -> Point:
    """What was seen of a crew.

    Where workers are enough on average, what each step waits is the taking over of a batch that
    lies ready. What only some steps wait, or what is more than that takes, is for late batches.

    Args:
        window: steps with it.
        error: half of the 95% interval of their mean, as a share.
        cores: that all may use.
        compute_s: a step's own work with data for free; None: as in the window.
        step_cpu_s: on cores for that, all threads.
        hand_cpu_s: on a core to take a batch over.
        usual_wait_s: what a step waits in the median; None: as in the mean.
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
    # Where other programs have the cores, workers are late with little work of their own.
    busy_ms = 1e3 * window.tasks_s / window.steps / max(1, window.workers)
    usual_ms = wait_ms if usual_wait_s is None else 1e3 * usual_wait_s
    ready_ms = max(_HANDED_CPU * hand_ms, min(usual_ms, _HANDED * step_ms))
    if max(load.produce_ms, busy_ms) <= _READY * step_ms and wait_ms <= ready_ms + _LATE * step_ms:
        load = replace(load, hand_ms=wait_ms)
    late_ms = min(step_ms - load.even_ms, wait_ms - load.hand_ms)
    enough = load.produce_ms <= _READY * step_ms or load.limit == "step"
    if enough and late_ms > _LATE * step_ms:
        load = replace(load, late_ms=late_ms)
    return Point(load=load, step_ms=step_ms, error=error)


def _away(one: int, other: int) -> float:
    return abs(math.log(max(1, one) / max(1, other)))
