"""Comparison of two runs, its exit status, and its view in a terminal.

Guarantees: runs that differ in other factors of the rate than data loading are refused, with all
differences; values unknown for one of them are noted, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.text import Text

from feedline.errors import UsageError
from feedline.profile.diagnose import Bound, PhaseSplit
from feedline.profile.finding import TimePart
from feedline.profile.report import PART_NAMES, RateInterval, ReportData, part_shares
from feedline.profile.tables import ReportTable
from feedline.profile.terminal import table_view
from feedline.text import NOT_MEASURED, as_percent, as_rate, as_share, finite, printable
from feedline.throughput.windows import error_of

_FINE, _SLOWER, _INCONCLUSIVE, _DISTURBED = 0, 1, 3, 4
_SAME_MEMORY = 0.05  # relative: the memory that a cgroup leaves varies a little

_PhaseKey: TypeAlias = "tuple[int | None, int | None]"  # image size in pixels, batch size


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Speed of the second run relative to the first."""

    times: float  # rate of the second run / rate of the first
    low: float | None
    """Lower end of the 95% interval, from the variation within each run; None if a run was too
    short."""
    high: float | None  # upper end

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.times:.2f}x"
        return f"{self.times:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePair:
    """A phase of the first and the second run. Rates are images/s, None if not measured."""

    image_size: int | None  # in pixels
    batch_size: int | None
    rates: tuple[float | None, float | None]  # within passes
    wait_pct: tuple[float | None, float | None]  # data wait in percent of the steps
    ratio: Ratio | None  # of the rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Comparison of a first and a second run."""

    status: int
    """Exit status: 0 as fast or faster, 1 slower beyond the spread, 3 inconclusive, 4 not
    comparable because other programs disturbed a run."""
    said: str  # the result in a sentence
    bound: tuple[Bound, Bound]
    rates: tuple[float | None, float | None]
    """Images/s of each whole run, for phases in the proportions of the first run."""
    ratio: Ratio | None  # of these
    wait_pct: tuple[float | None, float | None]  # data wait in percent of the time
    time_split_s: tuple[dict[TimePart, float | None], dict[TimePart, float | None]]
    phases: list[PhasePair]
    changed: list[tuple[str, str, str]]
    """Differences in settings, loader and software: name, first, second."""
    notes: list[str]  # remarks on the comparison


def compare(first: ReportData, second: ReportData) -> Comparison:
    """Compare two runs.

    Raises:
        UsageError: they cannot be compared; lists all differences.
    """
    differs = _differences(first, second)
    if differs:
        raise UsageError(
            "these runs cannot be compared: " + "; ".join(differs),
            hint="compare runs of the same data, batches and image sizes on the same machine",
        )
    before, after = _phases_of(first), _phases_of(second)
    rates = _total_rate(first, before, before), _total_rate(second, after, before)
    pairs, total_s = list[PhasePair](), sum(map(_images, before.values())) / rates[1]
    spreads = [0.0]  # that of each phase, by its share of the time in the second run
    for (size, batch_size), old in before.items():
        new = after[size, batch_size]
        seconds = [_seconds(_images(old), each.images_per_s) for each in (old, new)]
        histories = first.throughput_history, second.throughput_history
        same_size = ([each for each in history if each.image_size == size] for history in histories)
        spread = math.hypot(*map(relative_spread, same_size))
        spreads.append(spread * seconds[1] / total_s if spread < 1 else math.inf)
        pairs.append(
            PhasePair(
                image_size=size,
                batch_size=batch_size,
                rates=(old.images_per_s or None, new.images_per_s or None),
                wait_pct=(old.wait_pct, new.wait_pct),
                ratio=_ratio(seconds[0] / seconds[1], spread),
            )
        )
    ratio = _ratio(rates[1] / rates[0], math.hypot(*spreads))
    status, said = _conclude(first, second, ratio)
    return Comparison(
        status=status,
        said=said,
        bound=(first.bound, second.bound),
        rates=(finite(rates[0]), finite(rates[1])),
        ratio=ratio,
        wait_pct=(first.wait_pct, second.wait_pct),
        time_split_s=(first.time_split_s, second.time_split_s),
        phases=pairs,
        changed=_changes(first, second),
        notes=_notes(first, second),
    )


