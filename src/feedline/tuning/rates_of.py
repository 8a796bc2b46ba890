"""What a search has measured, as rates from which `forecast` predicts.

Relies on: the loader's own record, for the images of a batch and what it takes to hand one over;
of torch's, on pages that its workers note their time on.
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

__all__ = ["rates_of", "rates_of_torch"]


def rates_of(loader: DataLoader[Any], phase: TunedPhase, step_cpu_s: float) -> Rates | None:
    """What a search has measured at one size; None where it has not come to a trial.

    Args:
        loader: that was tuned.
        phase: what was found.
        step_cpu_s: for how long a step is on cores, all threads.
    """
    if phase.best is None:
        return None
    # A size may come with several batch sizes; and batches that are never whole have none of these.
    at_size = [
        each
        for each in loader.run.passes
        if each.compute.count and phase.size in (None, each.image_size)
    ]
    passes = [each for each in at_size if each.batch_size == phase.batch_size] or at_size
    hand_cpu_s = _hand_cpu_s(passes)
    wanted_px, level_px = level_read(loader._session.decision(), phase.size)
    return Rates(
        size=phase.size,
        rows=_rows(passes) or loader.batch_size,
        points=tuple(_point(trial, phase, step_cpu_s, hand_cpu_s) for trial in _trials(phase)),
        wanted_px=wanted_px,
        level_px=level_px,
    )


def rates_of_torch(phase: TunedPhase, step_cpu_s: float) -> Rates | None:
    """The same of torch's loader; None also where its workers noted nothing of what they did.

    Args:
        phase: what was found.
        step_cpu_s: for how long a step is on cores, all threads.
    """
    # Workers whose release of torch cannot be looked into, or that could not map their page.
    known = [trial for trial in _trials(phase) if trial.window.tasks_s > 0]
    if phase.best not in known:
        return None
    return Rates(
        size=None,
        rows=phase.batch_size,
        points=tuple(_point(trial, phase, step_cpu_s, trial.wait_cpu_s or 0.0) for trial in known),
    )


def _trials(phase: TunedPhase) -> list[Trial]:
    """The best one first."""
    first = [] if phase.best is None else [phase.best]
    return [*first, *(trial for trial in phase.trials if trial is not phase.best)]


def _point(trial: Trial, phase: TunedPhase, step_cpu_s: float, hand_cpu_s: float) -> Point:
    return point_of(
        trial.window,
        error=trial.error,
        cores=usable_cores(),
        compute_s=1.0 / phase.ceiling if phase.ceiling else None,
        step_cpu_s=step_cpu_s,
        hand_cpu_s=hand_cpu_s,
        usual_wait_s=trial.usual_wait_s,
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
