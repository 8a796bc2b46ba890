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
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from feedline.profile.diagnose import Diagnosis
from feedline.profile.finding import as_gain
from feedline.profile.report import (
    EpochMetrics,
    RateInterval,
    ReportData,
    describe_throughput,
    headline,
    parts_of_time,
    recording_of,
)
from feedline.profile.tables import report_tables
from feedline.profile.timeline import (
    NO_TIMELINE,
    STATES,
    Lane,
    Timeline,
    legend,
    timeline_heading,
    visible_lanes,
)
from feedline.text import (
    NOT_MEASURED,
    as_ms,
    as_percent,
    as_rate,
    as_seconds,
    as_share,
    plural,
    printable,
)

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_EPOCHS = 200  # drawn
_MIN_LABEL = 12.0  # percent of the width that a phase's name needs on a small screen
_SIGNS = {"not input-bound": ("good", "\u2713"), "inconclusive": ("open", "?")}
_PART_KINDS = {"wait": "making", "copy": "copying", "core": "others", "between": "behind"}
_LANE_PX, _STEP_PX = 16, 20


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    made.filters |= {"share": as_share, "gain": as_gain}
    return made


def template(name: str) -> Template:
    """Load a template. Values inserted into it are escaped, also control characters."""
    return _environment().get_template(name)


