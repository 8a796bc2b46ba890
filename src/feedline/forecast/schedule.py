"""What each phase of a schedule will be, and the whole of it against one fixed size.

Guarantees: pure; what was not measured is said (`rates_at`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.diagnose.step_load import StepLoad, with_workers
from feedline.engine.board import MAX_SEATS
from feedline.errors import UsageError
from feedline.forecast.changes import Changes
from feedline.forecast.phase_forecast import PhaseForecast
from feedline.forecast.rates import Rates
from feedline.forecast.rates_at import rates_at
from feedline.forecast.text import aligned, counted, duration, of_size, wrapped
from feedline.forecast.what_if import LevelRates, what_if
from feedline.plan.schedule import Phase, Schedule
from feedline.plan.state import is_count

__all__ = ["Forecast", "forecast"]

_KEEPS_UP = 1.02  # times a step's own time: workers that need as long for a batch keep up


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A schedule to come.

    Args:
        phases: in their order.
        images: of an epoch; None where they are not known.
        fixed_px: the largest size, where there are several,
        fixed_s: and how long all epochs take at it; None likewise.
        unit: of all rates.
    """

    phases: tuple[PhaseForecast, ...]
    images: int | None
    fixed_px: int | None
    fixed_s: float | None
    unit: str

    @property
    def seconds(self) -> float | None:
        """All phases; without what lies between epochs. None where it is not known."""
        known = [phase.seconds for phase in self.phases if phase.seconds is not None]
        return sum(known) if len(known) == len(self.phases) else None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "images_per_epoch": self.images,
            "unit": self.unit,
            "seconds": self.seconds,
            "fixed_size_px": self.fixed_px,
            "fixed_size_s": self.fixed_s,
            "phases": [phase.as_dict() for phase in self.phases],
        }

    @property
    def advice(self) -> list[str]:
        """What each phase needs, and how long all take, in sentences."""
        said = dict.fromkeys(phase.advice(self.fixed_px, self.unit) for phase in self.phases)
        return [*said, *self._total()]

    def _total(self) -> list[str]:
        seconds = self.seconds
        if seconds is None:
            return []
        epochs = sum(phase.epochs for phase in self.phases)
        said = (
            f"{counted(epochs, 'epoch')} of {self.images} images take{'s' * (epochs == 1)} "
            f"{duration(seconds)}"
        )
        if self.fixed_s is not None:
            said += (
                f"; at {self.fixed_px} px throughout {duration(self.fixed_s)}, "
                f"{self.fixed_s / seconds:.2f} times as long"
            )
        return [said]

    def __str__(self) -> str:
        """A line for each phase, and the advice."""
        rows = [("", "epochs", self.unit, "step takes", "workers", "needed", "time", "bound by")]
        rows += [
            (
                of_size(phase.size),
                str(phase.epochs),
                f"{phase.then.then:.0f}",
                f"{phase.free:.0f}",
                str(phase.workers),
                "-" if phase.needed is None else str(phase.needed),
                "-" if phase.seconds is None else duration(phase.seconds),
                f"the {phase.limit}",
            )
            for phase in self.phases
        ]
        said = [line for each in self.advice for line in wrapped(each)]
        return "\n".join([f"forecast ({self.unit})", *aligned(rows), *said])


def forecast(
    measured: Sequence[Rates],
    schedule: str | Schedule | Phase | Iterable[Phase],
    *,
    images: int | None = None,
    workers: int | None = None,
    levels: LevelRates | None = None,
) -> Forecast:
    """Predict each phase of a schedule.

    Args:
        measured: some sizes, at least one.
        schedule: the phases.
        images: of an epoch.
        workers: with which all of it runs; None: each phase with those it was measured with.
        levels: rates of copies, of which one may be advised.

    Raises:
        UsageError: nothing was measured; the schedule has sizes and what was measured has none;
            images or workers that are no number of them.
    """
    phases = Schedule.of(schedule).phases
    if not measured:
        raise UsageError("nothing was measured, so nothing can be forecast; give it more time")
    if images is not None and (not is_count(images) or images < 1):
        raise UsageError(f"images must be a whole number of at least 1, got {images!r}")
    Changes(workers=workers)  # refuses what is no number of workers
    rates = [rates_at(measured, phase.size, phase.batch_size) for phase in phases]
    largest = max(range(len(phases)), key=lambda number: phases[number].size or 0)
    free = [each.per_s(each.now.load.consume_ms) for each in rates]
    found = []
    for phase, each, takes in zip(phases, rates, free, strict=True):
        crew = each.now.load.workers if workers is None else workers
        # Without workers nothing is changed.
        (then,) = what_if([each], Changes(workers=crew or None)).phases
        load = with_workers(each.near(crew).load, crew, each.shared or 0.0)
        uneven = load.late_ms > (_KEEPS_UP - 1) * load.consume_ms and then.limit != "step"
        found.append(
            PhaseForecast(
                size=phase.size,
                epochs=phase.epochs,
                then=then,
                free=takes,
                more=takes / free[largest],
                workers=crew,
                cores=round(load.cores),
                needed=None if uneven else _needed(load, each.shared or 0.0),
                needed_cores=_needed_cores(load),
                level_px=_level(load, each, levels or {}),
                seconds=None if images is None else phase.epochs * images / then.then,
                basis=each.basis,
                uneven=uneven,
            )
        )
    one_size = len({phase.size for phase in phases}) == 1
    epochs = sum(phase.epochs for phase in phases)
    fixed_s = None if images is None else epochs * images / found[largest].then.then
    return Forecast(
        phases=tuple(found),
        images=images,
        fixed_px=None if one_size else phases[largest].size,
        fixed_s=None if one_size else fixed_s,
        unit=rates[0].unit,
    )


def _needed(load: StepLoad, shared: float) -> int | None:
    """The fewest workers with which a step does not wait, each on a core of its own."""
    enough_ms = _KEEPS_UP * load.consume_ms
    crews = range(1, MAX_SEATS + 1)
    start = load if load.workers else replace(load, workers=1)
    return next(
        (crew for crew in crews if with_workers(start, crew, shared).made_ms <= enough_ms), None
    )


def _needed_cores(load: StepLoad) -> int:
    ms = load.cores_ms * load.cores
    return max(1, math.ceil(ms / (_KEEPS_UP * load.consume_ms))) if load.consume_ms > 0 else 1


def _level(load: StepLoad, rates: Rates, levels: LevelRates) -> int | None:
    """The largest level with which a crew keeps up."""
    size, wanted = rates.size, rates.wanted_px
    if size is None or wanted is None:
        return None
    sides = {level.side for rows, level in levels if rows == size and level is not None}
    known = {level.side if level else None for rows, level in levels if rows == size}
    for side in sorted(sides, reverse=True):
        if side >= wanted and side != rates.level_px and rates.level_px in known:
            (then,) = what_if([rates], Changes(workers=load.workers, cache=side), levels).phases
            if then.limit == "step":
                return side
    return None
