"""HTML and SVG views: a report as one page, a diagnosis in a notebook, charts.

All shapes are in percent of their picture, so that they fit any screen; all colours are in
`templates/chart.css`.

Guarantees: no script, no other file, no network request; names of classes, files and machines are
escaped; light and dark like the reader's system; each picture has a description in words, and
hatching or dashes in addition to colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from feedline.profile.finding import Diagnosis, as_gain
from feedline.profile.report import (
    EpochMetrics,
    PartOfTime,
    RateInterval,
    ReportData,
    describe_throughput,
    headline,
    merge_neighbours,
    parts_of_time,
    recording_of,
)
from feedline.profile.tables import report_tables
from feedline.profile.timeline import (
    BLANK,
    CAUSES,
    NO_TIMELINE,
    STAGES,
    Lane,
    Timeline,
    timeline_heading,
    visible_lanes,
)
from feedline.text import (
    as_ms,
    as_percent,
    as_rate,
    as_seconds,
    as_share,
    plural,
    printable,
)

__all__ = [
    "describe_lane",
    "diagnosis_html",
    "lane_shapes",
    "legend_entries",
    "page",
    "picture",
    "template",
    "ticks",
    "training_curves",
]

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_BARS, _MAX_EPOCHS = 160, 200
_MIN_LABEL = 12.0  # percent of the width that a phase's name needs on a small screen
_MIN_VISIBLE = 0.003  # share of a lane
_SIGNS = {"not input-bound": ("good", "\u2713"), "inconclusive": ("open", "?")}
_PART_KINDS = {"wait": "making", "copy": "copying", "core": "others", "between": "behind"}
_MEANINGS = {
    **STAGES,
    **{str(cause): meaning for cause, meaning in CAUSES.items()},
}
"""Meanings of stages, and of causes of idle time."""
_LANE_PX, _STEP_PX = 16, 20


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def template(name: str) -> Template:
    """Load a template. Values inserted into it are escaped."""
    return _environment().get_template(name)


def page(report: ReportData, name: str) -> str:
    """Render a report.

    Args:
        report: of the run.
        name: name of the run: its path.
    """
    return template("page.html").render(
        scope=":root, svg",
        name=printable(name),
        about=recording_of(report),
        judged=_diagnosis(report),
        no_timeline=NO_TIMELINE,
        pictures=[picture(timeline) for timeline in report.timelines],
        legend=legend_entries(report.timelines),
        history=_history(merge_neighbours(report.throughput_history, _MAX_BARS)),
        curves=training_curves(report.epochs_trained, report.resumed_at_epoch),
        trains=bool(report.settings),
        tables=report_tables(report),
        notes=[printable(note) for note in report.notes],
        version=report.feedline,
    )


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Render a diagnosis for a page of a notebook."""
    return template("notebook.html").render(scope="&, svg", judged=_diagnosis(diagnosis))


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the values for the template of a diagnosis."""
    tone, sign = _SIGNS.get(diagnosis.bound, ("bad", "!"))
    parts = parts_of_time(diagnosis)
    shares = ", ".join(f"{each.name} {as_share(each.share)}" for each in parts)
    return {
        "tone": tone,
        "sign": sign,
        "headline": headline(diagnosis),
        "split": _split_shapes(parts),
        "split_words": f"Time: {shares}",
        "parts": [
            {
                "kind": _PART_KINDS.get(each.key, each.key),
                "name": each.name,
                "seconds": each.seconds,
                "share": "" if each.share is None else as_share(each.share),
                "step_ms": each.step_ms,
            }
            for each in parts
        ],
        "throughput": describe_throughput(diagnosis),
        "findings": [
            {
                "rule": printable(each.rule),
                "cause": printable(each.cause),
                "evidence": printable(each.evidence),
                "fix": printable(each.fix),
                "gain": as_gain(each.gain),
            }
            for each in diagnosis.findings
        ],
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """Rectangle, in percent, with its kind (a class of `chart.css`) and its title."""

    x: float
    width: float
    kind: str
    title: str
    height: float = 100.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Position on an axis, in percent, with its label, which may be empty."""

    at: float
    label: str


