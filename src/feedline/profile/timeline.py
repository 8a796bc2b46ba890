"""Timelines of recorded steps: what each worker and the step did at every moment.

Guarantees: pure; idle time has a cause, which follows from the state of the other lanes at that
moment. Events outside the steps, such as those of a process with another clock, are left out and
counted.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal

from feedline.text import as_ms, as_percent, as_seconds, plural
from feedline.timing.run import Event, TimelineSample

Cause = Literal["", "making", "nobody", "unknown", "others", "between", "behind"]
"""Cause of a lane's idle time; "" if it is busy."""

CAUSES: dict[Cause, str] = {
    "making": "the step waits: its batch is being made",
    "nobody": "the step waits, and no worker makes a batch",
    "unknown": "the step waits; the reason was not recorded",
    "others": "idle, while the step waits for another worker",
    "between": "between two passes over the data",
    "behind": "idle while the step computes, which costs nothing",
}
"""Meaning of each cause, worst first."""

STATES: dict[str, str] = {
    "make": "a worker makes a batch",
    "compute": "the step computes",
    **{str(cause): meaning for cause, meaning in CAUSES.items()},
    "blank": "blank: not recorded, or between two passes over the data",
}
"""Meaning of each state of a lane."""

NO_TIMELINE = "No single steps were recorded, so there is no timeline."

_STEP = "step"
_LONG_MS = 1e12
_NOISE_MS = 0.001  # shorter intervals are ignored
_MAX_WORKERS = 16  # drawn
_STEPS_BEFORE = 2  # the longest wait
_MIN_VISIBLE = 0.003  # share of a lane

_Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Part of a lane, in ms from the timeline's start.

    Args:
        begun_ms: start.
        ended_ms: end.
        stage: "make" or "compute"; "idle" between them; "unknown" if nothing was recorded.
        cause: of the idle time.
        batch: counted from the run's start; None if not recorded.
    """

    begun_ms: float
    ended_ms: float
    stage: str
    cause: Cause = ""
    batch: int | None = None

    @property
    def length_ms(self) -> float:
        """Length."""
        return self.ended_ms - self.begun_ms

    @property
    def state(self) -> str:
        """Busy stage or cause of the idle time; "blank" if nothing was recorded."""
        return "blank" if self.stage == "unknown" else self.cause or self.stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One worker, or the step; without spans if its events are left out."""

    name: str
    spans: list[Span]

    @property
    def shares(self) -> dict[str, float]:
        """Share of the time of each state, 0 to 1."""
        length = sum(span.length_ms for span in self.spans)
        found: dict[str, float] = {}
        for span in self.spans:
            found[span.state] = found.get(span.state, 0.0) + span.length_ms / length
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
        lanes: workers first, then the step.
        left_out: number of events outside the steps.
    """

    title: str
    begun_s: float
    length_ms: float
    steps: int
    wait_ms: float
    lanes: list[Lane]
    left_out: int


def timeline_heading(timeline: Timeline) -> str:
    """Return the heading of a timeline."""
    first, rest = timeline.title[:1].upper(), timeline.title[1:]
    share = timeline.wait_ms / timeline.length_ms * 100
    return (
        f"{first}{rest}: {plural(timeline.steps, 'step')} in {as_ms(timeline.length_ms)}, data "
        f"wait {as_percent(share)}, {as_seconds(timeline.begun_s)} after the start"
    )


def visible_lanes(timeline: Timeline) -> tuple[list[Lane], int]:
    """Return the lanes that fit into a picture, and the number of hidden workers."""
    workers = [lane for lane in timeline.lanes if lane.name != _STEP]
    steps = [lane for lane in timeline.lanes if lane.name == _STEP]
    return [*workers[:_MAX_WORKERS], *steps], max(0, len(workers) - _MAX_WORKERS)


def legend(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    """Return the visible states of timelines, with their meaning."""
    shares = [share for each in timelines for lane in each.lanes for share in lane.shares.items()]
    visible = {state for state, share in shares if share > _MIN_VISIBLE}
    if "between" in visible:
        visible = visible - {"between"} | {"blank"}
    return [(state, meaning) for state, meaning in STATES.items() if state in visible]


def timelines_of(samples: Sequence[TimelineSample]) -> tuple[list[Timeline], list[str]]:
    """Return the timelines of a run's samples, and remarks on missing parts."""
    found, remarks = [], []
    for each in samples:
        latest = each.why == "latest"
        made = timeline_of(each, "the latest steps") if latest else worst_step(each)
        found += [made] if made else []
    if outside := sum(timeline.left_out for timeline in found):
        remarks.append(
            f"{plural(outside, 'event')} outside the steps they belong to, not drawn: their process"
            " has another clock, as in another container or on another machine"
        )
    return found, remarks


def timeline_of(
    sample: TimelineSample, title: str, most_steps: int | None = None
) -> Timeline | None:
    """Return the timeline of a sample's steps, or of its latest ones; None if it has none."""
    steps = _steps(sample)
    if not steps:
        return None
    begins = [event.begun_ms for event in steps if event.stage == "compute"]
    begun = steps[0].begun_ms if most_steps is None or not begins else begins[-most_steps:][0]
    return _cut(sample, title, begun, max(event.ended_ms for event in steps))


