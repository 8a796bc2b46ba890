"""Shapes of charts, in percent of their width and height, so that they fit any screen.

Guarantees: pure; every shape is identified by its class and by text, never by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.profile.history import RateInterval, ThroughputHistory
from feedline.profile.sentences import StepPart
from feedline.profile.timeline import CAUSES, Lane
from feedline.text import as_ms, as_percent, as_rate, as_seconds

__all__ = [
    "Mark",
    "Shape",
    "ThroughputChart",
    "describe_lane",
    "lane_shapes",
    "split_shapes",
    "throughput_chart",
    "ticks",
    "time_marks",
]

_MIN_LABEL = 12.0  # percent of the width that a phase's name needs on a small screen

STAGES = {
    "make": "makes a batch",
    "compute": "the step computes",
    "copy": "a copy is in progress",
    "queued": "ready",
    "blank": "not recorded",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Rectangle, in percent, with its kind and its title."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Position on an axis, in percent, with its label, which may be empty."""

    at: float
    label: str


def lane_shapes(lane: Lane, length_ms: float) -> list[Shape]:
    """Shapes of the spans of a lane; the height of the ready queue shows its depth."""
    deepest = max([1, *(span.depth for span in lane.spans)])
    shapes = []
    for span in lane.spans:
        if span.stage == "unknown":
            continue
        height = 100.0 * span.depth / deepest if span.stage == "queued" else 100.0
        label = CAUSES[span.cause] if span.cause else STAGES.get(span.stage, span.stage)
        if span.stage == "queued":
            label = f"{span.depth} ready"
        batch = "" if span.batch is None else f", batch {span.batch}"
        length = as_ms(span.ended_ms - span.begun_ms)
        shapes.append(
            Shape(
                x=100 * span.begun_ms / length_ms,
                y=100.0 - height,
                width=100 * (span.ended_ms - span.begun_ms) / length_ms,
                height=height,
                kind=span.cause or span.stage,
                title=f"{label}{batch}: {length} from {as_ms(span.begun_ms)} on",
            )
        )
    return shapes


def describe_lane(lane: Lane) -> str:
    """Describe a lane in words, for screen readers."""
    if not lane.spans:
        return f"{lane.name}: not recorded"
    parts = [
        f"{CAUSES.get(key) or STAGES.get(key, key)} {as_percent(100 * share)}"  # type: ignore[call-overload]
        for key, share in sorted(lane.shares.items(), key=lambda item: -item[1])
    ]
    return f"{lane.name}: {', '.join(parts)}"


def split_shapes(parts: Sequence[StepPart]) -> list[Shape]:
    """Shapes of the parts of the mean step, side by side."""
    shapes: list[Shape] = []
    at = 0.0
    for part in parts:
        if part.share:
            kind = {"wait": "making", "copy": "copying"}.get(part.key, part.key)
            title = f"{part.name}: {part.seconds}, {as_percent(100 * part.share)}"
            shapes.append(Shape(at, 0.0, 100 * part.share, 100.0, kind, title))
            at += 100 * part.share
    return shapes


def ticks(length: float, most: int = 5) -> list[float]:
    """Round positions on an axis from 0 to `length`: zero and at most `most` more."""
    if not length > 0 or not math.isfinite(length):
        return []
    rough = length / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    return [step * k for k in range(int(length / step * (1 + 1e-9)) + 1)]


def time_marks(length_s: float) -> list[Mark]:
    """Marks of a time axis, at round positions in a suitable unit."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
    name = next((name for name in reversed(units) if length_s >= 2 * units[name]), "ms")
    unit = units[name]
    return [
        Mark(100 * (each * unit) / length_s, f"{each:g} {name}" if each else "0")
        for each in ticks(length_s / unit)
    ]


@dataclass(frozen=True, slots=True)
class ThroughputChart:
    """Throughput over time, and data wait below it.

    Args:
        rates: a bar for each interval.
        waits: a bar for each interval.
        phases: start of each phase, with its name if there is space.
        heights: marks of the axis of rates.
        times: marks of the axis of time.
        words: description of the rates, in a sentence.
        wait_words: description of the data wait, in a sentence.
    """

    rates: list[Shape]
    waits: list[Shape]
    phases: list[Mark]
    heights: list[Mark]
    times: list[Mark]
    words: str
    wait_words: str


def throughput_chart(
    course: ThroughputHistory, stretches: Sequence[RateInterval]
) -> ThroughputChart | None:
    """Chart of intervals; None if no rate was measured."""
    rates = sorted(each.images_per_s for each in stretches if each.images_per_s is not None)
    if not rates:
        return None
    waits = sorted(each.wait_pct for each in stretches if each.wait_pct is not None)
    begun = min(each.begun_s for each in stretches)
    length = max(each.begun_s + each.seconds for each in stretches) - begun
    levels = ticks(rates[-1])
    top = rates[-1] * 1.08 if rates[-1] > 0 else 1.0

    def position(seconds: float) -> float:
        return 100 * (seconds - begun) / length

    def place(each: RateInterval) -> str:
        size = "" if each.image_size is None else f", {each.image_size} px"
        return f"{as_seconds(each.begun_s)} after the start{size}"

    def bar(each: RateInterval, height: float, kind: str, label: str) -> Shape:
        width, title = 100 * each.seconds / length, f"{label}, {place(each)}"
        return Shape(position(each.begun_s), 100 - height, width, height, kind, title)

    phases = []
    for phase in course.phases:
        wide = 100 * (phase.ended_s - phase.begun_s) / length >= _MIN_LABEL
        name = "no size" if phase.image_size is None else f"{phase.image_size} px"
        phases.append(Mark(max(0.0, position(phase.begun_s)), name if wide else ""))
    return ThroughputChart(
        rates=[
            bar(each, 100 * each.images_per_s / top, "rate", as_rate(each.images_per_s))
            for each in stretches
            if each.images_per_s is not None
        ],
        waits=[
            bar(each, each.wait_pct, "making", f"{as_percent(each.wait_pct)} data wait")
            for each in stretches
            if each.wait_pct is not None
        ],
        phases=phases,
        heights=[Mark(100 - 100 * level / top, f"{level:g}") for level in levels if level],
        times=time_marks(length),
        words=(
            f"Images per second over {as_seconds(length)}: median "
            f"{as_rate(rates[len(rates) // 2])}, from {as_rate(rates[0])} to {as_rate(rates[-1])}."
        ),
        wait_words=(
            f"Data wait: from {as_percent(waits[0])} to {as_percent(waits[-1])} of the time."
            if waits
            else "Data wait: not measured."
        ),
    )
