"""What a search has measured, as rates from which `forecast` predicts.

Relies on: the loader's own record, for the images of a batch and what it takes to hand one over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedline.forecast.rates import Point, Rates, point_of
from feedline.loader import DataLoader
from feedline.loader.levels import level_read
from feedline.system import usable_cores
from feedline.trace.run import Pass
from feedline.tuning.trial import Trial
from feedline.tuning.tuned_phase import TunedPhase

__all__ = ["rates_of"]


def rates_of(loader: DataLoader[Any], phase: TunedPhase, step_cpu_s: float) -> Rates | None:
    """What a search has measured at one size; None where it has not come to a trial.

    Args:
        loader: that was tuned.
        phase: what was found.
        step_cpu_s: for how long a step is on cores, all threads.
    """
    if phase.best is None:
        return None
    passes = [
        each
        for each in loader.run.passes
        if each.compute.count and phase.size in (None, each.image_size)
    ]
    hand_cpu_s, cores = _hand_cpu_s(passes), usable_cores()

    def point(trial: Trial) -> Point:
        return point_of(
            trial.window,
            error=trial.error,
            cores=cores,
            compute_s=1.0 / phase.ceiling if phase.ceiling else None,
            step_cpu_s=step_cpu_s,
            hand_cpu_s=hand_cpu_s,
            usual_wait_s=trial.usual_wait_s,
        )

    wanted_px, level_px = level_read(loader._session.decision(), phase.size)
    others = (trial for trial in phase.trials if trial is not phase.best)
    return Rates(
        size=phase.size,
        rows=_rows(passes) or loader.batch_size,
        points=(point(phase.best), *map(point, others)),
        wanted_px=wanted_px,
        level_px=level_px,
    )


def _hand_cpu_s(passes: Sequence[Pass]) -> float:
    """For how long of a step the training thread is on a core to take a batch over."""
    known = [each for each in passes if each.wait_cpu_ms is not None]
    steps = sum(each.compute.count for each in known)
    return sum(each.wait_cpu_ms or 0.0 for each in known) / 1e3 / steps if steps else 0.0


def _rows(passes: Sequence[Pass]) -> float | None:
    """Images of a batch, in the mean; None where they could not be counted."""
    if not passes or any(each.samples is None for each in passes):
        return None
    return sum(each.samples or 0 for each in passes) / max(1, sum(e.batches for e in passes))