def worst_step(sample: TimelineSample) -> Timeline | None:
    """Return the timeline of the longest-waiting step and some before it; None if none waited."""
    steps = _steps(sample)
    waits = [event for event in steps if event.stage == "wait" and _length(event) > _NOISE_MS]
    if not waits:
        return None
    worst = max(waits, key=_length)
    begins = [e.begun_ms for e in steps if e.stage == "compute" and e.begun_ms < worst.begun_ms]
    begun = begins[-1 - _STEPS_BEFORE :][0] if begins else worst.begun_ms
    after = [e.ended_ms for e in steps if e.stage == "compute" and e.begun_ms >= worst.ended_ms]
    title = f"the longest wait of a step, {as_ms(_length(worst))}"
    return _cut(sample, title, begun, after[0] if after else worst.ended_ms)


def _steps(sample: TimelineSample) -> list[Event]:
    steps = [event for event in sample.events if event.lane == _STEP and _is_valid(event)]
    return sorted(steps, key=lambda event: event.begun_ms)


def _is_valid(event: Event) -> bool:
    return -_LONG_MS < event.begun_ms <= event.ended_ms < _LONG_MS


def _length(event: Event) -> float:
    return event.ended_ms - event.begun_ms


def _cut(sample: TimelineSample, title: str, begun: float, ended: float) -> Timeline | None:
    """Return the part of a sample between two moments."""
    length, steps = ended - begun, _steps(sample)
    if not length > _NOISE_MS:
        return None
    first, last = steps[0].begun_ms, max(event.ended_ms for event in steps)
    foreign = last - first  # the same clock records nothing this far from the steps
    kept: dict[str, list[Span]] = {event.lane: [] for event in sample.events}
    for event in filter(_is_valid, sample.events):
        if event.ended_ms >= first - foreign and event.begun_ms <= last + foreign:
            span = Span(
                begun_ms=min(max(event.begun_ms, begun), ended) - begun,
                ended_ms=min(max(event.ended_ms, begun), ended) - begun,
                stage=event.stage,
                batch=event.batch if event.batch >= 0 else None,
            )
            kept[event.lane].append(span)
    causes = _IdleCauses(kept)
    return Timeline(
        title=title,
        begun_s=sample.begun_s + begun / 1e3,
        length_ms=length,
        steps=sum(span.stage == "compute" and span.length_ms > 0 for span in kept[_STEP]),
        wait_ms=sum(high - low for low, high in causes.waits),
        lanes=[
            Lane(name=name, spans=_fill(name, kept[name], length, causes) if kept[name] else [])
            for name in sorted(kept, key=_lane_order)
        ],
        left_out=len(sample.events) - sum(map(len, kept.values())),
    )


def _lane_order(name: str) -> tuple[bool, int, str]:
    number = re.search(r"\d{1,9}", name)
    return name == _STEP, int(number[0]) if number else 0, name


class _IdleCauses:
    """Finds the cause of a lane's idle time from the state of the other lanes."""

    def __init__(self, lanes: dict[str, list[Span]]) -> None:
        workers = {name: spans for name, spans in lanes.items() if name != _STEP and spans}
        self.waits = _union(span for span in lanes[_STEP] if span.stage == "wait")
        self._steps = _union(lanes[_STEP])
        self._makes = _union(s for spans in workers.values() for s in spans if s.stage != "wait")
        # Time range of each worker's tasks: the latest finished ones, without unfinished ones.
        self._seen = {
            name: (min(span.begun_ms for span in spans), max(span.ended_ms for span in spans))
            for name, spans in workers.items()
        }
        parts = (self.waits, self._steps, self._makes, self._seen.values())
        self._edges = sorted({edge for part in parts for interval in part for edge in interval})

    def idle(self, lane: str, begun: float, ended: float) -> Iterator[Span]:
        """Yield the idle time of a lane, split if its cause changes."""
        low, high = bisect.bisect_right(self._edges, begun), bisect.bisect_left(self._edges, ended)
        parts = pairwise([begun, *self._edges[low:high], ended])
        for (stage, cause), group in groupby(parts, lambda part: self._cause(sum(part) / 2, lane)):
            same = list(group)
            yield Span(begun_ms=same[0][0], ended_ms=same[-1][1], stage=stage, cause=cause)

    def _cause(self, at: float, lane: str) -> tuple[str, Cause]:
        low, high = self._seen.get(lane, (at, at))
        if not low <= at <= high:
            return "unknown", ""
        if not _within(self._steps, at):
            return "idle", "between"
        if not _within(self.waits, at):
            return "idle", "behind"
        if _within(self._makes, at):
            return "idle", "making" if lane == _STEP else "others"
        known = self._seen and all(low <= at <= high for low, high in self._seen.values())
        return "idle", "nobody" if known else "unknown"


def _fill(name: str, spans: Sequence[Span], length: float, causes: _IdleCauses) -> list[Span]:
    """Return the busy spans of a lane, with idle spans between them."""
    found: list[Span] = []
    at = 0.0
    busy = _one_by_one(span for span in spans if span.stage != "wait")
    for span in [*busy, Span(begun_ms=length, ended_ms=length, stage="")]:
        if span.begun_ms - at > _NOISE_MS:
            found += causes.idle(name, at, span.begun_ms)
        if span.stage:
            found.append(span)
        at = max(at, span.ended_ms)
    return found


def _one_by_one(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans in order; of two that overlap, the later one is shortened."""
    at = 0.0
    for span in sorted(spans, key=lambda span: (span.begun_ms, span.ended_ms)):
        if span.ended_ms > max(at, span.begun_ms):
            yield replace(span, begun_ms=max(at, span.begun_ms))
            at = span.ended_ms


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
