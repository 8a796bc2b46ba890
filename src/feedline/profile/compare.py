"""Comparison of two runs.

Guarantees: pure; runs that differ in other factors of the rate than data loading are refused, with
all differences; values unknown for one of them are noted, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from feedline.errors import UsageError
from feedline.profile.finding import Bound, PhaseSplit
from feedline.profile.history import RateInterval
from feedline.profile.report_data import ReportData
from feedline.profile.sentences import StepPart, parts
from feedline.throughput.windows import error_of_means

__all__ = [
    "Comparison",
    "PhaseKey",
    "PhasePair",
    "Ratio",
    "compare",
    "differences",
    "phase_label",
    "phases_of",
    "relative_spread",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Speed of the second run relative to the first.

    Args:
        times: rate of the second run / rate of the first.
        low: lower end of the 95% interval, from the variation within each run; None if a run was
            too short.
        high: upper end.
    """

    times: float
    low: float | None
    high: float | None

    @property
    def is_significant(self) -> bool | None:
        """True if they differ by more than the spread; None if the spread is unknown."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1 or self.high < 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePair:
    """A phase of both runs. Rates are images/s, None if not measured.

    Args:
        image_size: in pixels.
        batch_size: samples of a batch.
        rates: of the first and the second run.
        wait_pct: data wait in percent of the steps, of the first and the second run.
        ratio: of the rates.
    """

    image_size: int | None
    batch_size: int | None
    rates: tuple[float | None, float | None]
    wait_pct: tuple[float | None, float | None]
    ratio: Ratio | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Comparison of two runs.

    Args:
        bound: how far each is input-bound.
        rates: images/s of each, over the phases in the proportions of the first run.
        ratio: of these.
        wait_pct: data wait in percent of the time.
        time_split: parts of the time of each.
        phases: each phase.
        changed: differences in settings, loader and software: name, first, second.
        notes: remarks on the comparison.
    """

    bound: tuple[Bound, Bound]
    rates: tuple[float | None, float | None]
    ratio: Ratio | None
    wait_pct: tuple[float | None, float | None]
    time_split: tuple[list[StepPart], list[StepPart]]
    phases: list[PhasePair]
    changed: list[tuple[str, str, str]]
    notes: list[str]


def compare(first: ReportData, second: ReportData) -> Comparison:
    """Compare two runs.

    Raises:
        UsageError: they cannot be compared; lists all differences.
    """
    differs = differences(first, second)
    if differs:
        raise UsageError(
            "these runs cannot be compared: " + "; ".join(differs),
            hint="compare runs of the same data, batches and image sizes on the same machine",
        )
    before, after = phases_of(first), phases_of(second)
    pairs = [_pair(before[key], after[key], first, second) for key in before]
    return Comparison(
        bound=(first.bound, second.bound),
        rates=_rates(before, after),
        ratio=_overall(pairs, before),
        wait_pct=(first.wait_pct, second.wait_pct),
        time_split=(parts(first), parts(second)),
        phases=pairs,
        changed=_find_changes(first, second),
        notes=_notes(first, second),
    )


def _rate(phases: list[PhaseSplit]) -> float | None:
    """Images/s over phases of one size."""
    seconds = 0.0
    for phase in phases:
        if not phase.images_per_s:
            return None
        seconds += phase.steps / phase.images_per_s
    return sum(phase.steps for phase in phases) / seconds


def _wait_pct(phases: list[PhaseSplit]) -> float | None:
    """Data wait over phases of one size, weighted by their times."""
    if len(phases) == 1:
        return phases[0].wait_pct
    waited = total = 0.0
    for phase in phases:
        if phase.wait_pct is None or not phase.images_per_s:
            return None
        total += phase.steps / phase.images_per_s
        waited += phase.steps / phase.images_per_s * phase.wait_pct
    return waited / total


def _pair(
    before: list[PhaseSplit], after: list[PhaseSplit], first: ReportData, second: ReportData
) -> PhasePair:
    size, a, b = before[0].image_size, _rate(before), _rate(after)
    ratio = None
    if a and b:
        spreads = [
            relative_spread(
                [each for each in facts.throughput_history.stretches if each.image_size == size]
            )
            for facts in (first, second)
        ]
        ratio = _with_spread(b / a, *spreads)
    return PhasePair(
        image_size=size,
        batch_size=before[0].batch_size,
        rates=(a, b),
        wait_pct=(_wait_pct(before), _wait_pct(after)),
        ratio=ratio,
    )


def _with_spread(times: float, one: float | None, two: float | None) -> Ratio:
    if one is None or two is None:
        return Ratio(times=times, low=None, high=None)
    half = times * math.hypot(one, two)
    return Ratio(times=times, low=max(0.0, times - half), high=times + half)


def _images(phases: list[PhaseSplit]) -> float:
    return sum(phase.steps * (phase.batch_size or 1) for phase in phases)


def _rates(
    before: dict[PhaseKey, list[PhaseSplit]], after: dict[PhaseKey, list[PhaseSplit]]
) -> tuple[float | None, float | None]:
    """Images/s of both, for as many images of each phase as the first run had."""
    found: list[float | None] = []
    for each in (before, after):
        seconds, images = 0.0, 0.0
        for key, phases in before.items():
            rate = _rate(each[key])
            seconds += _images(phases) / rate if rate else math.nan
            images += _images(phases)
        found.append(images / seconds if seconds > 0 else None)
    return found[0], found[1]