def _conclude(first: ReportData, second: ReportData, ratio: Ratio | None) -> tuple[int, str]:
    """Return the exit status, and the result in a sentence."""
    if "inconclusive" in (first.bound, second.bound):
        also = "" if ratio is None else f" B / A is {ratio}."
        return _INCONCLUSIVE, f"Inconclusive: a run is too short.{also}"
    if ratio is None:
        return _INCONCLUSIVE, "Inconclusive: the images/s of a run were not measured."
    for name, run in (("A", first), ("B", second)):
        if {finding.rule for finding in run.findings} == {"busy-machine"}:
            return _DISTURBED, (
                f"Not comparable: other programs held the cores while {name} ran, at B / A {ratio}."
                " Repeat it on an idle machine."
            )
    if ratio.low is None or ratio.high is None:
        return _INCONCLUSIVE, f"B is {ratio} as fast as A; a run is too short for a spread."
    if ratio.low <= 1 <= ratio.high:
        return _FINE, f"B is {ratio} as fast as A: no difference beyond the spread."
    faster = ratio.times > 1
    word = "faster" if faster else "slower"
    return (_FINE if faster else _SLOWER), f"B is {ratio} as fast as A: {word}, beyond the spread."


def _phases_of(run: ReportData) -> dict[_PhaseKey, PhaseSplit]:
    """Return the phases that have steps by image size and batch size, in order."""
    return {(each.image_size, each.batch_size): each for each in run.phases if each.steps}


def _images(phase: PhaseSplit) -> int:
    return phase.steps * (phase.batch_size or 1)


def _seconds(images: int, images_per_s: float | None) -> float:
    """Time of images at a rate; NaN if the rate was not measured."""
    return images / (images_per_s or math.nan)


def _ratio(times: float, spread: float) -> Ratio | None:
    """Ratio with an interval; `spread` is half of it, as a share of the ratio."""
    if not math.isfinite(times):
        return None
    if not spread < 1:
        return Ratio(times=times, low=None, high=None)
    return Ratio(times=times, low=times * (1 - spread), high=times * (1 + spread))


def _total_rate(
    run: ReportData,
    own: Mapping[_PhaseKey, PhaseSplit],
    weights: Mapping[_PhaseKey, PhaseSplit],
) -> float:
    """Images/s for as many images of each phase as `weights` has, with the run's own overhead.

    NaN if not measured.
    """
    images, own_images = (sum(map(_images, each.values())) for each in (weights, own))
    if not images:
        return math.nan
    steps_s = sum(_seconds(_images(each), own[key].images_per_s) for key, each in weights.items())
    own_s = sum(_seconds(_images(each), each.images_per_s) for each in own.values())
    overhead_s = _seconds(own_images, run.images_per_s) - own_s
    return images / (steps_s + overhead_s / own_images * images)


def relative_spread(intervals: Sequence[RateInterval]) -> float:
    """Half of the 95% interval of the mean rate, as a share of it; 1 if unknown."""
    known = [each for each in intervals if each.images_per_s is not None and each.seconds > 0]
    images = [(each.images_per_s or 0.0) * each.seconds for each in known]
    return error_of(images, [each.seconds for each in known])


def _differences(first: ReportData, second: ReportData) -> list[str]:
    """Return the differences that make two runs incomparable."""
    one, two = first.machine, second.machine
    pairs: list[tuple[str, Any, Any]] = [
        ("processor", one.cpu, two.cpu),
        ("logical cores", one.cores, two.cores),
        ("usable cores", one.usable_cores, two.usable_cores),
        ("CPU quota", one.quota_cores, two.quota_cores),
        ("GPU", one.gpu, two.gpu),
        ("processes of the training", first.world_size, second.world_size),
        ("number of loaders", len(first.loaders), len(second.loaders)),
    ]
    if not math.isclose(one.memory_bytes, two.memory_bytes, rel_tol=_SAME_MEMORY):
        pairs.append(("memory", one.memory_bytes, two.memory_bytes))
    for loaders in zip(first.loaders, second.loaders, strict=False):
        for name in ("dataset", "samples", "batch_size"):
            old, new = (getattr(loader, name) for loader in loaders)
            if old not in ("", None) and new not in ("", None):
                pairs.append((name.replace("_", " "), old, new))
    before, after = _phases_of(first), _phases_of(second)
    found = [f"{name} {_quoted(a)} and {_quoted(b)}" for name, a, b in pairs if a != b]
    if before.keys() != after.keys():
        names = (", ".join(_label(*key) for key in keys) or "none" for keys in (before, after))
        found.append(f"phases {' and '.join(names)}")
    return list(dict.fromkeys(found))


