"""Estimate of each phase of a schedule, and of the total against a single image size.

Guarantees: pure; estimates from rates that were not measured are marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule, is_count
from feedline.text import as_seconds, format_table, wrap_text
from feedline.throughput.changes import Changes
from feedline.throughput.limits import MAX_WORKERS
from feedline.throughput.phase_rates import Rates, rates_at
from feedline.throughput.step_model import Limit, StepLoad, with_workers
from feedline.throughput.what_if import PhasePrediction, phase_name, what_if

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

    def __str__(self) -> str:
        """Return a table of the phases and the total, and the source of rates not measured."""
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
        epochs = str(sum(phase.epochs for phase in self.phases))
        for name, seconds in (
            ("total", self.seconds if len(self.phases) > 1 else None),
            (f"all at {self.fixed_px} px", self.fixed_s),
        ):
            if seconds is not None:
                rows.append((name, epochs, "", "", "", "", as_seconds(seconds), ""))
        notes = [f"{phase_name(each.size)}: {each.basis}" for each in self.phases if each.basis]
        if any(phase.uneven for phase in self.phases):
            notes.append("batches arrive unevenly: no number of workers is certain to suffice")
        lines = [line for note in notes for line in wrap_text(note)]
        return "\n".join([f"forecast ({self.unit})", *format_table(rows), *lines])


def forecast(
    measured: Sequence[Rates],
    schedule: str | Schedule | Phase | Iterable[Phase],
    *,
    images: int | None = None,
    workers: int | None = None,
) -> Forecast:
    """Estimate each phase of a schedule.

    Args:
        measured: rates of at least one size.
        schedule: the phases.
        images: images in an epoch.
        workers: number of workers; None: as measured in each phase.

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
                workers=number,
                needed=None if uneven else _needed_workers(load, each.shared or 0.0),
                needed_cores=_needed_cores(load),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseForecast:
    """Estimate of one phase; rates are images/s, or steps/s.

    Args:
        size: image size in pixels; None if batches have no single image size.
        epochs: number of epochs.
        then: prediction with the requested number of workers.
        free: compute-bound rate of the step.
        workers: requested number of workers.
        needed: number of workers without data wait; None if no number is certain to suffice.
        needed_cores: number of cores for these workers and the step.
        seconds: duration; None if the number of images in an epoch is unknown.
        basis: source of the rates if the phase was not measured itself.
        uneven: True if some batches are late although the workers are fast enough on average.
    """

    size: int | None
    epochs: int
    then: PhasePrediction
    free: float
    workers: int
    needed: int | None
    needed_cores: int
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
            "num_workers": self.workers,
            "limit": self.limit,
            "num_workers_needed": self.needed,
            "cores_needed": self.needed_cores,
            "batches_come_unevenly": self.uneven,
            "seconds": self.seconds,
            "basis": self.basis or "measured",
        }
