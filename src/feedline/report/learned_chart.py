"""Loss, accuracy, learning rate and image size over the epochs, as lines in percent of a chart.

Guarantees: pure; what is not known leaves a gap; each line differs by its dashes and in words, too,
and in nothing by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from feedline.report.chart import Mark, Shape
from feedline.report.figures import as_percent, as_seconds
from feedline.report.learned import LearnedEpoch

__all__ = ["LearnedChart", "Line", "Plot", "learned_chart"]

_MOST = 200  # epochs that are drawn
_DOTS = 60  # up to so many have a dot each, with its figures
_LEAST_LABEL = 9.0  # percent of the width that a phase's name needs
_TICKS = 8

_Value = Callable[[LearnedEpoch], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: its pieces from point to point, and its points, in percent."""

    kind: str
    name: str
    pieces: list[tuple[float, float, float, float]]
    dots: list[tuple[float, float, str]]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot over the epochs.

    Args:
        title: what it shows.
        height: in pixels.
        lines: that have any point.
        bars: that it has in the place of lines.
        heights: of its axis.
        words: what it shows, in a sentence.
    """

    title: str
    height: int
    lines: list[Line]
    bars: list[Shape]
    heights: list[Mark]
    words: str


@dataclass(frozen=True, slots=True)
class LearnedChart:
    """Plots over the same epochs.

    Args:
        plots: from top to bottom.
        phases: where each begins, with its name where there is room for it.
        epochs: of the axis.
        times: of the axis, at the same places: time trained by then.
        went_on: where the latest start went on; None where there was but one.
        note: what is to be known to read it.
    """

    plots: list[Plot]
    phases: list[Mark]
    epochs: list[Mark]
    times: list[Mark]
    went_on: float | None
    note: str


def learned_chart(
    learned: Sequence[LearnedEpoch], went_on_at: int | None = None
) -> LearnedChart | None:
    """The chart of some epochs; None where there are none.

    Args:
        learned: in order.
        went_on_at: the epoch, from 0, that the latest start went on with.
    """
    if not learned:
        return None
    first, last = learned[0].epoch - 1, learned[-1].epoch
    drawn = _some(learned)

    def edge(epoch: float) -> float:
        return 100 * (epoch - first) / (last - first)

    def plot(title: str, lines: Sequence[tuple[str, str, _Value]], form: _Form) -> Plot | None:
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
            "Accuracy in validation",
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
        note = f"Of {len(learned)} epochs {len(drawn)} are drawn, evenly spaced."
    goes_on = went_on_at is not None and first < went_on_at < last
    return LearnedChart(
        plots=[*(each for each in plots if each is not None), *([bars] if bars else [])],
        phases=[
            Mark(
                edge(begin),
                f"{size} px" if size and edge(end) - edge(begin) >= _LEAST_LABEL else "",
            )
            for begin, end, size in phases
        ],
        epochs=[Mark(at, f"epoch {each.epoch}") for at, each in marks],
        times=[
            Mark(at, as_seconds(each.ended_s)) for at, each in marks if each.ended_s is not None
        ],
        went_on=edge(went_on_at) if goes_on and went_on_at is not None else None,
        note=note,
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """How a plot's axis and figures are."""

    said: Callable[[float], str]
    from_zero: bool
    height: int
    best: Callable[[Sequence[float]], float] | None = None


_LOSS = _Form(lambda value: f"{value:.3g}", from_zero=False, height=150, best=min)
_SHARE = _Form(lambda value: as_percent(100 * value), from_zero=True, height=150, best=max)
_RATE = _Form(lambda value: f"{value:.3g}", from_zero=True, height=80)


def _plot(
    title: str,
    lines: Sequence[tuple[str, str, _Value]],
    drawn: Sequence[LearnedEpoch],
    at: Callable[[LearnedEpoch], float],
    form: _Form,
) -> Plot | None:
    """A plot of what is known; None where nothing is."""
    values = [value for _, _, of in lines for each in drawn if (value := of(each)) is not None]
    if not values:
        return None
    low, high = min([0.0, *values] if form.from_zero else values), max(values)
    room = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
    low, high = (low if form.from_zero and low == 0 else low - room), high + room
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
        lonely = len(pieces) < len(known) - 1 or len(known) == 1
        dots = [
            (x, y, f"{name} {form.said(value)}, epoch {each.epoch}")
            for x, y, value, each in known
            if len(drawn) <= _DOTS or lonely
        ]
        made.append(Line(kind, name, pieces, dots))
        called = "" if name == title.lower() else f"{name} "
        words.append(_words(called, [(value, each.epoch) for _, _, value, each in known], form))
    heights = [Mark(height(each), form.said(each)) for each in _levels(low, high)]
    return Plot(title, form.height, made, [], heights, f"{title}: {'; '.join(words)}.")


def _words(called: str, known: Sequence[tuple[float, int]], form: _Form) -> str:
    """A line in words."""
    first, last = known[0], known[-1]
    if len(known) == 1:
        return f"{called}{form.said(first[0])} in epoch {first[1]}"
    text = f"{called}{form.said(first[0])} in epoch {first[1]}, {form.said(last[0])} in {last[1]}"
    if form.best is not None:
        best = form.best([value for value, _ in known])
        when = next(epoch for value, epoch in known if value == best)
        text += f", best {form.said(best)} in {when}"
    return text


def _some(learned: Sequence[LearnedEpoch]) -> list[LearnedEpoch]:
    """Some hundred of them, evenly spaced, the last one included."""
    share = -(-len(learned) // _MOST)
    return [each for k, each in enumerate(learned) if (len(learned) - 1 - k) % share == 0]


def _phases(learned: Sequence[LearnedEpoch]) -> list[tuple[int, int, int | None]]:
    """Epochs one after another at one size: the first, from 0, the end, and the size in pixels."""
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
    """The plot of image sizes; None where they are not known."""
    sizes = [size for _, _, size in phases if size is not None]
    if not sizes or len(phases) > _MOST:
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
    """Round places between two ends of an axis."""
    rough = (high - low) / most
    if not rough > 0 or not math.isfinite(rough):
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    if not power > 0:
        return []
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    begin, end = math.ceil(low / step), math.floor(high / step)
    return [step * k for k in range(begin, end + 1)] if end - begin <= 2 * most else []
