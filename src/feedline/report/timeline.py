"""What overlapped with what: an excerpt's events as lanes that are busy or idle at each moment.

Guarantees: pure; the spans of a lane cover the timeline once, in order, without gaps; idle time
has a cause, which follows from what the other lanes did at that moment. Events that lie outside
the steps, as those of a process with another clock do, are left out and counted.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from feedline.trace.run import Event, Excerpt

__all__ = ["CAUSES", "Cause", "Lane", "Span", "Timeline", "timeline_of", "too_large", "worst_step"]

Cause = Literal["", "making", "copying", "nobody", "unknown", "others", "between", "behind"]
"""Why a lane is idle; "" where it is busy."""

CAUSES: dict[Cause, str] = {
    "making": "the step waits: its batch is being made",
    "copying": "the step waits: its batch is being copied",
    "nobody": "the step waits, and no worker makes a batch",
    "unknown": "the step waits; what for was not recorded",
    "others": "idle, while the step waits for another worker",
    "between": "between two passes over the data",
    "behind": "idle behind a computing step, which costs nothing",
}
"""What each cause means, worst first."""

_NOISE_MS = 0.001
_LONG_MS = 1e12
_MOST_EVENTS, _MOST_LANES = 20_000, 200
_LANES = ("loading", "worker", "ready", "copy", "step")
_Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of a lane, in ms from the timeline's beginning.

    Args:
        begun_ms: when it begins.
        ended_ms: when it ends.
        stage: "make", "copy", "compute" or "queued"; "idle" between them; "unknown" where nothing
            was recorded of it.
        cause: of the idleness.
        depth: how many batches are ready, in the lane "ready"; elsewhere 1 or 0.
        batch: counted from the run's beginning; None where that was not recorded.
    """

    begun_ms: float
    ended_ms: float
    stage: str
    cause: Cause = ""
    depth: int = 0
    batch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Who, and what it did; without any spans where that was not recorded."""

    name: str
    spans: list[Span]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the time of each busy stage and of each cause of idleness, 0 to 1.

        "unknown" is waiting for what was not recorded, "blank" what was not recorded at all.
        """
        length = sum(span.ended_ms - span.begun_ms for span in self.spans)
        found: dict[str, float] = {}
        for span in self.spans:
            key = "blank" if span.stage == "unknown" else span.cause or span.stage
            found[key] = found.get(key, 0.0) + (span.ended_ms - span.begun_ms) / length
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Some steps, lane by lane.

    Args:
        title: which steps they are.
        begun_s: when they began, from the run's beginning.
        length_ms: from the first moment to the last.
        steps: how many there are.
        wait_ms: how long they waited, in sum.
        lanes: workers first, then the ready queue, the copy and the step.
        left_out: events that do not lie within the steps.
    """

    title: str
    begun_s: float
    length_ms: float
    steps: int
    wait_ms: float
    lanes: list[Lane]
    left_out: int


def timeline_of(excerpt: Excerpt, title: str) -> Timeline | None:
    """An excerpt's steps, all of them; None where it has none."""
    steps = [event for event in excerpt.events if event.lane == "step" and _sound(event)]
    if not steps:
        return None
    begun, ended = min(e.begun_ms for e in steps), max(e.ended_ms for e in steps)
    return _drawn(excerpt, title, begun, ended)


def worst_step(excerpt: Excerpt, before: int = 2) -> Timeline | None:
    """The step of an excerpt that waited longest, and some before it; None where none waited."""
    steps = sorted(
        (event for event in excerpt.events if event.lane == "step" and _sound(event)),
        key=lambda event: event.begun_ms,
    )
    waits = [event for event in steps if event.stage == "wait" and _length(event) > _NOISE_MS]
    if not waits:
        return None
    worst = max(waits, key=_length)
    begins = [e.begun_ms for e in steps if e.stage == "compute" and e.begun_ms < worst.begun_ms]
    begun = begins[-1 - before :][0] if begins else worst.begun_ms
    after = [e.ended_ms for e in steps if e.stage == "compute" and e.begun_ms >= worst.ended_ms]
    ended = after[0] if after else worst.ended_ms
    title = f"the longest wait of a step, {_length(worst):.1f} ms"
    return _drawn(excerpt, title, begun, ended)


def too_large(excerpt: Excerpt) -> bool:
    """Whether an excerpt has more events than a recorder writes."""
    lanes = {event.lane for event in excerpt.events}
    return len(excerpt.events) > _MOST_EVENTS or len(lanes) > _MOST_LANES


def _sound(event: Event) -> bool:
    return -_LONG_MS < event.begun_ms <= event.ended_ms < _LONG_MS


def _length(event: Event) -> float:
    return event.ended_ms - event.begun_ms


def _drawn(excerpt: Excerpt, title: str, begun: float, ended: float) -> Timeline | None:
    """What of an excerpt lies between two moments."""
    if not ended - begun > _NOISE_MS:
        return None
    steps = [event for event in excerpt.events if event.lane == "step" and _sound(event)]
    first, last = min(e.begun_ms for e in steps), max(e.ended_ms for e in steps)
    foreign = last - first  # so far from the steps nothing is recorded by the same clock
    lanes: dict[str, list[Span]] = {event.lane: [] for event in excerpt.events}
    known: dict[str, _Interval] = {}
    left_out = 0
    for event in excerpt.events:
        if not _sound(event) or (
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
        if _makes(name)
    }
    why = _Why(busy, [s for s in lanes.get("step", []) if s.stage == "wait"], seen)
    names = sorted(lanes.keys() | {"ready", "copy"}, key=_place)
    return Timeline(
        title=title,
        begun_s=excerpt.begun_s + begun / 1e3,
        length_ms=length,
        steps=sum(s.stage == "compute" and s.ended_ms > s.begun_ms for s in lanes["step"]),
        wait_ms=sum(high - low for low, high in why.waits),
        lanes=[
            Lane(name=name, spans=_covered(name, busy[name], length, why) if name in known else [])
            for name in names
        ],
        left_out=left_out,
    )


def _makes(lane: str) -> bool:
    """Whether a lane makes batches: a worker's, or that of loading without workers."""
    return lane not in ("ready", "copy", "step")


def _place(name: str) -> tuple[int, int, str]:
    """Where a lane stands among the others."""
    kind = name.split(" ")[0]
    number = re.search(r"\d{1,9}", name)
    place = _LANES.index(kind) if kind in _LANES else 1
    return place, int(number[0]) if number else 0, name


class _Why:
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
        self._makes = _union(s for name, spans in busy.items() if _makes(name) for s in spans)
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
            return "idle", "others" if _makes(lane) else "making"
        known = self.seen and all(low <= at <= high for low, high in self.seen.values())
        return "idle", "nobody" if known else "unknown"


def _covered(name: str, busy: Sequence[Span], length: float, why: _Why) -> list[Span]:
    """The spans of a lane, and between them its idle ones."""
    spans = _stacked(busy) if name == "ready" else _one_by_one(busy)
    found: list[Span] = []
    at = 0.0
    for span in [*spans, Span(begun_ms=length, ended_ms=length, stage="")]:
        if span.begun_ms - at > _NOISE_MS:
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
