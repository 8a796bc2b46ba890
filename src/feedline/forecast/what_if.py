"""Prediction of each phase of a training after a change.

The needs of a step are those of the measured worker pool most similar to the requested one, with
the change applied; the throughput model (`diagnose.step_load`) gives the step time. Measured steps
are a little longer than modelled ones. This factor is kept if steps wait both before and after the
change, or neither; otherwise the prediction lies between both.

Guarantees: pure; what the rates cannot tell has a lower and an upper figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from feedline.diagnose.step_load import BLOCKED_SHARE, Limit, StepLoad, with_workers
from feedline.errors import UsageError
from feedline.forecast.changes import Changes
from feedline.forecast.rates import PoolRate, Rates
from feedline.sources.manifest import Level
from feedline.text import format_table, wrap_text

__all__ = [
    "LevelRates",
    "PhasePrediction",
    "WhatIf",
    "phase_name",
    "predict_loads",
    "what_if",
]


LevelRates: TypeAlias = "Mapping[tuple[int, Level | None], float]"
"""Loading rates without a step, in images/s, by image size in pixels and resolution of the cache
(None for the originals). Only their ratios count."""

_WIDE_RANGE = 1.2  # ratio of the limits from which they are printed


def phase_name(size: int | None) -> str:
    """Name a phase by its image size."""
    return f"{size} px" if size else "all batches"


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePrediction:
    """Prediction of a phase after a change; rates are images/s, or steps/s.

    Args:
        size: image size in pixels; None if the phase has none.
        rows: images in a batch; None if they cannot be counted.
        workers: current number of workers.
        now: measured rate.
        then: predicted rate.
        low: lower limit of the prediction.
        high: upper limit of the prediction.
        limit: predicted bottleneck.
        notes: reasons for the uncertainty.
    """

    size: int | None
    rows: float | None
    workers: int
    now: float
    then: float
    low: float
    high: float
    limit: Limit
    notes: tuple[str, ...] = ()

    @property
    def factor(self) -> float:
        """Ratio of the predicted rate to the measured one."""
        return self.then / self.now

    @property
    def text(self) -> str:
        """Predicted rate, or its limits if they differ much."""
        if self.high > _WIDE_RANGE * self.low:
            return f"{self.low:.0f} to {self.high:.0f}"
        return f"{self.then:.0f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """Prediction of a training after changes.

    Args:
        changes: the changes.
        phases: predictions in the order of the measurement.
        unit: unit of the rates.
    """

    changes: Changes
    phases: tuple[PhasePrediction, ...]
    unit: str

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary."""
        return {
            "changes": asdict(self.changes),
            "unit": self.unit,
            "phases": [{**asdict(phase), "factor": phase.factor} for phase in self.phases],
        }

    def __str__(self) -> str:
        """Return a table of the phases, and the notes."""
        sizes = [phase.size for phase in self.phases]
        rows = [("", "workers", "now", "then", "factor", "bottleneck")]
        rows += [
            (
                phase_name(phase.size)
                + (
                    f", batches of {phase.rows:.0f}"
                    if phase.rows and sizes.count(phase.size) > 1
                    else ""
                ),
                str(phase.workers),
                f"{phase.now:.0f}",
                phase.text,
                f"{phase.factor:.2f}",
                f"the {phase.limit}",
            )
            for phase in self.phases
        ]
        notes = dict.fromkeys(note for phase in self.phases for note in phase.notes)
        lines = [f"what if {self.changes} ({self.unit})", *format_table(rows)]
        return "\n".join([*lines, *(line for note in notes for line in wrap_text(note))])


def what_if(
    phases: Iterable[Rates], changes: str | Changes, levels: LevelRates | None = None
) -> WhatIf:
    """Predict each phase after changes.

    Args:
        phases: measured rates.
        changes: see `Changes.parse`.
        levels: rates of the cache's resolutions, for another one than measured.

    Raises:
        UsageError: invalid changes; a resolution was not measured; nothing was measured.
    """
    parsed, measured = Changes.of(changes), list(phases)
    if not measured:
        raise UsageError(
            "nothing was measured, so nothing can be predicted", hint="give it more time"
        )
    return WhatIf(
        changes=parsed,
        phases=tuple(_predict_phase(rates, parsed, levels or {}) for rates in measured),
        unit=measured[0].unit,
    )


def _predict_phase(rates: Rates, changes: Changes, levels: LevelRates) -> PhasePrediction:
    now = rates.now
    base = now if changes.workers is None else rates.nearest(changes.workers)
    work, notes = _work_factor(rates, changes, levels)
    loads, reasons = predict_loads(rates, base.load, changes, work)
    steps = [_step_range(base, load) for load in loads]
    likely, spread = steps[0], [each for pair in steps for each in pair]
    then_ms = math.sqrt(likely[0] * likely[1])
    error = base.error if base.error < 1 else 0.0
    if loads[0] == base.load:
        error, spread = 0.0, [then_ms]
    return PhasePrediction(
        size=rates.size,
        rows=rates.rows,
        workers=now.load.workers,
        now=rates.per_s(now.step_ms),
        then=rates.per_s(then_ms),
        low=rates.per_s(max(spread) * (1 + error)),
        high=rates.per_s(min(spread) / (1 + error)),
        limit=loads[0].limit,
        notes=(*notes, *reasons),
    )