def _overall(pairs: list[PhasePair], before: dict[PhaseKey, list[PhaseSplit]]) -> Ratio | None:
    """Ratio over all phases: of the sums of their times, with the spread of each."""
    one = two = variance = 0.0
    known = True
    for pair, phases in zip(pairs, before.values(), strict=True):
        if pair.ratio is None or not pair.rates[0]:
            return None
        time_s = _images(phases) / pair.rates[0]
        one, two = one + time_s, two + time_s / pair.ratio.times
        if pair.ratio.high is None:
            known = False
        else:
            variance += (time_s / pair.ratio.times * (pair.ratio.high / pair.ratio.times - 1)) ** 2
    if not two > 0:
        return None
    half = math.sqrt(variance) / two
    times = one / two
    if not known:
        return Ratio(times=times, low=None, high=None)
    return Ratio(times=times, low=max(0.0, times * (1 - half)), high=times * (1 + half))


def _find_changes(first: ReportData, second: ReportData) -> list[tuple[str, str, str]]:
    """Return differences that may explain the ratio."""
    sides: list[dict[str, Any]] = []
    for facts in (first, second):
        side: dict[str, Any] = dict(facts.settings)
        for number, loader in enumerate(facts.loaders):
            prefix = "loader" if len(facts.loaders) == 1 else f"loader {number}"
            side |= {f"{prefix}: {name}": value for name, value in asdict(loader).items()}
        side |= {f"version: {name}": value for name, value in facts.machine.versions.items()}
        side |= {"system": facts.machine.platform, "host": facts.machine.host}
        sides.append(side)
    names = dict.fromkeys([*sides[0], *sides[1]])
    rows = [(name, _shown(sides[0].get(name)), _shown(sides[1].get(name))) for name in names]
    return [each for each in rows if each[1] != each[2]]


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _notes(first: ReportData, second: ReportData) -> list[str]:
    notes = []
    if first.machine.host != second.machine.host:
        notes.append("The runs were on two different hosts with the same hardware description.")
    for name in ("dataset", "samples"):
        unknown = [
            place
            for place, facts in (("first", first), ("second", second))
            if any(getattr(each, name) in ("", None) for each in facts.loaders) or not facts.loaders
        ]
        if unknown:
            label = "dataset" if name == "dataset" else "number of samples"
            notes.append(f"The {label} of the {' and the '.join(unknown)} run is unknown.")
    notes.append(
        "The interval covers the variation within each run. Rates also vary between runs: repeat "
        "both runs to be sure."
    )
    return notes


_SAME_MEMORY = 0.05  # relative: the memory that a cgroup leaves varies a little

PhaseKey: TypeAlias = "tuple[int | None, int | None]"
"""A phase's image size in pixels, and its batch size."""


def differences(first: ReportData, second: ReportData) -> list[str]:
    """Return the differences that make two runs incomparable."""
    one, two = first.machine, second.machine
    pairs: list[tuple[str, Any, Any]] = [
        ("processor", one.cpu, two.cpu),
        ("logical cores", one.cores, two.cores),
        ("usable cores", one.usable_cores, two.usable_cores),
        ("CPU quota", one.quota_cores, two.quota_cores),
        ("GPU", one.gpu, two.gpu),
        ("processes of the training", first.world_size, second.world_size),
    ]
    if not math.isclose(one.memory_bytes, two.memory_bytes, rel_tol=_SAME_MEMORY):
        pairs.append(("memory", one.memory_bytes, two.memory_bytes))
    if len(first.loaders) != len(second.loaders):
        pairs.append(("number of loaders", len(first.loaders), len(second.loaders)))
    for old, new in zip(first.loaders, second.loaders, strict=False):
        if old.dataset and new.dataset:
            pairs.append(("dataset", old.dataset, new.dataset))
        for name, a, b in (
            ("samples", old.samples, new.samples),
            ("batch size", old.batch_size, new.batch_size),
        ):
            if a is not None and b is not None:
                pairs.append((name, a, b))
    found = [f"{name} {_format(a)} and {_format(b)}" for name, a, b in pairs if a != b]
    before, after = phases_of(first).keys(), phases_of(second).keys()
    if before != after:
        found.append(f"phases {_format_phases(before)} and {_format_phases(after)}")
    return list(dict.fromkeys(found))


def _format(value: object) -> str:
    return "none" if value is None else repr(value) if isinstance(value, str) else str(value)


def _format_phases(keys: Any) -> str:
    return ", ".join(phase_label(*key) for key in keys) or "none"


def phase_label(image_size: int | None, batch_size: int | None) -> str:
    """Label of a phase, without its epochs."""
    size = "no image size" if image_size is None else f"{image_size} px"
    return size if batch_size is None else f"{size} @{batch_size}"


def phases_of(facts: ReportData) -> dict[PhaseKey, list[PhaseSplit]]:
    """Group the phases that have steps by image size and batch size, in order."""
    found: dict[PhaseKey, list[PhaseSplit]] = {}
    for phase in facts.phases:
        if phase.steps:
            found.setdefault((phase.image_size, phase.batch_size), []).append(phase)
    return found


_BLOCKS = 10


def relative_spread(stretches: Sequence[RateInterval]) -> float | None:
    """Half of the 95% interval of the mean rate, as a share of it; None if there is too little
    data.

    Neighbouring intervals are correlated, so the time is divided into ten blocks.
    """
    known = [each for each in stretches if each.images_per_s is not None and each.seconds > 0]
    total_s = sum(each.seconds for each in known)
    images, seconds = [0.0] * _BLOCKS, [0.0] * _BLOCKS
    ended_s = 0.0
    for each in known:
        assert each.images_per_s is not None
        place = min(_BLOCKS - 1, int((ended_s + each.seconds / 2) / total_s * _BLOCKS))
        ended_s += each.seconds
        images[place] += each.images_per_s * each.seconds
        seconds[place] += each.seconds
    rates = [count / time for count, time in zip(images, seconds, strict=True) if time > 0]
    return error_of_means(rates)