def page(report: ReportData, name: str) -> str:
    """Render a report of a run, whose name is its path."""
    return template("page.html").render(
        scope=":root, svg",
        name=name,
        about=recording_of(report),
        judged=_diagnosis(report),
        no_timeline=NO_TIMELINE,
        pictures=[picture(timeline) for timeline in report.timelines],
        legend=legend(report.timelines),
        history=_history(report.throughput_history),
        curves=training_curves(report.epochs_trained, report.resumed_at_epoch),
        trains=bool(report.settings),
        tables=report_tables(report),
        notes=report.notes,
        version=report.feedline,
    )


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Render a diagnosis for a page of a notebook."""
    return template("notebook.html").render(scope="&, svg", judged=_diagnosis(diagnosis))


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the values for the template of a diagnosis."""
    tone, sign = _SIGNS.get(diagnosis.bound, ("bad", "!"))
    parts, shapes, at = parts_of_time(diagnosis), list[Shape](), 0.0
    for part in parts:
        if part.share:
            title = f"{part.name}: {part.seconds}, {as_share(part.share)}"
            shapes.append(Shape(at, 100 * part.share, _PART_KINDS.get(part.key, part.key), title))
            at += 100 * part.share
    return {
        "tone": tone,
        "sign": sign,
        "headline": headline(diagnosis),
        "split": shapes,
        "kinds": _PART_KINDS,
        "parts": parts,
        "throughput": describe_throughput(diagnosis),
        "findings": diagnosis.findings,
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


def picture(timeline: Timeline) -> dict[str, Any]:
    """Return the values for the picture of a timeline."""
    lanes, hidden = visible_lanes(timeline)
    return {
        "about": timeline_heading(timeline),
        "lanes": [
            {
                "name": lane.name,
                "shapes": lane_shapes(lane, timeline.length_ms),
                "words": describe_lane(lane),
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
        if span.state != "blank":
            batch = "" if span.batch is None else f", batch {span.batch}"
            title = f"{STATES.get(span.state, span.state)}{batch}: {as_ms(span.length_ms)} from "
            title += f"{as_ms(span.begun_ms)} on"
            x, width = (100 * ms / length_ms for ms in (span.begun_ms, span.length_ms))
            shapes.append(Shape(x, width, span.state, title))
    return shapes


def describe_lane(lane: Lane) -> str:
    """Describe a lane in words, for screen readers."""
    names = STATES | {"blank": "not recorded"}
    shares = sorted(lane.shares.items(), key=lambda item: -item[1])
    parts = [f"{names.get(state, state)} {as_share(share)}" for state, share in shares]
    return f"{lane.name}: {', '.join(parts) or 'not recorded'}"


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


def _size_marks(sizes: Sequence[int | None], starts: Sequence[float]) -> list[Mark]:
    """Marks of a new image size, by the sizes of intervals and their starts in percent."""
    firsts = [k for k in range(len(sizes)) if k == 0 or sizes[k] != sizes[k - 1]]
    ends = [*(starts[k] for k in firsts[1:]), 100.0]
    return [
        Mark(starts[k], f"{sizes[k]} px" if sizes[k] and end - starts[k] >= _MIN_LABEL else "")
        for k, end in zip(firsts, ends, strict=True)
    ]


def _history(intervals: Sequence[RateInterval]) -> dict[str, Any] | None:
    """Chart of throughput over time, with the data wait below it; None if no rate is known."""
    rates = sorted(each.images_per_s for each in intervals if each.images_per_s is not None)
    if not rates:
        return None
    waits = [each.wait_pct for each in intervals if each.wait_pct is not None]
    begun = min(each.begun_s for each in intervals)
    length = max(each.ended_s for each in intervals) - begun
    top = rates[-1] * 1.08 if rates[-1] > 0 else 1.0

    def x(seconds: float) -> float:
        return 100 * (seconds - begun) / length

    def bar(each: RateInterval, height: float, kind: str, label: str) -> Shape:
        size = "" if each.image_size is None else f", {each.image_size} px"
        title = f"{label}, {as_seconds(each.begun_s)} after the start{size}"
        return Shape(x(each.begun_s), 100 * each.seconds / length, kind, title, height)

    wait = f"from {as_percent(min(waits))} to {as_percent(max(waits))}" if waits else NOT_MEASURED
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
        "phases": _size_marks(
            [each.image_size for each in intervals], [x(each.begun_s) for each in intervals]
        ),
        "heights": [Mark(100 - 100 * rate / top, f"{rate:g}") for rate in ticks(rates[-1])[1:]],
        "times": _time_marks(length),
        "words": f"Images per second over {as_seconds(length)}: median "
        f"{as_rate(rates[len(rates) // 2])}, from {as_rate(rates[0])} to {as_rate(rates[-1])}.",
        "wait_words": f"Data wait in percent of the time: {wait}.",
    }


def training_curves(
    epochs: Sequence[EpochMetrics], resumed_at_epoch: int | None = None
) -> dict[str, Any] | None:
    """Chart of training and validation loss; None without epochs. Unknown values leave a gap."""
    if not epochs:
        return None
    first, last = epochs[0].epoch - 1, epochs[-1].epoch
    share = -(-len(epochs) // _MAX_EPOCHS)
    drawn = range((len(epochs) - 1) % share, len(epochs), share)  # the last one, too
    columns = {
        "training loss": [each.train_loss for each in epochs],
        "validation loss": [each.val_loss for each in epochs],
    }
    known = [value for column in columns.values() for value in column if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
    bottom, span = low - margin, high - low + 2 * margin

    def x(epoch: float) -> float:
        return 100 * (epoch - first) / (last - first)

    def y(value: float) -> float:
        return 100 - 100 * ((value - bottom) / span)

    words, lines = [], dict[str, str]()
    for name, column in columns.items():
        path, is_gap = "", True
        for k in drawn:
            value = column[k]
            if value is not None and math.isfinite(bottom + span):
                # A line of no length is drawn as a dot, by its round ends.
                path += f"{'M' if is_gap else 'L'}{x(epochs[k].epoch - 0.5):.3f} {y(value):.3f}h0"
            is_gap = value is None
        if path:
            lines[name.split()[0]] = path
            words.append(_first_last_best(name, epochs, column, ".3g", min))
    accuracies = [each.val_top1 for each in epochs]
    words.append(_first_last_best("validation accuracy", epochs, accuracies, ".1%", max))
    resumed = resumed_at_epoch if first < (resumed_at_epoch or 0) < last else None
    return {
        "lines": lines,
        "heights": [Mark(y(value), f"{value:.3g}") for value in sorted({low, high}) if lines],
        "phases": _size_marks(
            [each.size_px for each in epochs], [x(each.epoch - 1) for each in epochs]
        ),
        "resumed": None if resumed is None else x(resumed),
        "epochs": [Mark(0, f"epoch {epochs[0].epoch}"), Mark(100, str(last))][: len(epochs)],
        "words": "; ".join(filter(None, words)) or NOT_MEASURED,
    }


def _first_last_best(
    name: str,
    epochs: Sequence[EpochMetrics],
    column: Sequence[float | None],
    form: str,
    best: Callable[[list[float]], float],
) -> str:
    """Describe the first, the last and the best of some figures; "" without any."""
    known = {each.epoch: v for each, v in zip(epochs, column, strict=True) if v is not None}
    if not known:
        return ""
    value = best(list(known.values()))
    at = [next(iter(known)), next(reversed(known)), next(k for k in known if known[k] == value)]
    first, last, best_text = (f"{known[epoch]:{form}} in epoch {epoch}" for epoch in at)
    return f"{name} {first}, {last}, best {best_text}"
