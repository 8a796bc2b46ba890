"""A training in progress: epochs of steps, validation after each, checkpoints on the way.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from feedline.errors import FeedlineError, UsageError
from feedline.loader import DataLoader
from feedline.train.evaluate import Evaluation, evaluate
from feedline.train.journal import EpochRecord, Journal, Running
from feedline.train.keeper import Keeper
from feedline.train.learner import Learner
from feedline.train.loaders import without_padding
from feedline.train.memory_error import in_memory, run_too_large
from feedline.train.ranks import Ranks
from feedline.train.recipe import Recipe
from feedline.train.report import Report
from feedline.train.run_files import RunFiles
from feedline.train.runtime import random_state, restore_random_state
from feedline.train.standing import Standing
from feedline.train.step import train_step
from feedline.train.steps import Steps
from feedline.train.stop import AgreedStop
from feedline.train.way_out import way_out

__all__ = ["Training"]

# How often the loss is read. On a GPU each reading waits for every queued step, so seldom.
_CPU_CHECK_STEPS = 1
_GPU_CHECK_STEPS = 50


@dataclass(kw_only=True)
class Training:
    """All that changes while a run trains, and what it needs for that.

    Args:
        recipe: what is trained.
        asked: where and how, JSON-able: what another start of the run goes on with.
        dataset: JSON-able facts of the training images: "classes", "images" and "files".
        loader: of the training images; at the same point of the run as `learner` and `journal`.
        batches: the loader's, watched.
        val_loader: of the validation images, or None.
        labels_as: the training label of each validation label; None where they are the same.
        learner: the model and what trains it.
        journal: what was achieved so far.
        keeper: writes to the run's folder.
        files: tells of it in the run's folder.
        checkpoint_every: steps between checkpoints within an epoch; 0 saves after epochs only.
        ranks: the processes that train; each makes the same calls.
        stop: asked after each step and each validation batch.
        report: told how it goes.
    """

    recipe: Recipe
    asked: dict[str, Any]
    dataset: dict[str, Any]
    loader: DataLoader[Any]
    batches: Iterable[Any]
    val_loader: DataLoader[Any] | None
    labels_as: Sequence[int] | None
    learner: Learner
    journal: Journal
    keeper: Keeper
    files: RunFiles
    checkpoint_every: int
    ranks: Ranks
    stop: AgreedStop
    report: Report

    def __post_init__(self) -> None:
        self._steps = Steps(recipe=self.recipe, batches_in=self.loader.steps_in)
        self._total = self._steps.total
        self._judging = False
        self._stopped_by: int | None = None

    def save(self, *, must: bool = False) -> None:
        """Write a checkpoint; where that cannot be, say so and go on, unless it must be.

        Raises:
            SaveError: it must be, and cannot.
        """
        randoms = self.ranks.gathered(random_state(self.learner.device))
        journal = Journal(running=self._running_of_all(), records=self.journal.records)
        if not self.ranks.leads:
            return
        content = {
            "recipe": self.recipe.as_dict(),
            "run": self.asked,
            "ranks": self.ranks.world,
            "dataset": self.dataset,
            "loader": self.loader.state_dict(),
            "learner": self.learner.state_dict(),
            "journal": journal.state_dict(),
            "random": randoms,
        }
        between = None if journal.running.steps else len(journal.records)
        self.keeper.save(content, epochs=between, must=must)

    def restore(self, saved: dict[str, Any], *, extended: bool = False) -> None:
        """Go on from what `save` wrote; `extended`: between two epochs, on another schedule."""
        if extended:
            self.loader.set_epoch(len(saved["journal"]["records"]))
        else:
            self.loader.load_state_dict(saved["loader"])
        self.learner.load_state_dict(saved["learner"])
        self.journal = Journal.from_state(saved["journal"], self.learner.device)
        if not self.ranks.leads:  # the sums of all are rank 0's
            self.journal.running.loss_sum.zero_()
            self.journal.running.samples = 0
        if self.ranks.rank < len(saved["random"]):
            restore_random_state(saved["random"][self.ranks.rank], self.learner.device)

    def _running_of_all(self) -> Running:
        """The epoch under way, with the samples of all ranks."""
        running = self.journal.running
        samples = self.ranks.summed(torch.tensor(running.samples, device="cpu"))
        loss_sum = self.ranks.summed(running.loss_sum)
        return replace(running, samples=int(samples), loss_sum=loss_sum)

    def _stopping(self, *, at_end: bool = False) -> bool:
        """Return True if any rank was asked to stop: all ranks stop at the same step."""
        self._stopped_by = self.stop.asked(at_end=at_end)
        return self._stopped_by is not None

    def fit(self) -> int | None:
        """Train until the schedule is done or a stop is asked for.

        Returns:
            The signal that stopped it, on whichever rank, with a checkpoint written; None where
            the schedule is done.

        Raises:
            FeedlineError: the loss is not finite.
            UsageError: the device's memory is out; says what may go on with what.
        """
        with in_memory(self._too_large):
            return None if self._fit() else self._stopped_by

    def _fit(self) -> bool:
        """Whether the schedule is done; else `_stopped_by` says what asked for a stop."""
        learner, journal, epochs = self.learner, self.journal, self.recipe.epochs
        self.report.planned(
            self.recipe,
            images=self.dataset["images"],
            val_images=0 if self.val_loader is None else len(self.val_loader.dataset),
            records=journal.records,
        )
        while len(journal.records) < epochs and not self._has_ended():
            running = journal.running
            phase = self.recipe.phase_at(running.epoch)
            size_px = phase.size
            learner.set_phase(phase)
            self.report.begin(self._standing())
            if self.loader.epoch == running.epoch and not self._run_epoch(size_px):
                return False
            began = time.monotonic()
            result = self._validate(self.recipe.val_size_of(phase))
            stopping = self._stopping(at_end=True)
            if stopping and self.val_loader is not None and result is None:
                self.save(must=True)
                return False
            best = journal.best_top1
            record = self._running_of_all().record(
                size_px=size_px,
                lr=learner.lr,
                clip=learner.clip,
                precision=learner.computes_in,
                val=result,
                val_seconds=time.monotonic() - began,
            )
            journal.close_epoch(record)
            # First the weights, then the checkpoint that counts their epoch: a crash in between
            # leads back to the validation, and so to the same weights.
            better = record.val_top1 is None or best is None or record.val_top1 > best
            if better and self.ranks.leads:
                self._keep_weights(record)
            self.save()
            if self.ranks.leads:
                self.files.epochs(journal.records)
            self.report.ended(record, epochs=epochs)
            if stopping and len(journal.records) < epochs:
                return False
        if len(journal.records) < epochs:
            self.report.note(
                f"ended after {len(journal.records)} of {epochs} epochs: top-1 has not been better "
                f"for {self.recipe.patience} epochs"
            )
        return True

    def _has_ended(self) -> bool:
        """Whether top-1 has not been better for as long as the recipe has patience."""
        patience, records = self.recipe.patience, self.journal.records
        tops = [record.val_top1 for record in records if record.val_top1 is not None]
        if not patience or len(tops) <= patience:
            return False
        return max(tops[-patience:]) <= max(tops[:-patience])

    def _standing(self, loss: float | None = None) -> Standing:
        """Where the run stands."""
        running, recipe = self.journal.running, self.recipe
        share = running.steps / self.loader.steps_in(running.epoch)
        return Standing(
            epoch=running.epoch + 1,
            epochs=recipe.epochs,
            phase=recipe.phase_number(running.epoch) + 1,
            phases=len(recipe.phases),
            size_px=recipe.phase_at(running.epoch).size,
            done=self.learner.step,
            total=self._total,
            images=round(self.dataset["images"] * min(1.0, share)),
            lr=self.learner.lr,
            loss=loss,
            split=self.loader.timing.totals(),
        )

    def _run_epoch(self, size_px: int) -> bool:
        """Take the rest of the epoch's steps; False where a stop was asked for and saved."""
        learner, loader, running = self.learner, self.loader, self.journal.running
        steps = self._steps
        check_every = _CPU_CHECK_STEPS if learner.device.type == "cpu" else _GPU_CHECK_STEPS
        learner.model.train()
        before_s, before, began = running.seconds, running.split, time.monotonic()
        unsplit = loader.timing.totals()
        first = True

        def settle() -> None:
            """Bring the sums up to date; waits for the device."""
            self._finite_loss(size_px)
            running.seconds = before_s + time.monotonic() - began
            running.split = before + loader.timing.totals() - unsplit

        for images, labels in self.batches:
            assert loader.batch is not None, "a batch was handed out"
            if first:  # what lies before it, validation or the workers' start, is no part of a step
                unsplit = loader.timing.totals()
                arrived = time.monotonic()
                running.first_wait_s += arrived - began
                first, began = False, arrived
            part, parts = steps.parts(running.epoch, loader.batch.step)
            if part == 0:
                learner.set_progress(steps.progress(running.epoch, loader.batch.step))
            loss = train_step(learner, images, labels, part=part, parts=parts)
            running.add(loss, len(labels))
            if part + 1 < parts:  # the gradients under way are in no checkpoint
                continue
            reading = running.steps % check_every == 0
            loss_read = self._finite_loss(size_px) if reading else None
            self.report.stepped(self._standing(loss_read))
            if self._stopping():
                settle()
                self.save(must=True)
                return False
            if self.checkpoint_every and learner.step % self.checkpoint_every == 0:
                settle()
                self.save()
        settle()
        return True

    def _finite_loss(self, size_px: int) -> float:
        """The epoch's mean loss so far; waits for the device."""
        running, learner = self.journal.running, self.learner
        loss = running.mean_loss()
        if not math.isfinite(loss):
            raise FeedlineError(
                f"the loss became {loss} by step {learner.step} (epoch {running.epoch + 1}, "
                f"{size_px} px, learning rate {learner.lr:.3g}, {learner.computes_in}). "
                + way_out(self.recipe, learner.precision, self.keeper.out)
            )
        return loss

    def _validate(self, size_px: int) -> Evaluation | None:
        """Judge the model; None where it was stopped or there is nothing to validate on."""
        if self.val_loader is None:
            return None
        self._judging = True
        self.val_loader.set_image_size(size_px)
        self.ranks.share_buffers(self.learner.judged)
        found = evaluate(
            self.learner.judged,
            without_padding(self.val_loader),
            device=self.learner.device,
            precision=self.learner.precision,
            labels_as=self.labels_as,
            ranks=self.ranks,
            stopped=self._stopping,
            advance=lambda rows: self.report.validating(rows=rows),
        )
        self._judging = False
        return found

    def _too_large(self, error: BaseException) -> UsageError:
        return run_too_large(
            self.learner,
            self.recipe,
            error,
            epoch=self.journal.running.epoch,
            judging=self._judging,
            kept=self.keeper.out if self.keeper.kept else None,
        )

    def _keep_weights(self, last: EpochRecord) -> None:
        """Write the weights as the best so far."""
        content = {
            "model": self.recipe.model,
            "weights": self.learner.judged.state_dict(),
            "classes": self.dataset["classes"],
            "val_size": self.recipe.val_px,
            "epoch": last.epoch,
            "top1": last.val_top1,
        }
        self.keeper.keep_best(content)