def _step_range(base: PoolRate, then: StepLoad) -> tuple[float, float]:
    """Return the shortest and longest predicted step in ms.

    Args:
        base: measured worker pool.
        then: needs of a step after the change.
    """
    now = base.load
    if then == now:
        return base.step_ms, base.step_ms
    model_ms = then.step_ms
    long_ms = model_ms * base.step_ms / now.step_ms if now.step_ms > 0 else model_ms
    stops_waiting = now.limit != "step" and then.limit == "step"
    return min(model_ms, long_ms) if stops_waiting else long_ms, long_ms


def _work_factor(rates: Rates, changes: Changes, levels: LevelRates) -> tuple[float, list[str]]:
    """Return the factor of a batch's work with another resolution, and notes."""
    if changes.cache is None:
        return 1.0, []
    size, wanted = rates.size, rates.wanted_px
    if size is None or wanted is None:
        raise UsageError(
            "cache= needs images that feedline reads at an image size, which these batches are not",
            hint="remove it",
        )
    side = None if changes.cache == "none" else changes.cache
    if side == rates.level_px:
        return 1.0, []
    if side is not None and side < wanted:
        return 1.0, [
            f"images of {size} px need copies of at least {wanted} px; predicted without the change"
        ]
    then, now = (_level_rate(levels, size, each) for each in (side, rates.level_px))
    return now / then, []


def _level_rate(levels: LevelRates, size: int, side: int | None) -> float:
    """Return the rate of images of a size from a resolution of the cache, or from the originals.

    If several qualities were measured, the rate of the highest.

    Raises:
        UsageError: it was not measured.
    """
    found = {
        -1 if level is None or level.quality is None else level.quality: rate
        for (rows, level), rate in levels.items()
        if rows == size and (level.side if level else None) == side
    }
    if not found:
        source = f"copies of {side} px" if side else "the originals"
        known = sorted({f"{level.side} px" if level else "the originals" for _, level in levels})
        raise UsageError(
            f"loading images of {size} px from {source} was not measured"
            + (f", only from {', '.join(known)}" if known else ""),
            hint="`feedline tune DIR --what-if cache=...` measures it; in Python pass "
            "levels=feedline.plan_cache(folder, schedule, sizes=[...]).rates",
        )
    return found[max(found)]


def predict_loads(
    rates: Rates, now: StepLoad, changes: Changes, work: float
) -> tuple[Sequence[StepLoad], list[str]]:
    """Return the possible needs of a step after a change, the likeliest first, and the reasons.

    Args:
        rates: rates of the phase.
        now: needs with the measured worker pool most similar to the requested one.
        changes: the changes.
        work: factor of a batch's work.
    """
    then = replace(
        now,
        cores=float(changes.cores or now.cores),
        work_cpu_ms=now.work_cpu_ms * work,
        work_blocked_ms=now.work_blocked_ms * work,
        late_ms=now.late_ms * work,
    )
    waits, notes = now.blocked_share > BLOCKED_SHARE, list[str]()
    loads = [then]
    if waits and work != 1.0:
        # The wait may not depend on the size of the copies.
        loads.append(replace(then, work_blocked_ms=now.work_blocked_ms))
        notes.append("much of the work is waiting, which a cache may not shorten")
    if changes.gpu is not None:
        loads = [_faster(load, changes.gpu) for load in loads]
        on_core = min(now.step_cpu_ms, now.compute_ms)
        if changes.gpu > 1 and on_core > loads[0].compute_ms:
            # Its CPU time may be kernel launches.
            loads.append(replace(loads[0], compute_ms=on_core, step_cpu_ms=now.step_cpu_ms))
            notes.append("part of the step runs on the CPU, which a faster GPU may not shorten")
    workers = changes.workers
    if workers is not None and workers != now.workers:
        shared = rates.shared
        likely = [with_workers(load, workers, shared or 0.0) for load in loads]
        if waits and shared is None:
            # Their CPU time may be serialised, too.
            same = with_workers(loads[0], now.workers)
            likely.append(replace(same, cores=likely[0].cores))
            notes.append(
                "workers mostly wait: the estimate holds only if the storage serves all of them at "
                "once"
            )
        loads = likely
    if others := _late_loads(now, loads[0], work):
        loads = [*loads, *others]
        notes.append(
            "batches arrive unevenly: some are late although the workers are fast enough on "
            "average, and their delay after the change is unknown"
        )
    return loads, notes


def _late_loads(now: StepLoad, then: StepLoad, work: float) -> list[StepLoad]:
    """Return further possible needs of a step if some batches are late now."""
    if not now.late_ms or then == now:
        return []
    # A shorter step may wait for late batches by the time that it saves.
    delays = {max(0.0, now.late_ms + now.compute_ms - then.compute_ms)}
    if then.workers > now.workers or then.cores > now.cores or work < 1:
        delays.add(0.0)
    if then.workers < now.workers or work != 1:
        delays.add(now.late_ms)
    return [replace(then, late_ms=late_ms) for late_ms in sorted(delays)]


def _faster(load: StepLoad, times: float) -> StepLoad:
    return replace(load, compute_ms=load.compute_ms / times, step_cpu_ms=load.step_cpu_ms / times)
