"""Predictions of a training: with other workers, cores or a faster device, and along a schedule.

The load of a step is that of the measured worker pool most similar to the requested one, with the
change applied; the model of a step gives its time. Measured steps are a little longer than modelled
ones. This factor is kept if steps wait both before and after the change, or neither; otherwise the
prediction lies between both.

For a size between two measured ones, step time and work of an image are interpolated by the pixels.
Beyond the measured sizes only the step time is scaled by the pixels.

Guarantees: pure; an unchanged setting predicts its measurement, and no prediction lies outside of
its interval; rates that were not measured are marked by their `basis`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

from feedline.errors import UsageError
from feedline.order.schedule import Phase, Schedule, is_count
from feedline.text import as_seconds, format_table, wrap_text
from feedline.throughput.step_model import (
    MAX_WORKERS,
    Part,
    StepLoad,
    bottleneck,
    with_workers,
    workers_needed,
)
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import PoolRate

_MIN_MS = 1e-3  # shorter steps were not measured

_RANGES: dict[str, tuple[type, str, float, float]] = {
    "workers": (Integral, "a whole number", 1, MAX_WORKERS),
    "cores": (Integral, "a whole number", 1, 4096),
    "gpu": (Real, "a number", 0.01, 1000.0),
}
_FORM = (
    "write any of "
    + ", ".join(f"{name}={low:g}..{high:g}" for name, (_, _, low, high) in _RANGES.items())
    + ' (gpu: factor of the step\'s speed), comma separated, e.g. "workers=8,cores=16,gpu=2"'
)
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_MEASURED = "measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Measured rates of a phase."""

    size: int | None  # of images, in pixels; None if batches have no single one
    rows: float | None  # images in a batch; None if they cannot be counted
    points: tuple[PoolRate, ...]  # by worker pool; predictions are compared with the first
    level_px: int | None = None  # shorter side of the copies read; None for the originals
    basis: str = ""  # source of the rates if they were not measured

    @property
    def now(self) -> PoolRate:
        """Measurement that predictions are compared with."""
        return self.points[0]

    @property
    def unit(self) -> str:
        """Unit of the rates."""
        return "steps/s" if self.rows is None else "images/s"

    def nearest(self, workers: int) -> PoolRate:
        """Return the measured pool most similar to a number of workers."""

        def distance(point: PoolRate) -> float:
            return abs(math.log(max(1, point.load.workers) / max(1, workers)))

        return min(self.points, key=distance)

    def per_s(self, step_ms: float) -> float:
        """Return images/s, or steps/s if the images are unknown."""
        return (self.rows or 1.0) * 1000 / max(_MIN_MS, step_ms)

    @property
    def shared(self) -> float | None:
        """Degree to which waiting workers wait for each other, 0 to 1; None if unknown.

        Measured by the growth of their waiting with the number of busy workers: proportional
        growth is 1.
        """
        few = min(self.points, key=lambda point: point.busy_workers)
        many = max(self.points, key=lambda point: point.busy_workers)
        ratio = many.busy_workers / few.busy_workers if few.busy_workers > 0 else 0.0
        if ratio < THRESHOLDS.pools_differ or few.load.work_blocked_ms <= 0:
            return None
        longer = many.load.work_blocked_ms / few.load.work_blocked_ms
        return min(1.0, max(0.0, math.log(longer) / math.log(ratio))) if longer > 0 else 0.0

    def scale(self, *, compute: float, work: float, **changes: Any) -> Rates:
        """Scale the times of a step and of a batch's work by factors."""

        def scale(point: PoolRate) -> PoolRate:
            now, load = point.load, point.load.scaled(compute=compute, work=work)
            stretch = point.step_ms / now.step_ms if now.step_ms > 0 else 1.0
            return replace(point, load=load, step_ms=load.step_ms * stretch)

        return replace(self, points=tuple(map(scale, self.points)), **changes)


def rates_at(measured: Sequence[Rates], size: int | None, rows: int | None = None) -> Rates:
    """Return the rates of an image size and a batch size, scaled if they were not measured.

    Raises:
        UsageError: the measured phases have no sizes and one is requested, or the reverse.
    """
    same = [each for each in measured if each.size == size]
    # One size may be measured with several batch sizes.
    found = min(same, key=lambda each: abs((each.rows or 0) - rows) if rows else 0, default=None)
    if found is None:
        sized = sorted((each for each in measured if each.size), key=lambda each: each.size or 0)
        if size is None or not sized:
            raise UsageError(
                f"the schedule has {size or 'no'} px, but the measured phases have "
                f"{'other sizes' if sized else 'no sizes'}",
                hint="measure the sizes of the schedule",
            )
        found = _interpolate(sized, size)
    if rows and found.rows and rows != round(found.rows):
        factor = rows / found.rows
        note = f"scaled from batches of {found.rows:.0f}"
        basis = f"{found.basis}, {note}" if found.basis else note
        found = found.scale(compute=factor, work=factor, rows=float(rows), basis=basis)
    return found


