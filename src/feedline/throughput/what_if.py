"""Prediction of each phase of a training after a change.

The needs of a step are those of the measured worker pool most similar to the requested one, with
the change applied; the throughput model (`diagnose.step_load`) gives the step time. Measured steps
are a little longer than modelled ones. This factor is kept if steps wait both before and after the
change, or neither; otherwise the prediction lies between both.

Guarantees: pure; what the rates cannot tell has a lower and an upper figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from feedline.errors import UsageError
from feedline.text import format_table, wrap_text
from feedline.throughput.changes import Changes
from feedline.throughput.phase_rates import PoolRate, Rates
from feedline.throughput.step_model import BLOCKED_SHARE, Limit, StepLoad, with_workers

__all__ = [
    "PhasePrediction",
    "WhatIf",
    "phase_name",
    "predict_loads",
    "what_if",
]


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


def what_if(phases: Iterable[Rates], changes: str | Changes) -> WhatIf:
    """Predict each phase after changes.

    Args:
        phases: measured rates.
        changes: see `Changes.parse`.

    Raises:
        UsageError: invalid changes; nothing was measured.
    """
    parsed, measured = Changes.of(changes), list(phases)
    if not measured:
        raise UsageError(
            "nothing was measured, so nothing can be predicted", hint="give it more time"
        )
    return WhatIf(
        changes=parsed,
        phases=tuple(_predict_phase(rates, parsed) for rates in measured),
        unit=measured[0].unit,
    )


def _predict_phase(rates: Rates, changes: Changes) -> PhasePrediction:
    now = rates.now
    base = now if changes.workers is None else rates.nearest(changes.workers)
    loads, notes = predict_loads(rates, base.load, changes)
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
        notes=tuple(notes),
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


def predict_loads(
    rates: Rates, now: StepLoad, changes: Changes
) -> tuple[Sequence[StepLoad], list[str]]:
    """Return the possible needs of a step after a change, the likeliest first, and the reasons.

    Args:
        rates: rates of the phase.
        now: needs with the measured worker pool most similar to the requested one.
        changes: the changes.
    """
    waits, notes = now.blocked_share > BLOCKED_SHARE, list[str]()
    loads = [replace(now, cores=float(changes.cores or now.cores))]
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
    if others := _late_loads(now, loads[0]):
        loads = [*loads, *others]
        notes.append(
            "batches arrive unevenly: some are late although the workers are fast enough on "
            "average, and their delay after the change is unknown"
        )
    return loads, notes


def _late_loads(now: StepLoad, then: StepLoad) -> list[StepLoad]:
    """Return further possible needs of a step if some batches are late now."""
    if not now.late_ms or then == now:
        return []
    # A shorter step may wait for late batches by the time that it saves.
    delays = {max(0.0, now.late_ms + now.compute_ms - then.compute_ms)}
    if then.workers > now.workers or then.cores > now.cores:
        delays.add(0.0)
    if then.workers < now.workers:
        delays.add(now.late_ms)
    return [replace(then, late_ms=late_ms) for late_ms in sorted(delays)]


def _faster(load: StepLoad, times: float) -> StepLoad:
    return replace(load, compute_ms=load.compute_ms / times, step_cpu_ms=load.step_cpu_ms / times)
