"""A phase of a recipe rehearsed: its real step on its real batches, timed for some seconds.

First some of the images are read, so that they come from the page cache; then the step alone, over
batches that are kept; then steps over the loader, with its own settings.

Guarantees: the loader and its workers end with it.
Relies on: `tuning`, which times, and `forecast`, whose model says what the step is bound by.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from feedline.diagnose.load import Load
from feedline.forecast.rates import Point, Rates
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.system import usable_cores
from feedline.train.learner import Learner
from feedline.train.loaders import train_loader
from feedline.train.memory_error import in_memory, too_large
from feedline.train.phase import TrainPhase
from feedline.train.recipe import Recipe
from feedline.train.rehearsed import RehearsedStep
from feedline.train.run_settings import RunSettings
from feedline.tuning.metered import Metered
from feedline.tuning.own_loader import OwnLoader
from feedline.tuning.rates_of import rates_of
from feedline.tuning.rehearsal import Rehearsal
from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial
from feedline.tuning.tuned_phase import TunedPhase

__all__ = ["RehearsedPhase", "rehearse_phase"]

_CEILING = 0.15  # of the time, for the step alone
_READING = 0.35  # at most, for bringing files into the page cache
_LEAST = 0.2  # for steps over the loader
_STEPS = 16  # that there is time for, or each part has as few of them as can be


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedPhase:
    """What was measured of a phase.

    Args:
        rates: what a step and a batch take.
        steps: over the loader, that were timed.
        step_ms: that these took in the mean,
        error: and half of the 95% interval of that, as a share; 1 where there were too few.
        alone_ms: a step with data for free.
        wait_share: of the steps' time, what they waited for batches, 0 to 1.
        workers: that made the batches.
        seconds: that all of it took.
    """

    rates: Rates
    steps: int
    step_ms: float
    error: float
    alone_ms: float
    wait_share: float
    workers: int
    seconds: float


def rehearse_phase(
    learner: Learner,
    recipe: Recipe,
    phase: TrainPhase,
    images: ImageFolder,
    asked: RunSettings,
    *,
    budget_s: float,
    read: bool,
    told: Callable[[str], object],
) -> RehearsedPhase:
    """Do some steps of a phase. They really train the learner.

    Args:
        learner: is moved on.
        recipe: of the phase.
        phase: which says everything.
        images: that batches are made of.
        asked: says how they are loaded.
        budget_s: how long it may take, but for the first step and for the fewest steps that tell.
        read: the images are read once before.
        told: is called with what goes on.

    Raises:
        UsageError: a batch does not fit the device's memory, or the loader cannot be built.
        SampleError: an image cannot be decoded and the recipe says "raise".
    """
    begun = time.monotonic()
    until = begun + budget_s
    alone = replace(recipe, schedule=(phase,))
    learner.set_phase(phase)
    learner.model.train()
    step = RehearsedStep(learner, recipe.accumulate)
    with in_memory(lambda error: too_large("a batch", phase.batch_size, phase.size, error)):
        with ExitStack() as stack:
            told("starting workers")
            loader, tried = _begun(alone, images, asked, learner.device, stack)
            batch = tried.next()
            if read:
                _read(tried, len(images), begun + _READING * budget_s, told)
            told("the step alone")
            step(batch)  # kernels are chosen, compiled; memory is asked for
            timed = time.monotonic()
            step(batch)
            step_s = time.monotonic() - timed
            del batch
            few = _STEPS * step_s > until - time.monotonic()
            metered = Metered(step)
            rehearsal = Rehearsal(tried, metered, phase.size, few=few)
            # Where a step takes long, the one that was timed tells enough of it.
            ceiling = 1.0 / step_s if few else rehearsal.ceiling(_CEILING * budget_s)
            told("steps over the loader")
            trial = _trial(rehearsal, loader, tried, until - time.monotonic(), budget_s)
            rows = min(phase.batch_size or 1, len(images))
            rates = _rates(loader, replace(phase, batch_size=rows), trial, ceiling, metered.cpu_s)
            tried.close()
    return RehearsedPhase(
        rates=rates,
        steps=trial.window.steps,
        step_ms=1e3 * trial.window.step_s,
        error=trial.error,
        alone_ms=1e3 / ceiling,
        wait_share=trial.window.wait_share,
        workers=loader.num_workers,
        seconds=time.monotonic() - begun,
    )


def _begun(
    recipe: Recipe,
    images: ImageFolder,
    asked: RunSettings,
    device: torch.device,
    stack: ExitStack,
) -> tuple[DataLoader[Any], OwnLoader]:
    """A loader of a recipe's one phase, which closes with the stack, at work without end."""
    loader = train_loader(recipe, images, asked, device, stack)
    tried = OwnLoader(loader, least=0)
    tried.begin(tried.phases[0])
    return loader, tried


def _trial(
    rehearsal: Rehearsal,
    loader: DataLoader[Any],
    tried: OwnLoader,
    left_s: float,
    budget_s: float,
) -> Trial:
    """Steps over a loader in the time that is left, or the least that tells something."""
    most_s = max(_LEAST * budget_s, left_s)
    return rehearsal.trial(_setting(loader, tried), least_s=_LEAST * budget_s, most_s=most_s)


def _read(tried: OwnLoader, images: int, until: float, told: Callable[[str], object]) -> None:
    """Take batches of all images, as far as there is time: then their files are cached."""
    told("reading some images")
    taken = 0
    while taken < images and time.monotonic() < until:
        _, labels = tried.next()
        taken += len(labels)


def _setting(loader: DataLoader[Any], tried: OwnLoader) -> Setting:
    """What the loader was built with, which is not tried: it is what the run will have."""
    start = tried.start
    rows = start.piece_ms is not None
    return replace(start, prefetch=loader.prefetch or start.prefetch) if rows else start


def _rates(
    loader: DataLoader[Any], phase: TrainPhase, trial: Trial, ceiling: float, step_cpu_s: float
) -> Rates:
    """What follows for a forecast."""
    if trial.workers:
        found = TunedPhase.of_trial(
            trial, size=phase.size, batch_size=phase.batch_size, ceiling=ceiling
        )
        rates = rates_of(loader, found, step_cpu_s)
        assert rates is not None, "there is a trial"
        return rates
    # Without workers the batch is made within the wait.
    compute_ms = 1e3 * min(trial.window.own_s, 1.0 / ceiling)
    load = Load(
        workers=0,
        cores=float(usable_cores()),
        compute_ms=compute_ms,
        step_cpu_ms=min(1e3 * step_cpu_s, compute_ms * usable_cores()),
        hand_ms=0.0,
        hand_cpu_ms=0.0,
        work_cpu_ms=1e3 * trial.window.wait_s / trial.window.steps,
        work_blocked_ms=0.0,
        beside_cpu_ms=0.0,
    )
    point = Point(load=load, step_ms=1e3 * trial.window.step_s, error=trial.error)
    return Rates(size=phase.size, rows=float(phase.batch_size or 1), points=(point,))