def _interpolate(sized: Sequence[Rates], size: int) -> Rates:
    """Return the rates of a size that was not measured; `sized` is in the order of sizes."""

    def pixels(rates: Rates) -> int:
        return (rates.size or 0) ** 2

    near = min(sized, key=lambda each: abs(pixels(each) - size**2))
    low = next((each for each in reversed(sized) if pixels(each) < size**2), None)
    high = next((each for each in sized if pixels(each) > size**2), None)
    if low is None or high is None:
        return near.scale(
            compute=size**2 / pixels(near),
            work=1.0,
            size=size,
            basis=f"not measured: scaled from {near.size} px, with a step time proportional to the "
            "pixels and the same work for an image",
        )
    share = (size**2 - pixels(low)) / (pixels(high) - pixels(low))

    def factor(name: str) -> float:
        """Ratio of an interpolated time to that of the nearer size."""
        first, last, own = (
            getattr(each.now.load, name) / (each.rows or 1.0) for each in (low, high, near)
        )
        return float(((1 - share) * first + share * last) / own) if own > 0 else 1.0

    return near.scale(
        compute=factor("compute_ms"),
        work=factor("work_ms"),
        size=size,
        basis=f"interpolated between {low.size} and {high.size} px by the pixels",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Changes of a training; None keeps a value.

    Raises:
        UsageError: a value is out of range.
    """

    workers: int | None = None  # number of worker processes
    cores: int | None = None  # available to all processes
    gpu: float | None = None  # factor of the step's compute speed

    def __post_init__(self) -> None:
        for name, (kind, expected, low, high) in _RANGES.items():
            value: Any = getattr(self, name)
            number = isinstance(value, kind) and not isinstance(value, bool)
            if value is not None and not (number and low <= value <= high):
                raise UsageError(
                    f"what-if: {name} must be {expected} from {low:g} to {high:g}, got {value!r}",
                    hint=_FORM,
                )

    @classmethod
    def parse(cls, text: str) -> Changes:
        """Parse changes from text.

        Raises:
            UsageError: the text is empty, a name is unknown or repeated, or a value is invalid.

        Example:
            >>> Changes.parse("workers=8,gpu=2")
            Changes(workers=8, cores=None, gpu=2.0)
        """
        if not isinstance(text, str):
            raise UsageError(f"what-if must be text, got {text!r}", hint=_FORM)
        values: dict[str, Any] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in _RANGES or name in values:
                problem = "repeated" if name in values else "unknown"
                raise UsageError(f"what-if {text!r}: {problem} name {name!r}", hint=_FORM)
            # An invalid number stays text and is rejected by the range check.
            kind, pattern = (float, _DECIMAL) if name == "gpu" else (int, _WHOLE)
            values[name] = kind(value) if pattern.fullmatch(value) else value
        return cls(**values)

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in _RANGES}
        return ", ".join(f"{name}={value:g}" for name, value in given.items() if value is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEstimate:
    """Estimate of a phase; rates are images/s, or steps/s."""

    image_size: int | None  # in pixels; None if batches have no single image size
    rows: float | None  # images in a batch; None if they cannot be counted
    num_workers: int
    now: float  # measured rate
    then: float  # estimated rate
    low: float  # limits of the estimate
    high: float
    factor: float  # ratio of the estimated rate to the measured one
    bottleneck: Part
    notes: tuple[str, ...]  # reasons for the uncertainty
    compute_bound_rate: float  # of the step without data wait
    num_workers_needed: int | None  # without data wait; None if no number is certain to suffice
    cores_needed: int  # for these workers and the step
    is_uneven: bool  # some batches are late although the workers are fast enough on average
    basis: str  # source of the rates
    epochs: int | None = None  # of the phase of a schedule; None without a schedule
    seconds: float | None = None  # for these; None if an epoch's number of images is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """Prediction of a training after changes."""

    changes: Changes
    phases: tuple[PhaseEstimate, ...]  # in the order of the measurement
    unit: str  # of the rates

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        """Return a table of the phases, and the notes."""
        sizes = [phase.image_size for phase in self.phases]
        rows = [("", "workers", "now", "then", "factor", "bottleneck")]
        for phase in self.phases:
            name = _phase_name(phase.image_size)
            if phase.rows and sizes.count(phase.image_size) > 1:
                name += f", batches of {phase.rows:.0f}"
            wide = phase.high > THRESHOLDS.wide_range * phase.low
            then = f"{phase.low:.0f} to {phase.high:.0f}" if wide else f"{phase.then:.0f}"
            rates = f"{phase.now:.0f}", then, f"{phase.factor:.2f}"
            rows.append((name, str(phase.num_workers), *rates, phase.bottleneck))
        notes = dict.fromkeys(note for phase in self.phases for note in phase.notes)
        return _text(f"what if {self.changes} ({self.unit})", rows, notes)


def what_if(measured: Sequence[Rates], changes: str | Changes) -> WhatIf:
    """Predict each of at least one measured phase after changes, as text or parsed.

    Raises:
        UsageError: invalid changes.
    """
    parsed = changes if isinstance(changes, Changes) else Changes.parse(changes)
    found = tuple(_predict_phase(rates, parsed) for rates in measured)
    return WhatIf(changes=parsed, phases=found, unit=measured[0].unit)


def _predict_phase(rates: Rates, changes: Changes) -> PhaseEstimate:
    now = rates.now
    base = now if changes.workers is None else rates.nearest(changes.workers)
    loads, notes = _possible_loads(rates, base.load, changes)
    steps = [_step_range(base, load) for load in loads]
    then_ms = math.sqrt(steps[0][0] * steps[0][1])
    error, spread = 0.0, [then_ms]
    if loads[0] != base.load:
        less, more = sorted((then_ms, base.step_ms))
        changed = 1 - less / more if more > 0 else 0.0
        measured = max(base.error, THRESHOLDS.run_to_run)
        error = math.hypot(measured, THRESHOLDS.model_error * changed)
        spread = [each for pair in steps for each in pair]
    load, shared = loads[0], rates.shared or 0.0
    part = bottleneck(load)
    uneven = part == "workers" and load.late_ms > THRESHOLDS.alike * load.consume_ms
    cores = load.cores_ms * load.cores / load.consume_ms if load.consume_ms > 0 else 1.0
    return PhaseEstimate(
        image_size=rates.size,
        rows=rates.rows,
        num_workers=load.workers,
        now=rates.per_s(now.step_ms),
        then=rates.per_s(then_ms),
        low=rates.per_s(max(spread) * (1 + error)),
        high=rates.per_s(min(spread) / (1 + error)),
        factor=rates.per_s(then_ms) / rates.per_s(now.step_ms),
        bottleneck=part,
        notes=tuple(notes),
        compute_bound_rate=rates.per_s(load.consume_ms),
        num_workers_needed=None if uneven else workers_needed(load, shared=shared),
        cores_needed=max(1, math.ceil(cores / (1 + THRESHOLDS.alike))),
        is_uneven=uneven,
        basis=rates.basis or _MEASURED,
    )


def _step_range(base: PoolRate, then: StepLoad) -> tuple[float, float]:
    """Return the shortest and longest step in ms after a change of a measured worker pool."""
    now = base.load
    if then == now:
        return base.step_ms, base.step_ms
    model_ms = then.step_ms
    long_ms = model_ms * base.step_ms / now.step_ms if now.step_ms > 0 else model_ms
    return min(model_ms, long_ms) if now.waits and not then.waits else long_ms, long_ms


def _possible_loads(
    rates: Rates, now: StepLoad, changes: Changes
) -> tuple[Sequence[StepLoad], list[str]]:
    """Return the possible loads of a step after changes, the likeliest first, and the reasons.

    `now` is the load with the measured worker pool most similar to the requested one.
    """
    notes = list[str]()
    loads = [replace(now, cores=float(changes.cores or now.cores))]
    if (faster := changes.gpu) is not None:
        loads = [loads[0].scaled(compute=1 / faster)]
        on_core = min(now.step_cpu_ms, now.compute_ms)
        if faster > 1 and on_core > loads[0].compute_ms:
            # Its CPU time may be kernel launches.
            loads.append(replace(loads[0], compute_ms=on_core, step_cpu_ms=now.step_cpu_ms))
            notes.append("part of the step runs on the CPU, which a faster GPU may not shorten")
    workers = changes.workers
    if workers is not None and workers != now.workers:
        shared, same = rates.shared, loads[0]
        loads = [with_workers(load, workers, shared or 0.0) for load in loads]
        if now.blocked_share > THRESHOLDS.may_hold_lock and shared is None:
            loads.append(same)  # their CPU time may be serialised, too
            notes.append(
                "workers mostly wait: the estimate holds only if the storage serves all of them at "
                "once"
            )
    if now.late_ms and loads[0] != now:
        then = loads[0]
        # A shorter step may wait for late batches by the time that it saves.
        delays = {max(0.0, now.late_ms + now.compute_ms - then.compute_ms)}
        if then.workers > now.workers or then.cores > now.cores:
            delays.add(0.0)
        if then.workers < now.workers:
            delays.add(now.late_ms)
        loads += [replace(then, late_ms=late_ms) for late_ms in sorted(delays)]
        notes.append(
            "batches arrive unevenly: some are late although the workers are fast enough on "
            "average, and their delay after the change is unknown"
        )
    return loads, notes


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Estimate of a schedule."""

    images_per_epoch: int | None
    unit: str  # of the rates
    seconds: float | None  # of all phases, without pauses between epochs; None if unknown
    fixed_size_px: int | None  # largest size; None if the schedule has a single size
    fixed_size_s: float | None  # of all epochs at that size; None likewise
    phases: tuple[PhaseEstimate, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        """Return a table of the phases, and the notes."""
        columns = f",epochs,{self.unit},compute-bound,workers,needed,time,bottleneck".split(",")
        rows, notes = [tuple(columns)], list[str]()
        for each in self.phases:
            name = _phase_name(each.image_size)
            rates = f"{each.then:.0f}", f"{each.compute_bound_rate:.0f}"
            workers = str(each.num_workers), str(each.num_workers_needed or "-")
            time = "-" if each.seconds is None else as_seconds(each.seconds)
            rows.append((name, str(each.epochs), *rates, *workers, time, each.bottleneck))
            if each.basis != _MEASURED:
                notes.append(f"{name}: {each.basis}")
        epochs = str(sum(each.epochs or 0 for each in self.phases))
        for name, seconds in (
            ("total", self.seconds if len(self.phases) > 1 else None),
            (f"all at {self.fixed_size_px} px", self.fixed_size_s),
        ):
            if seconds is not None:
                rows.append((name, epochs, "", "", "", "", as_seconds(seconds), ""))
        if any(each.is_uneven for each in self.phases):
            notes.append("batches arrive unevenly: no number of workers is certain to suffice")
        return _text(f"forecast ({self.unit})", rows, notes)


def forecast(
    measured: Sequence[Rates],
    schedule: str | Schedule | Phase | Iterable[Phase],
    *,
    images: int | None = None,
    workers: int | None = None,
) -> Forecast:
    """Estimate each phase of a schedule, with a number of workers or those of each measurement.

    Times are known if the number of `images` in an epoch is.

    Raises:
        UsageError: the schedule has sizes and the measured phases have none; invalid numbers of
            images or workers.
    """
    phases = Schedule.of(schedule).phases
    if images is not None and (not is_count(images) or images < 1):
        raise UsageError(f"must be a whole number of at least 1, got {images!r}", argument="images")
    Changes(workers=workers)  # checks the number
    found = []
    for phase in phases:
        rates = rates_at(measured, phase.image_size, phase.batch_size)
        number = rates.now.load.workers if workers is None else workers
        each = _predict_phase(rates, Changes(workers=number or None))  # without workers: unchanged
        seconds = None if images is None else phase.epochs * images / each.then
        found.append(replace(each, epochs=phase.epochs, seconds=seconds))
    several = len({each.image_size for each in found}) > 1
    largest = max(found, key=lambda each: each.image_size or 0)
    fixed_s = None
    if images is not None and several:
        fixed_s = sum(phase.epochs for phase in phases) * images / largest.then
    return Forecast(
        images_per_epoch=images,
        unit=measured[0].unit,
        seconds=None if images is None else sum(each.seconds or 0.0 for each in found),
        fixed_size_px=largest.image_size if several else None,
        fixed_size_s=fixed_s,
        phases=tuple(found),
    )


def _text(title: str, rows: Sequence[Sequence[str]], notes: Iterable[str]) -> str:
    lines = (line for note in notes for line in wrap_text(note))
    return "\n".join([title, *format_table(rows), *lines])


def _phase_name(size: int | None) -> str:
    return f"{size} px" if size else "all batches"
