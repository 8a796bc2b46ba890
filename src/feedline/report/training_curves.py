"""Curves of loss, accuracy, learning rate and image size over the epochs, in percent of a chart.

Guarantees: pure; unknown values leave a gap; each line differs by its dashes and by text, never by
colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from feedline.report.chart import Mark, Shape
from feedline.report.epoch_metrics import EpochMetrics
from feedline.text import as_percent, as_seconds

__all__ = ["Line", "Plot", "TrainingCurves", "training_curves"]

_MAX_DRAWN = 200  # epochs
_MAX_DOTS = 60  # with more epochs, lines have no dots with figures
_MIN_LABEL = 9.0  # percent of the width that a phase's name needs
_TICKS = 8

_Value = Callable[[EpochMetrics], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a plot: its segments and its dots, in percent."""

    kind: str
    name: str
    pieces: list[tuple[float, float, float, float]]
    dots: list[tuple[float, float, str]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Plot over the epochs.

    Args:
        title: what it shows.
        height: in pixels.
        lines: lines with at least one point.
        bars: bars instead of lines.
        heights: marks of its axis.
        words: description in a sentence.
    """

    title: str
    height: int
    lines: list[Line]
    bars: list[Shape]
    heights: list[Mark]
    words: str


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """Plots over the same epochs.

    Args:
        plots: from top to bottom.
        phases: start of each phase, with its name if there is space.
        epochs: marks of the axis.
        times: marks of the axis, at the same places: training time so far.
        went_on: position at which the latest start resumed; None if there was one start only.
        note: remark on the chart.
    """

    plots: list[Plot]
    phases: list[Mark]
    epochs: list[Mark]
    times: list[Mark]
    went_on: float | None
    note: str


def training_curves(
    learned: Sequence[EpochMetrics], went_on_at: int | None = None
) -> TrainingCurves | None:
    """Chart of some epochs; None without epochs.

    Args:
        learned: in order.
        went_on_at: epoch, from 0, at which the latest start resumed.
    """
    if not learned:
        return None
    first, last = learned[0].epoch - 1, learned[-1].epoch
    drawn = _some(learned)

    def edge(epoch: float) -> float:
        return 100 * (epoch - first) / (last - first)

    def plot(
        title: str, lines: Sequence[tuple[str, str, _Value]], form: _PlotFormat
    ) -> Plot | None:
        return _plot(title, lines, drawn, lambda each: edge(each.epoch - 0.5), form)

    plots = [
        plot(
            "Loss",
            [
                ("train", "training", lambda each: each.loss),
                ("val", "validation", lambda each: each.val_loss),
            ],
            _LOSS,
        ),
        plot(
            "Validation accuracy",
            [
                ("top1", "top-1", lambda each: each.top1),
                ("top5", "top-5", lambda each: each.top5),
            ],
            _SHARE,
        ),
        plot("Learning rate", [("lr", "learning rate", lambda each: each.lr)], _RATE),
    ]
    phases = _phases(learned)
    bars = _sizes(phases, edge)
    step = max(1, math.ceil((last - first) / _TICKS))
    labelled = [each for each in learned if (each.epoch - first) % step == 0 or last - first == 1]
    marks = [(edge(each.epoch - 0.5), each) for each in labelled]
    note = ""
    if len(drawn) < len(learned):
        note = f"{len(drawn)} of {len(learned)} epochs are drawn, evenly spaced."
    resumed = went_on_at is not None and first < went_on_at < last
    return TrainingCurves(
        plots=[*(each for each in plots if each is not None), *([bars] if bars else [])],
        phases=[
            Mark(
                edge(begin),
                f"{size} px" if size and edge(end) - edge(begin) >= _MIN_LABEL else "",
            )
            for begin, end, size in phases
        ],
        epochs=[Mark(at, f"epoch {each.epoch}") for at, each in marks],
        times=[
            Mark(at, as_seconds(each.ended_s)) for at, each in marks if each.ended_s is not None
        ],
        went_on=edge(went_on_at) if resumed and went_on_at is not None else None,
        note=note,
    )


@dataclass(frozen=True, slots=True)
class _PlotFormat:
    """Format of a plot's axis and figures."""

    text: Callable[[float], str]
    from_zero: bool
    height: int
    best: Callable[[Sequence[float]], float] | None = None


_LOSS = _PlotFormat(lambda value: f"{value:.3g}", from_zero=False, height=150, best=min)
_SHARE = _PlotFormat(lambda value: as_percent(100 * value), from_zero=True, height=150, best=max)
_RATE = _PlotFormat(lambda value: f"{value:.3g}", from_zero=True, height=80)


def _plot(
    title: str,
    lines: Sequence[tuple[str, str, _Value]],
    drawn: Sequence[EpochMetrics],
    at: Callable[[EpochMetrics], float],
    form: _PlotFormat,
) -> Plot | None:
    """Plot the known values; None without values."""
    values = [value for _, _, of in lines for each in drawn if (value := of(each)) is not None]
    if not values:
        return None
    low, high = min([0.0, *values] if form.from_zero else values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
    low, high = (low if form.from_zero and low == 0 else low - margin), high + margin
    if not math.isfinite(high - low):
        return None

    def height(value: float) -> float:
        return 100 - 100 * ((value - low) / (high - low))

    made, words = [], []
    for kind, name, of in lines:
        points = [
            None if (value := of(each)) is None else (at(each), height(value), value, each)
            for each in drawn
        ]
        known = [point for point in points if point is not None]
        if not known:
            continue
        pieces = [
            (one[0], one[1], two[0], two[1])
            for one, two in pairwise(points)
            if one is not None and two is not None
        ]
        isolated = len(pieces) < len(known) - 1 or len(known) == 1
        dots = [
            (x, y, f"{name} {form.text(value)}, epoch {each.epoch}")
            for x, y, value, each in known
            if len(drawn) <= _MAX_DOTS or isolated
        ]
        made.append(Line(kind, name, pieces, dots))
        label = "" if name == title.lower() else f"{name} "
        words.append(_words(label, [(value, each.epoch) for _, _, value, each in known], form))
    heights = [Mark(height(each), form.text(each)) for each in _levels(low, high)]
    return Plot(title, form.height, made, [], heights, f"{title}: {'; '.join(words)}.")


def _words(label: str, known: Sequence[tuple[float, int]], form: _PlotFormat) -> str:
    """Describe a line in words."""
    first, last = known[0], known[-1]
    if len(known) == 1:
        return f"{label}{form.text(first[0])} in epoch {first[1]}"
    text = f"{label}{form.text(first[0])} in epoch {first[1]}, {form.text(last[0])} in {last[1]}"
    if form.best is not None:
        best = form.best([value for value, _ in known])
        when = next(epoch for value, epoch in known if value == best)
        text += f", best {form.text(best)} in {when}"
    return text


def _some(learned: Sequence[EpochMetrics]) -> list[EpochMetrics]:
    """Select evenly spaced epochs, at most `_MAX_DRAWN`, including the last one."""
    share = -(-len(learned) // _MAX_DRAWN)
    return [each for k, each in enumerate(learned) if (len(learned) - 1 - k) % share == 0]


def _phases(learned: Sequence[EpochMetrics]) -> list[tuple[int, int, int | None]]:
    """Consecutive epochs at one size: first epoch from 0, end, and size in pixels."""
    found: list[tuple[int, int, int | None]] = []
    for each in learned:
        if found and found[-1][2] == each.image_size:
            found[-1] = (found[-1][0], each.epoch, each.image_size)
        else:
            found.append((found[-1][1] if found else each.epoch - 1, each.epoch, each.image_size))
    return found


def _sizes(
    phases: Sequence[tuple[int, int, int | None]], edge: Callable[[float], float]
) -> Plot | None:
    """Plot of image sizes; None if they are unknown."""
    sizes = [size for _, _, size in phases if size is not None]
    if not sizes or len(phases) > _MAX_DRAWN:
        return None
    top = 1.08 * max(sizes)
    bars, words = [], []
    for begin, end, size in phases:
        if size is None:
            continue
        high = 100 * size / top
        epochs = f"epoch {end}" if end == begin + 1 else f"epochs {begin + 1} to {end}"
        words.append(f"{size} px in {epochs}")
        bars.append(
            Shape(edge(begin), 100 - high, edge(end) - edge(begin), high, "rate", words[-1])
        )
    heights = [Mark(100 - 100 * size / top, f"{size}") for size in sorted({min(sizes), max(sizes)})]
    return Plot("Image size in pixels", 80, [], bars, heights, f"Image size: {', '.join(words)}.")


def _levels(low: float, high: float, most: int = 4) -> list[float]:
    """Round positions between the two ends of an axis."""
    rough = (high - low) / most
    if not rough > 0 or not math.isfinite(rough):
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    if not power > 0:
        return []
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    begin, end = math.ceil(low / step), math.floor(high / step)
    return [step * k for k in range(begin, end + 1)] if end - begin <= 2 * most else []
