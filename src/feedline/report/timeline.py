"""What overlapped with what: the timelines of an excerpt.

Guarantees: pure; idle time has a cause, which follows from what the other lanes did at that
moment. Events that lie outside the steps, as those of a process with another clock do, are left
out and counted.
"""

from __future__ import annotations

import re

from feedline.report.idleness import NOISE_MS, Idleness, covered, makes
from feedline.report.lanes import Lane, Span, Timeline
from feedline.trace.run import Event, Excerpt

__all__ = ["timeline_of", "too_large", "worst_step"]

_LONG_MS = 1e12
_MOST_EVENTS, _MOST_LANES = 20_000, 200
_LANES = ("loading", "worker", "ready", "copy", "step")


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
    waits = [event for event in steps if event.stage == "wait" and _length(event) > NOISE_MS]
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
    if not ended - begun > NOISE_MS:
        return None
    steps = [event for event in excerpt.events if event.lane == "step" and _sound(event)]
    first, last = min(e.begun_ms for e in steps), max(e.ended_ms for e in steps)
    foreign = last - first  # so far from the steps nothing is recorded by the same clock
    lanes: dict[str, list[Span]] = {event.lane: [] for event in excerpt.events}
    known: dict[str, tuple[float, float]] = {}
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
        if makes(name)
    }
    why = Idleness(busy, [s for s in lanes.get("step", []) if s.stage == "wait"], seen)
    names = sorted(lanes.keys() | {"ready", "copy"}, key=_place)
    return Timeline(
        title=title,
        begun_s=excerpt.begun_s + begun / 1e3,
        length_ms=length,
        steps=sum(s.stage == "compute" and s.ended_ms > s.begun_ms for s in lanes["step"]),
        wait_ms=sum(high - low for low, high in why.waits),
        lanes=[
            Lane(name=name, spans=covered(name, busy[name], length, why) if name in known else [])
            for name in names
        ],
        left_out=left_out,
    )


def _place(name: str) -> tuple[int, int, str]:
    """Where a lane stands among the others."""
    kind = name.split(" ")[0]
    number = re.search(r"\d{1,9}", name)
    place = _LANES.index(kind) if kind in _LANES else 1
    return place, int(number[0]) if number else 0, name
