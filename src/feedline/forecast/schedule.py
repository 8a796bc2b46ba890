"""Estimate of each phase of a schedule, and of the total against a single image size.

Guarantees: pure; estimates from rates that were not measured are marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.diagnose.step_load import Limit, StepLoad, with_workers
from feedline.engine.messages import MAX_WORKERS
from feedline.errors import UsageError
from feedline.forecast.changes import Changes
from feedline.forecast.rates import Rates, rates_at
from feedline.forecast.what_if import LevelRates, PhasePrediction, phase_name, what_if
from feedline.order.schedule import Phase, Schedule, is_count
from feedline.text import as_seconds, format_table, plural, wrap_text

__all__ = ["Forecast", "PhaseForecast", "forecast"]


_KEEPS_UP = 1.02  # ratio of a batch's time to the step's, up to which workers keep up


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Estimate of a schedule.

    Args:
        phases: in order.
        images: images in an epoch; None if unknown.
        fixed_px: largest size; None if the schedule has a single size.
        fixed_s: duration of all epochs at that size; None likewise.
        unit: unit of the rates.
    """

    phases: tuple[PhaseForecast, ...]
    images: int | None
    fixed_px: int | None
    fixed_s: float | None
    unit: str

    @property
    def seconds(self) -> float | None:
        """Duration of all phases, without pauses between epochs. None if unknown."""
        known = [phase.seconds for phase in self.phases if phase.seconds is not None]
        return sum(known) if len(known) == len(self.phases) else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
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
        """The needs of each phase, and the total duration, in sentences."""
        texts = dict.fromkeys(phase.advice(self.fixed_px, self.unit) for phase in self.phases)
        return [*texts, *self._total()]

    def _total(self) -> list[str]:
        seconds = self.seconds
        if seconds is None:
            return []
        epochs = sum(phase.epochs for phase in self.phases)
        text = (
            f"{plural(epochs, 'epoch')} of {self.images} images take{'s' * (epochs == 1)} "
            f"{as_seconds(seconds)}"
        )
        if self.fixed_s is not None:
            text += (
                f"; all at {self.fixed_px} px {as_seconds(self.fixed_s)}, "
                f"{self.fixed_s / seconds:.2f} times as long"
            )
        return [text]

    def __str__(self) -> str:
        """Return a table of the phases, and the advice."""
        rows = [
            ("", "epochs", self.unit, "compute-bound", "workers", "needed", "time", "bottleneck")
        ]
        rows += [
            (
                phase_name(phase.size),
                str(phase.epochs),
                f"{phase.then.then:.0f}",
                f"{phase.free:.0f}",
                str(phase.workers),
                "-" if phase.needed is None else str(phase.needed),
                "-" if phase.seconds is None else as_seconds(phase.seconds),
                f"the {phase.limit}",
            )
            for phase in self.phases
        ]
        advice = [line for each in self.advice for line in wrap_text(each)]
        return "\n".join([f"forecast ({self.unit})", *format_table(rows), *advice])


def forecast(
    measured: Sequence[Rates],
    schedule: str | Schedule | Phase | Iterable[Phase],
    *,
    images: int | None = None,
    workers: int | None = None,
    levels: LevelRates | None = None,
) -> Forecast:
    """Estimate each phase of a schedule.

    Args:
        measured: rates of at least one size.
        schedule: the phases.
        images: images in an epoch.
        workers: number of workers; None: as measured in each phase.
        levels: rates of the cache's resolutions, one of which may be recommended.

    Raises:
        UsageError: nothing was measured; the schedule has sizes and the measured phases have none;
            invalid numbers of images or workers.
    """
    phases = Schedule.of(schedule).phases
    if not measured:
        raise UsageError(
            "nothing was measured, so nothing can be estimated", hint="give it more time"
        )
    if images is not None and (not is_count(images) or images < 1):
        raise UsageError(f"must be a whole number of at least 1, got {images!r}", argument="images")
    Changes(workers=workers)  # checks the number
    rates = [rates_at(measured, phase.image_size, phase.batch_size) for phase in phases]
    largest = max(range(len(phases)), key=lambda number: phases[number].image_size or 0)
    free = [each.per_s(each.now.load.consume_ms) for each in rates]
    found = []
    for phase, each, compute_bound in zip(phases, rates, free, strict=True):
        number = each.now.load.workers if workers is None else workers
        # Without workers nothing is changed.
        (then,) = what_if([each], Changes(workers=number or None)).phases
        load = with_workers(each.nearest(number).load, number, each.shared or 0.0)
        uneven = load.late_ms > (_KEEPS_UP - 1) * load.consume_ms and then.limit != "step"
        found.append(
            PhaseForecast(
                size=phase.image_size,
                epochs=phase.epochs,
                then=then,
                free=compute_bound,
                more=compute_bound / free[largest],
                workers=number,
                cores=round(load.cores),
                needed=None if uneven else _needed_workers(load, each.shared or 0.0),
                needed_cores=_needed_cores(load),
                level_px=_sufficient_level(load, each, levels or {}),
                seconds=None if images is None else phase.epochs * images / then.then,
                basis=each.basis,
                uneven=uneven,
            )
        )
    one_size = len({phase.image_size for phase in phases}) == 1
    epochs = sum(phase.epochs for phase in phases)
    fixed_s = None if images is None else epochs * images / found[largest].then.then
    return Forecast(
        phases=tuple(found),
        images=images,
        fixed_px=None if one_size else phases[largest].image_size,
        fixed_s=None if one_size else fixed_s,
        unit=rates[0].unit,
    )


