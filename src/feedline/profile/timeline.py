"""Timeline of the steps of a recorded sample.

Guarantees: pure; idle time has a cause, which follows from the state of the other lanes at that
moment. Events outside the steps, such as those of a process with another clock, are left out and
counted.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from feedline.timing.run import Event, TimelineSample

__all__ = [
    "CAUSES",
    "NOISE_MS",
    "Cause",
    "IdleCauses",
    "Lane",
    "Span",
    "Timeline",
    "fill_idle",
    "makes_batches",
    "timeline_of",
    "too_large",
    "visible_lanes",
    "worst_step",
]


_LONG_MS = 1e12
_MAX_EVENTS, _MAX_LANES = 20_000, 200
_LANES = ("loading", "worker", "ready", "copy", "step")


def timeline_of(
    excerpt: TimelineSample, title: str, most_steps: int | None = None
) -> Timeline | None:
    """Return the timeline of a sample's steps, or of its latest ones; None if it has none."""
    steps = [event for event in excerpt.events if event.lane == "step" and _is_valid(event)]
    if not steps:
        return None
    begun, ended = min(e.begun_ms for e in steps), max(e.ended_ms for e in steps)
    if most_steps is not None:
        begins = sorted(event.begun_ms for event in steps if event.stage == "compute")
        begun = begins[-most_steps:][0] if begins else begun
    return _between(excerpt, title, begun, ended)


def worst_step(excerpt: TimelineSample, before: int = 2) -> Timeline | None:
    """Return the timeline of the longest-waiting step and some before it; None if none waited."""
    steps = sorted(
        (event for event in excerpt.events if event.lane == "step" and _is_valid(event)),
        key=lambda event: event.begun_ms,
    )
    waits = [event for event in steps if event.stage == "wait" and _length(event) > NOISE_MS]
    if not waits:
        return None
    worst = max(waits, key=_length)
    begins = [e.begun_ms for e in steps if e.stage == "compute" and e.begun_ms < worst.begun_ms]
    begun = begins[-1 - before :][0] if begins else worst.begun_ms
    after = [e.ended_ms for e in steps if e.stage == "compute" and e.begun_ms >= worst.ended_ms]
    ended = after[0] if after else worst.ended_ms
    title = f"the longest wait of a step, {_length(worst):.1f} ms"
    return _between(excerpt, title, begun, ended)


def too_large(excerpt: TimelineSample) -> bool:
    """Return True if a sample has more events than a recorder writes."""
    lanes = {event.lane for event in excerpt.events}
    return len(excerpt.events) > _MAX_EVENTS or len(lanes) > _MAX_LANES


def _is_valid(event: Event) -> bool:
    return -_LONG_MS < event.begun_ms <= event.ended_ms < _LONG_MS


def _length(event: Event) -> float:
    return event.ended_ms - event.begun_ms


def _between(excerpt: TimelineSample, title: str, begun: float, ended: float) -> Timeline | None:
    """Return the part of a sample between two moments."""
    if not ended - begun > NOISE_MS:
        return None
    steps = [event for event in excerpt.events if event.lane == "step" and _is_valid(event)]
    first, last = min(e.begun_ms for e in steps), max(e.ended_ms for e in steps)
    foreign = last - first  # the same clock records nothing this far from the steps
    lanes: dict[str, list[Span]] = {event.lane: [] for event in excerpt.events}
    known: dict[str, tuple[float, float]] = {}
    left_out = 0
    for event in excerpt.events:
        if not _is_valid(event) or (
            event.ended_ms < first - foreign or event.begun_ms > last + foreign
        ):
            left_out += 1
            continue
        low, high = known.get(event.lane, (event.begun_ms, event.ended_ms))
        known[event.lane] = min(low, event.begun_ms), max(high, event.ended_ms)
        lanes[event.lane].append(
            Span(
                begun_ms=min(max(event.begun_ms, begun), ended) - begun,
                ended_ms=min(max(event.ended_ms, begun), ended) - begun,
                stage=event.stage,
                batch=event.batch if event.batch >= 0 else None,
            )
        )
    length = ended - begun
    busy = {name: [s for s in spans if s.stage != "wait"] for name, spans in lanes.items()}
    seen = {
        name: (max(0.0, low - begun), min(length, high - begun))
        for name, (low, high) in known.items()
        if makes_batches(name)
    }
    why = IdleCauses(busy, [s for s in lanes.get("step", []) if s.stage == "wait"], seen)
    names = sorted(lanes.keys() | {"ready", "copy"}, key=_place)
    return Timeline(
        title=title,
        begun_s=excerpt.begun_s + begun / 1e3,
        length_ms=length,
        steps=sum(s.stage == "compute" and s.ended_ms > s.begun_ms for s in lanes["step"]),
        wait_ms=sum(high - low for low, high in why.waits),
        lanes=[
            Lane(name=name, spans=fill_idle(name, busy[name], length, why) if name in known else [])
            for name in names
        ],
        left_out=left_out,
    )