def _split_shapes(parts: Sequence[PartOfTime]) -> list[Shape]:
    """Shapes of the parts of a run's time, side by side."""
    shapes: list[Shape] = []
    at = 0.0
    for part in parts:
        if part.share:
            title = f"{part.name}: {part.seconds}, {as_share(part.share)}"
            shapes.append(Shape(at, 100 * part.share, _PART_KINDS.get(part.key, part.key), title))
            at += 100 * part.share
    return shapes


def picture(timeline: Timeline) -> dict[str, Any]:
    """Return the values for the picture of a timeline."""
    lanes, hidden = visible_lanes(timeline)
    return {
        "about": timeline_heading(timeline),
        "lanes": [
            {
                "name": printable(lane.name),
                "shapes": lane_shapes(lane, timeline.length_ms),
                "words": printable(describe_lane(lane)),
                "height": _STEP_PX if lane.name == "step" else _LANE_PX,
            }
            for lane in lanes
        ],
        "hidden": plural(hidden, "more worker") if hidden else "",
        "times": _time_marks(timeline.length_ms / 1e3),
    }


def lane_shapes(lane: Lane, length_ms: float) -> list[Shape]:
    """Shapes of the spans of a lane."""
    shapes = []
    for span in lane.spans:
        if span.stage != "unknown":
            label = _MEANINGS.get(span.cause or span.stage, span.stage)
            batch = "" if span.batch is None else f", batch {span.batch}"
            title = f"{label}{batch}: {as_ms(span.length_ms)} from {as_ms(span.begun_ms)} on"
            x, width = (100 * ms / length_ms for ms in (span.begun_ms, span.length_ms))
            shapes.append(Shape(x, width, span.cause or span.stage, title))
    return shapes


def describe_lane(lane: Lane) -> str:
    """Describe a lane in words, for screen readers."""
    names = _MEANINGS | {"blank": "not recorded"}
    shares = sorted(lane.shares.items(), key=lambda item: -item[1])
    parts = [f"{names.get(key, key)} {as_share(share)}" for key, share in shares]
    return f"{lane.name}: {', '.join(parts) or 'not recorded'}"


