"""Comparison of two runs in a terminal, and its exit status."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from feedline.profile.compare import Comparison, PhasePair, Ratio, phase_label
from feedline.profile.tables import ReportTable
from feedline.profile.terminal import table_view
from feedline.text import NOT_MEASURED, as_percent, as_rate, as_share, printable

__all__ = ["comparison_view", "summarise_comparison"]

_FINE, _SLOWER, _INCONCLUSIVE = 0, 1, 3


def summarise_comparison(found: Comparison) -> tuple[int, str]:
    """Return the exit status, and the comparison in a sentence."""
    ratio = found.ratio
    if ratio is None:
        return _INCONCLUSIVE, "Inconclusive: the images/s of a run were not measured."
    if "inconclusive" in found.bound:
        return _INCONCLUSIVE, f"Inconclusive: a run is too short. B / A is {_times(ratio)}."
    if ratio.is_significant is None:
        return _INCONCLUSIVE, f"B is {_times(ratio)} as fast as A; a run is too short for a spread."
    if not ratio.is_significant:
        return _FINE, f"B is {_times(ratio)} as fast as A: no difference beyond the spread."
    word = "faster" if ratio.times > 1 else "slower"
    return (
        _SLOWER if ratio.times < 1 else _FINE,
        f"B is {_times(ratio)} as fast as A: {word}, beyond the spread.",
    )


def _times(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.times:.2f}x"
    return f"{ratio.times:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def comparison_view(found: Comparison, names: Sequence[str]) -> RenderableType:
    """Show two runs as a table, their differences, and a summary."""
    _, summary = summarise_comparison(found)
    changed = [[printable(each) for each in row] for row in found.changed]
    views: list[RenderableType] = [
        Text(f"A: {printable(names[0])}\nB: {printable(names[1])}\n"),
        table_view(ReportTable(title="Runs", heads=["", "A", "B", "B / A"], rows=_rows(found))),
    ]
    if changed:
        views += [
            Text(""),
            table_view(ReportTable(title="Differences", heads=["", "A", "B"], rows=changed)),
        ]
    views += [Text(f"\n{summary}", "bold"), *(Text(note, "dim") for note in found.notes)]
    return Group(*views)


def _rows(found: Comparison) -> list[list[str]]:
    rows = [["diagnosis", *found.bound, ""]]
    rows += [_phase(pair) for pair in found.phases]
    if len(found.phases) > 1:
        ratio = NOT_MEASURED if found.ratio is None else _times(found.ratio)
        rows.append(["all phases", *map(as_rate, found.rates), ratio])
    rows.append(["data wait", *map(as_percent, found.wait_pct), ""])
    rows += [
        [one.name, as_share(one.share), as_share(two.share), ""]
        for one, two in zip(*found.time_split, strict=False)
    ]
    return rows


def _phase(pair: PhasePair) -> list[str]:
    return [
        phase_label(pair.image_size, pair.batch_size),
        *map(as_rate, pair.rates),
        NOT_MEASURED if pair.ratio is None else _times(pair.ratio),
    ]