def _needed_workers(load: StepLoad, shared: float) -> int | None:
    """Return the smallest number of workers without data wait, if each has a core."""
    enough_ms = _KEEPS_UP * load.consume_ms
    start = load if load.workers else replace(load, workers=1)
    return next(
        (
            number
            for number in range(1, MAX_WORKERS + 1)
            if with_workers(start, number, shared).made_ms <= enough_ms
        ),
        None,
    )


def _needed_cores(load: StepLoad) -> int:
    ms = load.cores_ms * load.cores
    return max(1, math.ceil(ms / (_KEEPS_UP * load.consume_ms))) if load.consume_ms > 0 else 1


def _sufficient_level(load: StepLoad, rates: Rates, levels: LevelRates) -> int | None:
    """Return the largest resolution with which the workers keep up."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseForecast:
    """Estimate of one phase; rates are images/s, or steps/s.

    Args:
        size: image size in pixels; None if batches have no single image size.
        epochs: number of epochs.
        then: prediction with the requested number of workers.
        free: compute-bound rate of the step.
        more: ratio of `free` to that of the largest size.
        workers: requested number of workers.
        cores: number of available cores.
        needed: number of workers without data wait; None if no number is certain to suffice.
        needed_cores: number of cores for these workers and the step.
        level_px: largest measured resolution with which the requested workers keep up.
        seconds: duration; None if the number of images in an epoch is unknown.
        basis: source of the rates if the phase was not measured itself.
        uneven: True if some batches are late although the workers are fast enough on average.
    """

    size: int | None
    epochs: int
    then: PhasePrediction
    free: float
    more: float
    workers: int
    cores: int
    needed: int | None
    needed_cores: int
    level_px: int | None
    seconds: float | None
    basis: str
    uneven: bool = False

    @property
    def limit(self) -> Limit:
        """Bottleneck of the phase."""
        return self.then.limit

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "image_size": self.size,
            "epochs": self.epochs,
            "rate": self.then.then,
            "step_takes": self.free,
            "times_the_largest_size": self.more,
            "num_workers": self.workers,
            "limit": self.limit,
            "num_workers_needed": self.needed,
            "cores_needed": self.needed_cores,
            "batches_come_unevenly": self.uneven,
            "level_px": self.level_px,
            "seconds": self.seconds,
            "basis": self.basis or "measured",
        }

    def advice(self, largest: int | None, unit: str) -> str:
        """Describe the needs of the phase in one sentence.

        Args:
            largest: largest size of the schedule, in pixels; None if there is a single size.
            unit: unit of the rates.
        """
        at = f"at {self.size} px " if self.size else ""
        step = f"{at}the step reaches {self.free:.0f} {unit}"
        if largest is not None and self.size != largest:
            step = f"{at}the step reaches {self.more:.1f} times the {unit} of {largest} px"
        workers = plural(self.workers, "worker")
        reached = f"{workers} on {plural(self.cores, 'core')}: {self.then.then:.0f} {unit}"
        if not self.workers:
            reached = f"without workers: {self.then.then:.0f} {unit}"
        if self.limit == "step":
            text = f"{step}, and {workers} keep{'s' * (self.workers == 1)} up"
        elif self.uneven:
            text = (
                f"{step}; batches arrive unevenly: some are late although the workers are fast "
                f"enough on average; more workers or more prefetch hide more of it; {reached}"
            )
        elif self.needed is None:
            text = f"{step}; no number of workers keeps up; {reached}"
        else:
            text = f"{step}, which needs {self._needed_text()}; {reached}"
        return f"{text} ({self.basis})" if self.basis else text

    def _needed_text(self) -> str:
        needed = plural(self.needed or 0, "worker")
        short_of_cores = self.needed_cores > self.cores
        if short_of_cores:
            needed += f" on {plural(self.needed_cores, 'core')}"
        if self.level_px:
            return f"{needed} or copies of {self.level_px} px"
        if short_of_cores and self.size:
            share = self.cores / self.needed_cores
            needed += f", or a cache whose copies need at most {share:.0%} of the work of an image"
        return needed
