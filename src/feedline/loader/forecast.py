"""Estimate of what the phases of a loader's schedule will need, from its measured steps or rows.

Guarantees: pure; sizes that were not trained yet are marked as estimated from those that were.
"""

from __future__ import annotations

from feedline.diagnose.facts import summarise_run
from feedline.diagnose.finding import Thresholds
from feedline.diagnose.gains import step_load
from feedline.diagnose.step_load import StepLoad
from feedline.forecast.rates import PoolRate, Rates
from feedline.forecast.schedule import break_even, forecast
from feedline.loader.decide import Decision
from feedline.loader.levels import level_read
from feedline.loader.predict import Rows
from feedline.loader.settings import Settings
from feedline.system import usable_cores
from feedline.trace.run import Run

__all__ = ["forecast_of"]

_STEPS = 20  # of a size, to know how long they take


def forecast_of(settings: Settings, decision: Decision, run: Run, rows: Rows | str) -> str:
    """Needs of each phase of a schedule, as text; "" if nothing is known.

    Args:
        settings: settings of the loader.
        decision: chosen engine.
        run: record of its steps.
        rows: measured cost of rows; text if it was not measured.
    """
    schedule = settings.asked.schedule
    if schedule is None:
        return ""
    known = [
        each for each in _trained(decision, run) if bool(each.size) == bool(schedule.image_sizes)
    ]
    if known:
        crew, images = settings.workers or None, _images(settings)
        return "; ".join(forecast(known, schedule, images=images, workers=crew).advice)
    if isinstance(rows, str):
        return ""
    return break_even(
        [
            _untrained(size, image_s, phase.batch_size or settings.batch_size or 1, settings)
            for phase in schedule.phases
            for size, image_s in rows.image_s.items()
            if phase.image_size in (None, size)
        ]
    )


def _trained(decision: Decision, run: Run) -> list[Rates]:
    """Rates of the sizes that were trained for long enough."""
    facts = summarise_run(run, Thresholds())
    found = []
    for phase in facts.phases:
        if phase.steps < _STEPS:
            continue
        wanted_px, level_px = level_read(decision, phase.image_size)
        found.append(
            Rates(
                size=phase.image_size,
                rows=phase.samples,
                points=(PoolRate(load=step_load(facts, phase), step_ms=phase.steady_ms),),
                wanted_px=wanted_px,
                level_px=level_px,
            )
        )
    return found


def _untrained(size: int, image_s: float, rows: int, settings: Settings) -> Rates:
    """Rates known before any step: the work of a batch."""
    load = StepLoad(
        workers=settings.workers,
        cores=float(usable_cores()),
        compute_ms=0.0,
        step_cpu_ms=0.0,
        hand_ms=0.0,
        hand_cpu_ms=0.0,
        work_cpu_ms=1e3 * rows * image_s,
        work_blocked_ms=0.0,
        beside_cpu_ms=0.0,
    )
    point = PoolRate(load=load, step_ms=load.step_ms)
    return Rates(size=size or None, rows=float(rows), points=(point,))


def _images(settings: Settings) -> int | None:
    """Images of an epoch in this process."""
    if not hasattr(settings.dataset, "__len__"):
        return None
    ranks = settings.order.world_size if settings.order else 1
    return max(1, len(settings.dataset) // ranks)
