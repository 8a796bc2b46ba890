"""Throughput history of a run, with its phases, for a chart.

Guarantees: pure; an interval whose images or time are unknown has no rate, and no substitute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.text import finite
from feedline.timing.run import ThroughputPoint

__all__ = ["HistoryPhase", "RateInterval", "ThroughputHistory", "build_history", "merge_neighbours"]


_MAX_INTERVALS = 400
_LONG_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class RateInterval:
    """Interval of the run.

    Args:
        begun_s: start, from the run's start.
        seconds: length.
        images_per_s: rate; None if unknown.
        wait_pct: data wait in percent.
        image_size: of its batches, in pixels; None if they have none.
    """

    begun_s: float
    seconds: float
    images_per_s: float | None
    wait_pct: float | None
    image_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPhase:
    """Consecutive intervals with the same image size.

    Args:
        begun_s: start.
        ended_s: end.
        image_size: in pixels; None if images have no common size.
    """

    begun_s: float
    ended_s: float
    image_size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputHistory:
    """Throughput over time: a few hundred intervals at most, and their phases."""

    stretches: list[RateInterval]
    phases: list[HistoryPhase]


def build_history(points: Sequence[ThroughputPoint]) -> ThroughputHistory:
    """Build the history from recorded points."""
    stretches = merge_neighbours(
        [_stretch(point) for point in points if _is_valid(point)], _MAX_INTERVALS
    )
    phases: list[HistoryPhase] = []
    for each in stretches:
        ended_s = each.begun_s + each.seconds
        if phases and phases[-1].image_size == each.image_size:
            phases[-1] = HistoryPhase(
                begun_s=phases[-1].begun_s,
                ended_s=max(phases[-1].ended_s, ended_s),
                image_size=each.image_size,
            )
        else:
            phases.append(
                HistoryPhase(begun_s=each.begun_s, ended_s=ended_s, image_size=each.image_size)
            )
    return ThroughputHistory(stretches=stretches, phases=phases)


def merge_neighbours(stretches: Sequence[RateInterval], most: int) -> list[RateInterval]:
    """Reduce to about `most` intervals by merging neighbours of one image size."""
    share = -(-len(stretches) // most) if stretches else 1
    groups: list[list[RateInterval]] = []
    for each in stretches:
        last = groups[-1] if groups else []
        if last and len(last) < share and last[-1].image_size == each.image_size:
            last.append(each)
        else:
            groups.append([each])
    return [group[0] if len(group) == 1 else _join(group) for group in groups]


def _join(group: Sequence[RateInterval]) -> RateInterval:
    return RateInterval(
        begun_s=group[0].begun_s,
        seconds=group[-1].begun_s + group[-1].seconds - group[0].begun_s,
        images_per_s=_mean(group, [each.images_per_s for each in group]),
        wait_pct=_mean(group, [each.wait_pct for each in group]),
        image_size=group[0].image_size,
    )


def _mean(group: Sequence[RateInterval], values: Sequence[float | None]) -> float | None:
    """Mean over the time of intervals; None if a value is unknown."""
    total = sum(each.seconds for each in group)
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sum(each.seconds * value for each, value in zip(group, known, strict=True)) / total


def _is_valid(point: ThroughputPoint) -> bool:
    """Return True if a point is possible: a file may contain anything."""
    return 0 < point.seconds < _LONG_S and abs(point.begun_s) < _LONG_S and point.batches > 0


def _stretch(point: ThroughputPoint) -> RateInterval:
    rate = None
    if point.samples is not None and point.samples >= 0:
        rate = finite(min(point.samples, 10**18) / point.seconds)
    return RateInterval(
        begun_s=point.begun_s,
        seconds=point.seconds,
        images_per_s=rate,
        wait_pct=finite(max(0.0, min(100.0, point.wait_ms / point.seconds / 10))),
        image_size=point.image_size,
    )
