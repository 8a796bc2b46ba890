"""Why a lane is idle at a moment, from what the others do.

Guarantees: pure; the spans of a lane cover the time once, in order, without gaps.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from feedline.report.lanes import Cause, Span

__all__ = ["NOISE_MS", "Idleness", "covered", "makes"]

NOISE_MS = 0.001
"""What is shorter is nothing."""

_Interval = tuple[float, float]


def makes(lane: str) -> bool:
    """Whether a lane makes batches: a worker's, or that of loading without workers."""
    return lane not in ("ready", "copy", "step")


class Idleness:
    """Tells why a lane is idle at a moment, from what the others do.

    Args:
        busy: the busy spans of each lane.
        waits: of the step.
        seen: from when to when the tasks of a worker were recorded: the latest ones that it has
            done, and not those that it had begun.
    """

    def __init__(
        self, busy: dict[str, list[Span]], waits: list[Span], seen: dict[str, _Interval]
    ) -> None:
        self.waits = _union(waits)
        self.seen = seen
        self._steps = _union([*waits, *busy.get("step", [])])
        self._copies = _union(busy.get("copy", []))
        self._makes = _union(s for name, spans in busy.items() if makes(name) for s in spans)
        edges = {
            edge
            for part in (self.waits, self._steps, self._copies, self._makes, seen.values())
            for interval in part
            for edge in interval
        }
        self._edges = sorted(edges)

    def idle(self, lane: str, begun: float, ended: float) -> Iterator[Span]:
        """Idle time of a lane, cut where its cause changes."""
        inner = self._edges[
            bisect.bisect_right(self._edges, begun) : bisect.bisect_left(self._edges, ended)
        ]
        parts = pairwise([begun, *inner, ended])
        for (stage, cause), group in groupby(
            parts, lambda part: self._cause((part[0] + part[1]) / 2, lane)
        ):
            same = list(group)
            yield Span(begun_ms=same[0][0], ended_ms=same[-1][1], stage=stage, cause=cause)

    def _cause(self, at: float, lane: str) -> tuple[str, Cause]:
        low, high = self.seen.get(lane, (at, at))
        if not low <= at <= high:
            return "unknown", ""
        if not _within(self._steps, at):
            return "idle", "between"
        if not _within(self.waits, at):
            return "idle", "behind"
        if _within(self._copies, at):
            return "idle", "copying"
        if _within(self._makes, at):
            return "idle", "others" if makes(lane) else "making"
        known = self.seen and all(low <= at <= high for low, high in self.seen.values())
        return "idle", "nobody" if known else "unknown"


def covered(name: str, busy: Sequence[Span], length: float, why: Idleness) -> list[Span]:
    """The spans of a lane, and between them its idle ones."""
    spans = _stacked(busy) if name == "ready" else _one_by_one(busy)
    found: list[Span] = []
    at = 0.0
    for span in [*spans, Span(begun_ms=length, ended_ms=length, stage="")]:
        if span.begun_ms - at > NOISE_MS:
            found += why.idle(name, at, span.begun_ms)
        if span.stage:
            found.append(span)
        at = max(at, span.ended_ms)
    return found


def _one_by_one(spans: Iterable[Span]) -> Iterator[Span]:
    """In order; where two overlap, as they cannot in one lane, the later one begins later."""
    at = 0.0
    for span in sorted(spans, key=lambda span: (span.begun_ms, span.ended_ms)):
        begun = max(at, span.begun_ms)
        if span.ended_ms > begun:
            yield Span(
                begun_ms=begun,
                ended_ms=span.ended_ms,
                stage=span.stage,
                depth=1,
                batch=span.batch,
            )
            at = span.ended_ms


def _stacked(spans: Sequence[Span]) -> Iterator[Span]:
    """Spans that overlap, as one after another with the depth that they have."""
    changes: dict[float, int] = {}
    for span in spans:
        changes[span.begun_ms] = changes.get(span.begun_ms, 0) + 1
        changes[span.ended_ms] = changes.get(span.ended_ms, 0) - 1
    depth = 0
    for low, high in pairwise(sorted(changes)):
        depth += changes[low]
        if depth > 0:
            yield Span(begun_ms=low, ended_ms=high, stage="queued", depth=depth)


def _union(spans: Iterable[Span]) -> list[_Interval]:
    """The stretches in which at least one of the spans goes on."""
    found: list[_Interval] = []
    for span in sorted(spans, key=lambda span: span.begun_ms):
        if found and span.begun_ms <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], span.ended_ms)
        elif span.ended_ms > span.begun_ms:
            found.append((span.begun_ms, span.ended_ms))
    return found


def _within(intervals: Sequence[_Interval], at: float) -> bool:
    k = bisect.bisect_right(intervals, (at, float("inf"))) - 1
    return k >= 0 and intervals[k][1] > at
