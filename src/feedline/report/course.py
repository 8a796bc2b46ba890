"""A run's throughput over time, with its phases: what a chart of it shows.

Guarantees: pure; a stretch whose images or whose time are not known has no rate, and no stand-in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.report.figures import finite
from feedline.trace.run import Point

__all__ = ["Course", "Phase", "Stretch", "course_of", "reduced"]


_MOST = 400
_LONG_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Some time of the run.

    Args:
        begun_s: when it began, from the run's beginning.
        seconds: how long it was.
        images_per_s: over it; None where that is not known.
        wait_pct: exposed waiting in percent of it.
        image_size: of its batches, in pixels; None where they have none.
    """

    begun_s: float
    seconds: float
    images_per_s: float | None
    wait_pct: float | None
    image_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """Stretches one after another with the same image size.

    Args:
        begun_s: when it began.
        ended_s: when it ended.
        image_size: in pixels; None where images have no size of their own.
    """

    begun_s: float
    ended_s: float
    image_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """Throughput over time: some hundred stretches at most, and the phases they are in."""

    stretches: list[Stretch]
    phases: list[Phase]


def course_of(points: Sequence[Point]) -> Course:
    """The course that points tell of."""
    stretches = reduced([_stretch(point) for point in points if _sound(point)], _MOST)
    phases: list[Phase] = []
    for each in stretches:
        ended_s = each.begun_s + each.seconds
        if phases and phases[-1].image_size == each.image_size:
            phases[-1] = Phase(
                begun_s=phases[-1].begun_s,
                ended_s=max(phases[-1].ended_s, ended_s),
                image_size=each.image_size,
            )
        else:
            phases.append(Phase(begun_s=each.begun_s, ended_s=ended_s, image_size=each.image_size))
    return Course(stretches=stretches, phases=phases)


def reduced(stretches: Sequence[Stretch], most: int) -> list[Stretch]:
    """Fewer stretches, about `most`, each made of neighbours at one image size."""
    share = -(-len(stretches) // most) if stretches else 1
    groups: list[list[Stretch]] = []
    for each in stretches:
        last = groups[-1] if groups else []
        if last and len(last) < share and last[-1].image_size == each.image_size:
            last.append(each)
        else:
            groups.append([each])
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(group: Sequence[Stretch]) -> Stretch:
    return Stretch(
        begun_s=group[0].begun_s,
        seconds=group[-1].begun_s + group[-1].seconds - group[0].begun_s,
        images_per_s=_mean(group, [each.images_per_s for each in group]),
        wait_pct=_mean(group, [each.wait_pct for each in group]),
        image_size=group[0].image_size,
    )


def _mean(group: Sequence[Stretch], values: Sequence[float | None]) -> float | None:
    """The mean over the time of stretches; None where one is not known."""
    total = sum(each.seconds for each in group)
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(each.seconds * value for each, value in zip(group, known, strict=True)) / total


def _sound(point: Point) -> bool:
    """Whether a point can be: a file may hold anything."""
    return 0 < point.seconds < _LONG_S and abs(point.begun_s) < _LONG_S and point.batches > 0


def _stretch(point: Point) -> Stretch:
    rate = None
    if point.samples is not None and point.samples >= 0:
        rate = finite(min(point.samples, 10**18) / point.seconds)
    return Stretch(
        begun_s=point.begun_s,
        seconds=point.seconds,
        images_per_s=rate,
        wait_pct=finite(max(0.0, min(100.0, point.wait_ms / point.seconds / 10))),
        image_size=point.image_size,
    )
