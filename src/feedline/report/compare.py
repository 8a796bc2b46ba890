"""Two runs side by side, where they can be compared.

Guarantees: pure; runs that differ in what a rate depends on besides the loading of data are
refused, with all that differs; what cannot be told of one of them is noted, not guessed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from feedline.diagnose.finding import Bound, PhaseSplit
from feedline.errors import UsageError
from feedline.report.comparable import PhaseKey, differences, phases_of
from feedline.report.facts import Facts
from feedline.report.spread import relative_spread

__all__ = ["Comparison", "PhasePair", "Ratio", "compare"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times as fast the second run was.

    Args:
        times: the rate of the second over that of the first.
        low: the 95% interval's lower end, from how much each run varied within itself; None where
            a run was too short to tell.
        high: its upper end.
    """

    times: float
    low: float | None
    high: float | None

    @property
    def beyond(self) -> bool | None:
        """Whether they differ by more than the spread; None where that is not known."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1 or self.high < 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePair:
    """A phase of both runs. Rates are images/s, None where they were not measured.

    Args:
        image_size: in pixels.
        batch_size: samples of a batch.
        rates: of the first and the second run.
        wait_pct: exposed waiting in percent of the steps, likewise.
        ratio: of the rates.
    """

    image_size: int | None
    batch_size: int | None
    rates: tuple[float | None, float | None]
    wait_pct: tuple[float | None, float | None]
    ratio: Ratio | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs.

    Args:
        bound: how far each is bound by its input.
        rates: images/s of each, over the phases as the first run has them.
        ratio: of these.
        wait_pct: exposed waiting in percent of the time.
        split_ms: the mean step of each.
        phases: one by one.
        changed: what differs in settings, loader and software: name, first, second.
        notes: what is to be known.
    """

    bound: tuple[Bound, Bound]
    rates: tuple[float | None, float | None]
    ratio: Ratio | None
    wait_pct: tuple[float | None, float | None]
    split_ms: tuple[dict[str, float | None], dict[str, float | None]]
    phases: list[PhasePair]
    changed: list[tuple[str, str, str]]
    notes: list[str]


def compare(first: Facts, second: Facts) -> Comparison:
    """Compare two runs.

    Raises:
        UsageError: they cannot be compared; says all that differs.
    """
    differs = differences(first, second)
    if differs:
        raise UsageError(
            "these runs cannot be compared: " + "; ".join(differs) + ". Compare runs of the same "
            "data, batches and image sizes on the same machine"
        )
    before, after = phases_of(first), phases_of(second)
    pairs = [_pair(before[key], after[key], first, second) for key in before]
    return Comparison(
        bound=(first.bound, second.bound),
        rates=_rates(before, after),
        ratio=_overall(pairs, before),
        wait_pct=(first.wait_pct, second.wait_pct),
        split_ms=(first.split_ms, second.split_ms),
        phases=pairs,
        changed=_changed(first, second),
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
    """Exposed waiting over phases of one size, each with the time that it took."""
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
    before: list[PhaseSplit], after: list[PhaseSplit], first: Facts, second: Facts
) -> PhasePair:
    size, a, b = before[0].image_size, _rate(before), _rate(after)
    ratio = None
    if a and b:
        spreads = [
            relative_spread([each for each in facts.course.stretches if each.image_size == size])
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
    """The ratio over all phases: the sum of their times, with the spreads of each."""
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


def _changed(first: Facts, second: Facts) -> list[tuple[str, str, str]]:
    """What differs and may be why."""
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
    shown = [(name, _shown(sides[0].get(name)), _shown(sides[1].get(name))) for name in names]
    return [each for each in shown if each[1] != each[2]]


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _notes(first: Facts, second: Facts) -> list[str]:
    notes = []
    if first.machine.host != second.machine.host:
        notes.append("The runs were on two hosts that say the same of themselves.")
    for name in ("dataset", "samples"):
        unknown = [
            place
            for place, facts in (("first", first), ("second", second))
            if any(getattr(each, name) in ("", None) for each in facts.loaders) or not facts.loaders
        ]
        if unknown:
            what = "dataset" if name == "dataset" else "number of samples"
            notes.append(f"The {what} of the {' and the '.join(unknown)} run is not known.")
    notes.append(
        "The interval says how much each run varied within itself. Runs also differ from one to "
        "the next: repeat both to be sure."
    )
    return notes
