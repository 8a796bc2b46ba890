"""Measured rates of a search, from which `forecast` predicts.

Relies on: the loader's recording, for the images in a batch and the time to hand one over; for
torch's loader, pages on which its workers note their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedline.loader import DataLoader
from feedline.system import usable_cores
from feedline.throughput.phase_rates import PoolRate, Rates, pool_rate
from feedline.timing.run import Pass
from feedline.tuning.trial import LoaderTrial
from feedline.tuning.tuned_phase import TunedPhase

__all__ = ["feedline_rates", "torch_rates"]


def feedline_rates(loader: DataLoader[Any], phase: TunedPhase, step_cpu_s: float) -> Rates | None:
    """Return the rates measured at one image size, or None without a trial.

    Args:
        loader: the tuned loader.
        phase: result of the search.
        step_cpu_s: CPU time of a step, all threads.
    """
    if phase.best is None:
        return None
    # A size may have several batch sizes; an interrupted pass may have no full batch.
    at_size = [
        each
        for each in loader.run.passes
        if each.compute.count and phase.size in (None, each.image_size)
    ]
    passes = [each for each in at_size if each.batch_size == phase.batch_size] or at_size
    hand_over_cpu_s = _hand_over_cpu_s(passes)
    _, level_px = loader._runtime.stream.choice().required_and_cached_px(phase.size)
    return Rates(
        size=phase.size,
        rows=_rows(passes) or loader.batch_size,
        points=tuple(_point(trial, phase, step_cpu_s, hand_over_cpu_s) for trial in _trials(phase)),
        level_px=level_px,
    )


def torch_rates(phase: TunedPhase, step_cpu_s: float) -> Rates | None:
    """Return the rates of a torch loader, or None if its workers noted no times.

    Args:
        phase: result of the search.
        step_cpu_s: CPU time of a step, all threads.
    """
    # Excludes workers of an unsupported torch release, or that could not map their page.
    known = [trial for trial in _trials(phase) if trial.window.tasks_s > 0]
    if phase.best not in known:
        return None
    return Rates(
        size=None,
        rows=phase.batch_size,
        points=tuple(_point(trial, phase, step_cpu_s, trial.wait_cpu_s or 0.0) for trial in known),
    )


def _trials(phase: TunedPhase) -> list[LoaderTrial]:
    """Return all trials, the best one first."""
    first = [] if phase.best is None else [phase.best]
    return [*first, *(trial for trial in phase.trials if trial is not phase.best)]


def _point(
    trial: LoaderTrial, phase: TunedPhase, step_cpu_s: float, hand_over_cpu_s: float
) -> PoolRate:
    return pool_rate(
        trial.window,
        error=trial.error,
        cores=usable_cores(),
        compute_s=1.0 / phase.ceiling if phase.ceiling else None,
        step_cpu_s=step_cpu_s,
        hand_cpu_s=hand_over_cpu_s,
        usual_wait_s=trial.usual_wait_s,
    )


def _hand_over_cpu_s(passes: Sequence[Pass]) -> float:
    """CPU time of the training thread per step to receive a batch."""
    known = [each for each in passes if each.wait_cpu_ms is not None]
    steps = sum(each.compute.count for each in known)
    return sum(each.wait_cpu_ms or 0.0 for each in known) / 1e3 / steps if steps else 0.0


def _rows(passes: Sequence[Pass]) -> float | None:
    """Return the mean number of images in a batch, or None if unknown."""
    if not passes or any(each.samples is None for each in passes):
        return None
    return sum(each.samples or 0 for each in passes) / max(1, sum(e.batches for e in passes))
