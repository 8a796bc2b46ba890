"""The loop: epochs of steps, validation after each, checkpoints on the way.

Guarantees: a checkpoint is taken between two steps and says exactly which samples remain, so a
resumed run takes the steps that the interrupted one would have taken. An epoch counts as finished
once it is validated and in the journal; a run stopped in between validates first when it goes on.
A loss that is not finite ends the run before any checkpoint could keep it.
Relies on: `loader.epoch` naming the epoch of the next pass, and a pass after a mid-epoch restore
holding exactly the remainder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from feedline.errors import FeedlineError
from feedline.loader import DataLoader
from feedline.train.evaluate import Evaluation
from feedline.train.journal import EpochRecord, Journal
from feedline.train.learner import Learner
from feedline.train.recipe import Recipe
from feedline.train.step import train_step

__all__ = ["Report", "fit"]

# How often the loss is read. On a GPU each reading waits for every queued step, so seldom.
_CPU_CHECK_STEPS = 1
_CUDA_CHECK_STEPS = 50


class Report(Protocol):
    """Who is told how a run goes. Called from the training process, between steps."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def begin(self, *, epoch: int, size_px: int, done: int, total: int) -> None:
        """An epoch (from 1) begins, or goes on, after `done` of the run's `total` steps."""

    def stepped(self, *, done: int, loss: float | None) -> None:
        """A step is done; `loss` is the epoch's mean so far, None where it was not read."""

    def validating(self, *, rows: int) -> None:
        """`rows` more images are validated."""

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """An epoch of `epochs` is finished."""


def fit(
    learner: Learner,
    loader: DataLoader[Any],
    *,
    recipe: Recipe,
    journal: Journal,
    validate: Callable[[], Evaluation | None] | None,
    save: Callable[[], None],
    keep: Callable[[], None],
    stopped: Callable[[], bool],
    report: Report,
    checkpoint_every: int = 0,
) -> bool:
    """Train until the schedule is done or a stop is asked for.

    Args:
        learner: changed in place.
        loader: at the same point of the run as `learner` and `journal`.
        recipe: gives the schedule.
        journal: changed in place.
        validate: judges the model; None where there is nothing to validate on. Returns None when
            it was stopped.
        save: writes a checkpoint of all of these.
        keep: writes the weights as the best so far.
        stopped: asked after each step.
        report: told how it goes.
        checkpoint_every: steps between checkpoints within an epoch; 0 saves after epochs only.

    Returns:
        Whether the schedule is done; False means stopped, with a checkpoint written.

    Raises:
        FeedlineError: the loss is not finite.
    """
    schedule = recipe.phases
    while len(journal.records) < schedule.epochs:
        running = journal.running
        size_px = recipe.size_px(running.epoch)
        report.begin(
            epoch=running.epoch + 1, size_px=size_px, done=learner.step, total=learner.total_steps
        )
        if loader.epoch == running.epoch:
            finished = _run_epoch(
                learner,
                loader,
                journal=journal,
                size_px=size_px,
                save=save,
                stopped=stopped,
                report=report,
                checkpoint_every=checkpoint_every,
            )
            if not finished:
                return False
        began = time.monotonic()
        result = validate() if validate else None
        if stopped() and (validate and result is None):
            save()
            return False
        best = journal.best_top1
        record = running.record(
            size_px=size_px, lr=learner.lr, val=result, val_seconds=time.monotonic() - began
        )
        journal.close_epoch(record)
        # First the weights, then the checkpoint that counts their epoch: a crash in between leads
        # back to the validation, and so to the same weights.
        if record.val_top1 is None or best is None or record.val_top1 > best:
            keep()
        save()
        report.ended(record, epochs=schedule.epochs)
        if stopped() and len(journal.records) < schedule.epochs:
            return False
    return True


def _run_epoch(
    learner: Learner,
    loader: DataLoader[Any],
    *,
    journal: Journal,
    size_px: int,
    save: Callable[[], None],
    stopped: Callable[[], bool],
    report: Report,
    checkpoint_every: int,
) -> bool:
    """Take the rest of the epoch's steps; False where a stop was asked for and saved."""
    running = journal.running
    check_every = _CUDA_CHECK_STEPS if learner.device.type == "cuda" else _CPU_CHECK_STEPS
    learner.model.train()
    before_s, before, began = running.seconds, running.split, time.monotonic()
    unsplit = loader.timing.totals()
    first = True

    def settle() -> None:
        """Bring the sums up to date; waits for the device."""
        _check_finite(learner, journal, size_px)
        running.seconds = before_s + time.monotonic() - began
        running.split = before + loader.timing.totals() - unsplit

    for images, labels in loader:
        if first:  # what lies before it, validation or the workers' start, is no part of a step
            unsplit = loader.timing.totals()
            arrived = time.monotonic()
            running.first_wait_s += arrived - began
            first, began = False, arrived
        loss = train_step(learner, images, labels)
        running.add(loss, len(labels))
        reading = running.steps % check_every == 0
        if reading:
            _check_finite(learner, journal, size_px)
        report.stepped(done=learner.step, loss=running.mean_loss() if reading else None)
        if stopped():
            settle()
            save()
            return False
        if checkpoint_every and learner.step % checkpoint_every == 0:
            settle()
            save()
    settle()
    return True


def _check_finite(learner: Learner, journal: Journal, size_px: int) -> None:
    running = journal.running
    loss = running.mean_loss()
    if not math.isfinite(loss):
        raise FeedlineError(
            f"the loss became {loss} by step {learner.step} (epoch {running.epoch + 1}, "
            f"{size_px} px, learning rate {learner.lr:.3g}, {learner.precision}). The learning "
            "rate is probably too high: try a third of it with --lr, or a longer --warmup; with "
            "float16, --amp bf16 or off. The checkpoint before this is untouched"
        )
