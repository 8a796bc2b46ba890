"""Chart of training and validation loss over the epochs, in percent of its box.

Guarantees: pure; unknown values leave a gap; each line differs by its dashes and by text, never by
colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from feedline.profile.chart import Mark
from feedline.profile.epoch_metrics import EpochMetrics
from feedline.text import as_share

__all__ = ["Line", "TrainingCurves", "training_curves"]

_MAX_DRAWN = 200  # epochs
_MAX_DOTS = 60  # with more epochs, lines have no dots with figures
_MIN_LABEL = 9.0  # percent of the width that a phase's name needs
_TICKS = 8

_LINES: tuple[tuple[str, str, Callable[[EpochMetrics], float | None]], ...] = (
    ("train", "training", lambda each: each.loss),
    ("val", "validation", lambda each: each.val_loss),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Line of the chart: its segments and its dots, in percent."""

    kind: str
    name: str
    pieces: list[tuple[float, float, float, float]]
    dots: list[tuple[float, float, str]]


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """Chart of the losses.

    Args:
        lines: lines with at least one point.
        heights: marks of the vertical axis.
        phases: start of each phase, with its image size if there is space.
        epochs: marks of the horizontal axis.
        went_on: position at which the latest start resumed; None if there was one start only.
        words: losses and accuracy in sentences.
        note: remark on the chart.
    """

    lines: list[Line]
    heights: list[Mark]
    phases: list[Mark]
    epochs: list[Mark]
    went_on: float | None
    words: str
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

    values = [value for _, _, of in _LINES for each in drawn if (value := of(each)) is not None]
    low, high = _range(values)

    def height(value: float) -> float:
        return 100 - 100 * ((value - low) / (high - low))

    lines, words = list[Line](), list[str]()
    for kind, name, of in _LINES:
        points = [
            None if (value := of(each)) is None else (edge(each.epoch - 0.5), value, each.epoch)
            for each in drawn
        ]
        known = [point for point in points if point is not None]
        if not known or not math.isfinite(high - low):
            continue
        pieces = [
            (one[0], height(one[1]), two[0], height(two[1]))
            for one, two in pairwise(points)
            if one is not None and two is not None
        ]
        isolated = len(pieces) < len(known) - 1 or len(known) == 1
        dots = [
            (x, height(value), f"{name} {value:.3g}, epoch {epoch}")
            for x, value, epoch in known
            if len(drawn) <= _MAX_DOTS or isolated
        ]
        lines.append(Line(kind, name, pieces, dots))
        losses = [(value, epoch) for _, value, epoch in known]
        words.append(f"{name} loss {_words(losses, lambda value: f'{value:.3g}', min)}")
    if accuracies := [(each.top1, each.epoch) for each in learned if each.top1 is not None]:
        words.append(f"validation accuracy {_words(accuracies, as_share, max)}")
    phases = _phases(learned)
    step = max(1, math.ceil((last - first) / _TICKS))
    labelled = [each for each in learned if (each.epoch - first) % step == 0 or last - first == 1]
    resumed = went_on_at is not None and first < went_on_at < last
    return TrainingCurves(
        lines=lines,
        heights=[Mark(height(each), f"{each:.3g}") for each in _levels(low, high)],
        phases=[
            Mark(
                edge(begin),
                f"{size} px" if size and edge(end) - edge(begin) >= _MIN_LABEL else "",
            )
            for begin, end, size in phases
        ],
        epochs=[Mark(edge(each.epoch - 0.5), f"epoch {each.epoch}") for each in labelled],
        went_on=edge(went_on_at) if resumed and went_on_at is not None else None,
        words="; ".join(words),
        note=f"{len(drawn)} of {len(learned)} epochs are drawn, evenly spaced."
        if len(drawn) < len(learned)
        else "",
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return both ends of the vertical axis, with a margin."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
    return low - margin, high + margin


def _words(
    known: Sequence[tuple[float, int]],
    text: Callable[[float], str],
    best_of: Callable[[Sequence[float]], float],
) -> str:
    """Describe figures by epoch in words."""
    first, last = known[0], known[-1]
    if len(known) == 1:
        return f"{text(first[0])} in epoch {first[1]}"
    best = best_of([value for value, _ in known])
    when = next(epoch for value, epoch in known if value == best)
    return (
        f"{text(first[0])} in epoch {first[1]}, {text(last[0])} in {last[1]}, "
        f"best {text(best)} in {when}"
    )


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