def _place(name: str) -> tuple[int, int, str]:
    """Return the sort key of a lane."""
    kind = name.split(" ")[0]
    number = re.search(r"\d{1,9}", name)
    place = _LANES.index(kind) if kind in _LANES else 1
    return place, int(number[0]) if number else 0, name


NOISE_MS = 0.001
"""Shorter intervals are ignored."""

_Interval = tuple[float, float]


def makes_batches(lane: str) -> bool:
    """Return True if a lane makes batches: a worker's, or that of loading without workers."""
    return lane not in ("ready", "copy", "step")


class IdleCauses:
    """Finds the cause of a lane's idle time from the state of the other lanes.

    Args:
        busy: busy spans of each lane.
        waits: waiting spans of the step.
        seen: time range of each worker's recorded tasks: the latest finished ones, without
            unfinished ones.
    """

    def __init__(
        self, busy: dict[str, list[Span]], waits: list[Span], seen: dict[str, _Interval]
    ) -> None:
        self.waits = _union(waits)
        self.seen = seen
        self._steps = _union([*waits, *busy.get("step", [])])
        self._copies = _union(busy.get("copy", []))
        self._makes = _union(
            s for name, spans in busy.items() if makes_batches(name) for s in spans
        )
        edges = {
            edge
            for part in (self.waits, self._steps, self._copies, self._makes, seen.values())
            for interval in part
            for edge in interval
        }
        self._edges = sorted(edges)

    def idle(self, lane: str, begun: float, ended: float) -> Iterator[Span]:
        """Yield the idle time of a lane, split if its cause changes."""
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
            return "idle", "others" if makes_batches(lane) else "making"
        known = self.seen and all(low <= at <= high for low, high in self.seen.values())
        return "idle", "nobody" if known else "unknown"


def fill_idle(name: str, busy: Sequence[Span], length: float, why: IdleCauses) -> list[Span]:
    """Return the busy spans of a lane, with idle spans between them."""
    spans = _stack(busy) if name == "ready" else _one_by_one(busy)
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
    """Yield spans in order; of two that overlap, the later one is shortened."""
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


def _stack(spans: Sequence[Span]) -> Iterator[Span]:
    """Convert overlapping spans to consecutive ones with their depth."""
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
    """Return the intervals covered by at least one of the spans."""
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


Cause = Literal["", "making", "copying", "nobody", "unknown", "others", "between", "behind"]
"""Cause of a lane's idle time; "" if it is busy."""

CAUSES: dict[Cause, str] = {
    "making": "the step waits: its batch is being made",
    "copying": "the step waits: its batch is being copied",
    "nobody": "the step waits, and no worker makes a batch",
    "unknown": "the step waits; the reason was not recorded",
    "others": "idle, while the step waits for another worker",
    "between": "between two passes over the data",
    "behind": "idle while the step computes, which costs nothing",
}
"""Meaning of each cause, worst first."""

_MAX_WORKERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Part of a lane, in ms from the timeline's start.

    Args:
        begun_ms: start.
        ended_ms: end.
        stage: "make", "copy", "compute" or "queued"; "idle" between them; "unknown" if nothing was
            recorded.
        cause: of the idle time.
        depth: number of ready batches, in the lane "ready"; elsewhere 1 or 0.
        batch: counted from the run's start; None if not recorded.
    """

    begun_ms: float
    ended_ms: float
    stage: str
    cause: Cause = ""
    depth: int = 0
    batch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One worker, queue, copy stream or step; without spans if it was not recorded."""

    name: str
    spans: list[Span]

    @property
    def shares(self) -> dict[str, float]:
        """Share of the time of each busy stage and of each cause of idle time, 0 to 1.

        "unknown" is a wait whose reason was not recorded, "blank" is time that was not recorded.
        """
        length = sum(span.ended_ms - span.begun_ms for span in self.spans)
        found: dict[str, float] = {}
        for span in self.spans:
            key = "blank" if span.stage == "unknown" else span.cause or span.stage
            found[key] = found.get(key, 0.0) + (span.ended_ms - span.begun_ms) / length
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Steps with their lanes.

    Args:
        title: which steps.
        begun_s: their start, from the run's start.
        length_ms: from the first moment to the last.
        steps: number of steps.
        wait_ms: sum of their waits.
        lanes: workers first, then the ready queue, the copy and the step.
        left_out: number of events outside the steps.
    """

    title: str
    begun_s: float
    length_ms: float
    steps: int
    wait_ms: float
    lanes: list[Lane]
    left_out: int


def visible_lanes(timeline: Timeline) -> tuple[list[Lane], int]:
    """Return the lanes that fit into a picture, and the number of hidden workers."""
    others = [lane for lane in timeline.lanes if lane.name in ("ready", "copy", "step")]
    workers = [lane for lane in timeline.lanes if lane not in others]
    return [*workers[:_MAX_WORKERS], *others], max(0, len(workers) - _MAX_WORKERS)