def legend_entries(timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
    """Return the legend of timelines: the visible kinds, with their meaning."""
    shares = [share for each in timelines for lane in each.lanes for share in lane.shares.items()]
    kinds = {kind for kind, share in shares if share > _MIN_VISIBLE}
    entries = [item for item in _MEANINGS.items() if item[0] in kinds - {"between"}]
    return [*entries, *([("between", BLANK)] if kinds & {"blank", "between"} else [])]


def ticks(length: float, most: int = 5) -> list[float]:
    """Round positions on an axis from 0 to `length`: zero and at most `most` more."""
    if not length > 0 or not math.isfinite(length):
        return []
    rough = length / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    return [step * k for k in range(int(length / step * (1 + 1e-9)) + 1)]


def _time_marks(length_s: float) -> list[Mark]:
    """Marks of a time axis, at round positions in a suitable unit."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
    name = next((name for name in reversed(units) if length_s >= 2 * units[name]), "ms")
    unit = units[name]
    return [
        Mark(100 * (each * unit) / length_s, f"{each:g} {name}" if each else "0")
        for each in ticks(length_s / unit)
    ]


def _history(intervals: Sequence[RateInterval]) -> dict[str, Any] | None:
    """Chart of throughput over time, with the data wait below it; None if no rate is known."""
    rates = sorted(each.images_per_s for each in intervals if each.images_per_s is not None)
    if not rates:
        return None
    waits = sorted(each.wait_pct for each in intervals if each.wait_pct is not None)
    begun = min(each.begun_s for each in intervals)
    length = max(each.ended_s for each in intervals) - begun
    top = rates[-1] * 1.08 if rates[-1] > 0 else 1.0

    def bar(each: RateInterval, height: float, kind: str, label: str) -> Shape:
        size = "" if each.image_size is None else f", {each.image_size} px"
        title = f"{label}, {as_seconds(each.begun_s)} after the start{size}"
        x, width = 100 * (each.begun_s - begun) / length, 100 * each.seconds / length
        return Shape(x, width, kind, title, height)

    phases = []
    for size, group in groupby(intervals, lambda each: each.image_size):
        own = list(group)
        at, end = (100 * (s - begun) / length for s in (own[0].begun_s, own[-1].ended_s))
        label = "no size" if size is None else f"{size} px"
        phases.append(Mark(at, label if end - at >= _MIN_LABEL else ""))
    return {
        "rates": [
            bar(each, 100 * each.images_per_s / top, "rate", as_rate(each.images_per_s))
            for each in intervals
            if each.images_per_s is not None
        ],
        "waits": [
            bar(each, each.wait_pct, "making", f"{as_percent(each.wait_pct)} data wait")
            for each in intervals
            if each.wait_pct is not None
        ],
        "phases": phases,
        "heights": [Mark(100 - 100 * rate / top, f"{rate:g}") for rate in ticks(rates[-1])[1:]],
        "times": _time_marks(length),
        "words": f"Images per second over {as_seconds(length)}: median "
        f"{as_rate(rates[len(rates) // 2])}, from {as_rate(rates[0])} to {as_rate(rates[-1])}.",
        "wait_words": f"Data wait: from {as_percent(waits[0])} to {as_percent(waits[-1])} of the "
        "time."
        if waits
        else "Data wait: not measured.",
    }


def training_curves(
    epochs: Sequence[EpochMetrics], resumed_at_epoch: int | None = None
) -> dict[str, Any] | None:
    """Chart of training and validation loss; None without epochs. Unknown values leave a gap."""
    if not epochs:
        return None
    first, last = epochs[0].epoch - 1, epochs[-1].epoch
    share = -(-len(epochs) // _MAX_EPOCHS)
    drawn = [each for k, each in enumerate(epochs) if (len(epochs) - 1 - k) % share == 0]
    kinds: dict[str, Callable[[EpochMetrics], float | None]] = {
        "training": lambda each: each.loss,
        "validation": lambda each: each.val_loss,
    }
    values = [value for of in kinds.values() for each in drawn if (value := of(each)) is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
    bottom, span = low - margin, high - low + 2 * margin

    def x(epoch: float) -> float:
        return 100 * (epoch - first) / (last - first)

    lines: dict[str, str] = {}
    words = []
    for name, of in kinds.items():
        path, gap = [], True
        for each in drawn:
            value = of(each)
            if value is not None and math.isfinite(span):
                y = 100 - 100 * ((value - bottom) / span)
                # A line of no length is drawn as a dot, by its round ends.
                path.append(f"{'M' if gap else 'L'}{x(each.epoch - 0.5):.3f} {y:.3f}h0")
            gap = value is None
        if path:
            lines[name] = "".join(path)
            words.append(f"{name} loss {_first_last_best(epochs, of, lambda v: f'{v:.3g}', min)}")
    if any(each.top1 is not None for each in epochs):
        accuracy = _first_last_best(epochs, lambda each: each.top1, as_share, max)
        words.append(f"validation accuracy {accuracy}")
    heights = [Mark(100 - 100 * ((v - bottom) / span), f"{v:.3g}") for v in sorted({low, high})]
    pairs = zip([None, *epochs], epochs, strict=False)
    resumed = resumed_at_epoch is not None and first < resumed_at_epoch < last
    return {
        "lines": lines,
        "heights": heights if lines else [],
        "phases": [
            Mark(x(each.epoch - 1), "" if each.image_size is None else f"{each.image_size} px")
            for before, each in pairs
            if before is None or before.image_size != each.image_size
        ],
        "resumed": x(resumed_at_epoch) if resumed and resumed_at_epoch is not None else None,
        "epochs": [Mark(0, f"epoch {epochs[0].epoch}"), Mark(100, str(last))][: len(epochs)],
        "words": "; ".join(words) or "not measured",
    }


def _first_last_best(
    epochs: Sequence[EpochMetrics],
    of: Callable[[EpochMetrics], float | None],
    text: Callable[[float], str],
    best_of: Callable[[list[float]], float],
) -> str:
    """Describe figures by epoch in words."""
    known = [(value, each.epoch) for each in epochs if (value := of(each)) is not None]
    first, last = known[0], known[-1]
    if len(known) == 1:
        return f"{text(first[0])} in epoch {first[1]}"
    best = best_of([value for value, _ in known])
    when = next(epoch for value, epoch in known if value == best)
    return (
        f"{text(first[0])} in epoch {first[1]}, {text(last[0])} in {last[1]}, "
        f"best {text(best)} in {when}"
    )
