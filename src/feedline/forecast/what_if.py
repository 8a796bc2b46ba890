"""Prediction of each phase of a training after a change.

The needs of a step are those of the measured worker pool most similar to the requested one, with
the change applied; the throughput model (`diagnose.step_load`) gives the step time. Measured steps
are a little longer than modelled ones. This factor is kept if steps wait both before and after the
change, or neither; otherwise the prediction lies between both.

Guarantees: pure; what the rates cannot tell has a lower and an upper figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from feedline.diagnose.step_load import Limit, StepLoad
from feedline.errors import UsageError
from feedline.forecast.changes import Changes
from feedline.forecast.loads_then import loads_then
from feedline.forecast.rates import Point, Rates
from feedline.forecast.text import aligned, of_size, wrapped
from feedline.stores.cache_layout import Level

__all__ = ["LevelRates", "PhaseThen", "WhatIf", "what_if"]

LevelRates: TypeAlias = "Mapping[tuple[int, Level | None], float]"
"""Images/s of a loader without a step, by the size of the rows in pixels and the level that they
are made of, None for the originals. Only how they compare with each other counts."""

_WIDE = 1.2  # a range that is wider is shown
_QUALITY = 95  # of a level where there are several, as it is by default


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseThen:
    """A phase with something changed; its rates are images/s, or steps/s.

    Args:
        size: of its images, in pixels; None where it has none.
        rows: of a batch; None where they could not be counted.
        workers: now.
        now: what was measured.
        then: what is predicted,
        low: the least,
        high: and the most that the rates allow.
        limit: what would bound it then.
        notes: what to know about it.
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
        """How many times as fast as now."""
        return self.then / self.now

    @property
    def said(self) -> str:
        """The figure, or where it is not sure enough, from which to which one."""
        if self.high > _WIDE * self.low:
            return f"{self.low:.0f} to {self.high:.0f}"
        return f"{self.then:.0f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """A training with something changed.

    Args:
        changes: what.
        phases: as they were measured.
        unit: of all rates.
    """

    changes: Changes
    phases: tuple[PhaseThen, ...]
    unit: str

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "changes": asdict(self.changes),
            "unit": self.unit,
            "phases": [{**asdict(phase), "factor": phase.factor} for phase in self.phases],
        }

    def __str__(self) -> str:
        """A line for each phase, and what to know."""
        sizes = [phase.size for phase in self.phases]
        rows = [("", "workers", "now", "then", "factor", "bound by")]
        rows += [
            (
                of_size(phase.size)
                + (
                    f", batches of {phase.rows:.0f}"
                    if phase.rows and sizes.count(phase.size) > 1
                    else ""
                ),
                str(phase.workers),
                f"{phase.now:.0f}",
                phase.said,
                f"{phase.factor:.2f}",
                f"the {phase.limit}",
            )
            for phase in self.phases
        ]
        notes = dict.fromkeys(note for phase in self.phases for note in phase.notes)
        lines = [f"what if {self.changes} ({self.unit})", *aligned(rows)]
        return "\n".join([*lines, *(line for note in notes for line in wrapped(note))])


def what_if(
    phases: Iterable[Rates], changes: str | Changes, levels: LevelRates | None = None
) -> WhatIf:
    """Predict each phase with something changed.

    Args:
        phases: as they were measured.
        changes: as `Changes.parse` takes them.
        levels: rates of the levels, where another one is asked for.

    Raises:
        UsageError: changes that are not understood; a level that was not measured; nothing that a
            change could be predicted from.
    """
    asked, given = Changes.of(changes), list(phases)
    if not given:
        raise UsageError("nothing was measured, so nothing can be predicted; give it more time")
    return WhatIf(
        changes=asked,
        phases=tuple(_phase(rates, asked, levels or {}) for rates in given),
        unit=given[0].unit,
    )


def _phase(rates: Rates, changes: Changes, levels: LevelRates) -> PhaseThen:
    now = rates.now
    base = now if changes.workers is None else rates.near(changes.workers)
    work, notes = _work(rates, changes, levels)
    loads, told = loads_then(rates, base.load, changes, work)
    steps = [_step_ms(base, load) for load in loads]
    likely, spread = steps[0], [each for pair in steps for each in pair]
    then_ms = math.sqrt(likely[0] * likely[1])
    error = base.error if base.error < 1 else 0.0
    if loads[0] == base.load:
        error, spread = 0.0, [then_ms]
    return PhaseThen(
        size=rates.size,
        rows=rates.rows,
        workers=now.load.workers,
        now=rates.per_s(now.step_ms),
        then=rates.per_s(then_ms),
        low=rates.per_s(max(spread) * (1 + error)),
        high=rates.per_s(min(spread) / (1 + error)),
        limit=loads[0].limit,
        notes=(*notes, *told),
    )


def _step_ms(base: Point, then: StepLoad) -> tuple[float, float]:
    """The shortest and the longest that a step takes with something changed.

    Args:
        base: a crew that was measured.
        then: what its steps need then.
    """
    now = base.load
    if then == now:
        return base.step_ms, base.step_ms
    model_ms = then.step_ms
    long_ms = model_ms * base.step_ms / now.step_ms if now.step_ms > 0 else model_ms
    no_longer_waits = now.limit != "step" and then.limit == "step"
    return min(model_ms, long_ms) if no_longer_waits else long_ms, long_ms


def _work(rates: Rates, changes: Changes, levels: LevelRates) -> tuple[float, list[str]]:
    """How many times as long as now a batch's work takes with other copies, and what to know."""
    if changes.cache is None:
        return 1.0, []
    size, wanted = rates.size, rates.wanted_px
    if size is None or wanted is None:
        raise UsageError(
            "cache= is of images that feedline reads itself at a size, and these batches are none; "
            "leave it out"
        )
    side = None if changes.cache == "none" else changes.cache
    if side == rates.level_px:
        return 1.0, []
    if side is not None and side < wanted:
        return 1.0, [f"rows of {size} px need copies of at least {wanted} px: taken as it is now"]
    then, now = (level_rate(levels, size, each) for each in (side, rates.level_px))
    return now / then, []


def level_rate(levels: LevelRates, size: int, side: int | None) -> float:
    """The rate of rows of a size made of the level of a side, or of the originals.

    Raises:
        UsageError: it was not measured.
    """
    found = {
        -1 if level is None or level.quality is None else level.quality: rate
        for (rows, level), rate in levels.items()
        if rows == size and (level.side if level else None) == side
    }
    if not found:
        what = f"the level of {side} px" if side else "the originals"
        known = sorted({f"{level.side} px" if level else "the originals" for _, level in levels})
        raise UsageError(
            f"what rows of {size} px cost of {what} was not measured"
            + (f", only of {', '.join(known)}" if known else "")
            + "; `feedline tune DIR --what-if cache=...` measures it, and in Python pass "
            "levels=feedline.plan_cache(folder, schedule, sizes=[...]).measured.rates"
        )
    return found.get(_QUALITY, found[max(found)])