def _quoted(value: object) -> str:
    return "none" if value is None else repr(value) if isinstance(value, str) else str(value)


def _label(image_size: int | None, batch_size: int | None) -> str:
    """Label of a phase, without its epochs."""
    size = "no image size" if image_size is None else f"{image_size} px"
    return size if batch_size is None else f"{size} @{batch_size}"


def _changes(first: ReportData, second: ReportData) -> list[tuple[str, str, str]]:
    """Return differences that may explain the ratio."""
    sides: list[dict[str, Any]] = []
    for run in (first, second):
        side: dict[str, Any] = dict(run.settings)
        for number, loader in enumerate(run.loaders):
            prefix = "loader" if len(run.loaders) == 1 else f"loader {number}"
            side |= {f"{prefix}: {name}": value for name, value in asdict(loader).items()}
        side |= {f"version: {name}": value for name, value in run.machine.versions.items()}
        sides.append(side | {"system": run.machine.platform, "host": run.machine.host})
    names = dict.fromkeys([*sides[0], *sides[1]])
    rows = [(name, _cell(sides[0].get(name)), _cell(sides[1].get(name))) for name in names]
    return [each for each in rows if each[1] != each[2]]


def _cell(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _notes(first: ReportData, second: ReportData) -> list[str]:
    notes = []
    if first.machine.host != second.machine.host:
        notes.append("The runs were on two different hosts with the same hardware description.")
    for name, label in (("dataset", "dataset"), ("samples", "number of samples")):
        unknown = [
            place
            for place, run in (("first", first), ("second", second))
            if not run.loaders or any(getattr(each, name) in ("", None) for each in run.loaders)
        ]
        if unknown:
            notes.append(f"The {label} of the {' and the '.join(unknown)} run is unknown.")
    notes.append(
        "The interval covers the variation within each run. Rates also vary between runs: repeat "
        "both runs to be sure."
    )
    return notes


def comparison_view(found: Comparison, names: Sequence[str]) -> RenderableType:
    """Show two runs as a table, their differences, and the result."""
    ratio = NOT_MEASURED if found.ratio is None else str(found.ratio)
    shares = [part_shares(split_s) for split_s in found.time_split_s]
    rows = [
        ["diagnosis", *found.bound, ""],
        *(
            [
                _label(pair.image_size, pair.batch_size),
                *map(as_rate, pair.rates),
                NOT_MEASURED if pair.ratio is None else str(pair.ratio),
            ]
            for pair in found.phases
        ),
        ["whole run", *map(as_rate, found.rates), ratio],
        ["data wait", *map(as_percent, found.wait_pct), ""],
        *(
            [name, *(as_share(side.get(part)) for side in shares), ""]
            for part, name in PART_NAMES.items()
            if any(side.get(part) for side in shares)
        ),
    ]
    changed = [[printable(each) for each in row] for row in found.changed]
    views: list[RenderableType] = [
        Text(f"A: {printable(names[0])}\nB: {printable(names[1])}\n"),
        table_view(ReportTable(title="Runs", heads=["", "A", "B", "B / A"], rows=rows)),
    ]
    if changed:
        table = ReportTable(title="Differences", heads=["", "A", "B"], rows=changed)
        views += [Text(""), table_view(table)]
    views += [Text(f"\n{found.said}", "bold"), *(Text(note, "dim") for note in found.notes)]
    return Group(*views)
