"""A whole training run, on every rank: epochs of steps, validation after each, checkpoints.

Guarantees: errors that can be found beforehand are raised before a folder is made or a worker
starts. A checkpoint is taken between two steps and defines the remaining samples, so a resumed run
takes the steps that the interrupted one would have taken, and ends with the same weights, bit for
bit on a CPU with the same number of torch threads. An epoch is finished once it is validated and in
the history; a run stopped in between validates first when it resumes. If the loss becomes NaN or
infinite, training stops before a checkpoint is saved. Both loaders are built once, so their workers
start once.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from feedline.errors import FeedlineError, StateError
from feedline.loader import DataLoader
from feedline.machine import environment
from feedline.order.seeds import mix
from feedline.profile.watch import forget, watch
from feedline.text import shell_command
from feedline.train.config import as_toml, new_run_hint
from feedline.train.data import no_image_error, train_loader, val_loader, without_padding
from feedline.train.evaluate import Evaluation, evaluate
from feedline.train.history import EpochInProgress, History, TrainPosition, TrainReport, TrainResult
from feedline.train.prepare import Assignment, PreparedRun, prepare
from feedline.train.ranks import AgreedStop, Ranks, StopRequest, join_ranks
from feedline.train.recipe import Recipe, RunSettings
from feedline.train.run_folder import (
    BEST_NAME,
    CHECKPOINT_NAME,
    RECIPE_NAME,
    CheckpointWriter,
    lock_run_folder,
    make_run_folder,
    write_text,
)
from feedline.train.runtime import (
    compile_model,
    memory_error,
    random_state,
    restore_random_state,
    warm_up,
)
from feedline.train.train_state import StepCounter, finish_step, train_step

# Steps between two readings of the loss. On a GPU each reading waits for all queued steps.
_CPU_CHECK_STEPS = 1
_GPU_CHECK_STEPS = 50


def train_model(
    recipe: Recipe | None = None,
    run: RunSettings | None = None,
    *,
    config: str | PathLike[str] | None = None,
    report: TrainReport | None = None,
) -> TrainResult:
    """Train a timm model with progressive resizing, or resume a run, as `feedline train` does.

    Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end it after the current step, with a checkpoint;
    `RunSettings(resume=result.out)` continues.

    Args:
        recipe: settings that decide the weights; None for those of the file, of the resumed run,
            or the defaults.
        run: where and how to train; completed by the file and the resumed run.
        config: a TOML file of settings, such as `recipe.toml` in the folder of a run.
        report: a `feedline.TrainReport` with callbacks; None for no output.

    Returns:
        The figures of each epoch, the folder of the run, the best top-1, and what stopped it.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used.
        SampleError: an image cannot be decoded, and on_error is "raise".
        FeedlineError: the loss became NaN or infinite.
    """
    assignment = Assignment.collect(
        recipe or {}, run or RunSettings(), config=None if config is None else Path(config)
    )
    return run_training(assignment, report or TrainReport())


def run_training(assignment: Assignment, report: TrainReport) -> TrainResult:
    """Train, or resume a run; see `train_model`."""
    with join_ranks() as ranks:
        report = report if ranks.is_main else TrainReport()
        return _train(prepare(assignment, report.note, world=ranks.world), ranks, report)


def _train(ready: PreparedRun, ranks: Ranks, report: TrainReport) -> TrainResult:
    """Train on one rank."""
    recipe, run, data = ready.recipe, ready.run, ready.data
    measured_on = environment("timm")
    measured_on["machine"] |= {
        "device": ready.device.type,
        "torch_threads": torch.get_num_threads(),
    }
    with ExitStack() as stack:
        # First, as a cache that cannot be used is an error.
        loader = train_loader(recipe, data.train, run, ready.device, stack)
        made = None
        if ranks.is_main:
            checkpoint = ready.resumed.checkpoint if ready.resumed else None
            made = make_run_folder(run.out, checkpoint=checkpoint, model=recipe.model)
            stack.enter_context(lock_run_folder(made))
        out = ranks.gathered(made)[0]
        assert out is not None, "rank 0 has made it"
        if not ranks.is_main:  # each drops other units
            torch.manual_seed(mix(recipe.seed, ranks.rank) >> 1)
        if not ready.is_finished:
            report.note(
                f"{len(data.train)} images of {len(data.train.classes)} classes"
                + (f", {len(data.val)} for validation" if data.val else "")
                + f"; {recipe.model} in {str(ready.precision).removeprefix('torch.')} on "
                f"{ready.device.type}, {recipe.opt} with lr {recipe.peak_lr:.3g}; writing to {out}/"
            )
        loop = TrainingLoop(ready, loader, out, ranks, report, stack)
        if ranks.is_main:
            write_text(out / RECIPE_NAME, as_toml(recipe, run), report.note)
            write_text(out / "environment.json", json.dumps(measured_on, indent=2), report.note)
        stopped_by = loop.fit()
    return TrainResult(
        recipe=recipe,
        out=out,
        classes=list(data.train.classes),
        records=loop.history.records,
        step=loop.state.step,
        stopped_by=stopped_by,
        best_top1=loop.history.best_top1,
        weights=loop.writer.best,
        weights_error=loop.writer.errors.get(BEST_NAME),
        checkpoint_error=loop.writer.errors.get(CHECKPOINT_NAME),
        skipped=loop.skipped,
        **measured_on,
    )


class TrainingLoop:
    """Everything that changes while a run trains. All ranks make the same calls.

    `stack` closes the validation loader and restores the handlers of signals.
    """

    def __init__(
        self,
        ready: PreparedRun,
        loader: DataLoader[Any],
        out: Path,
        ranks: Ranks,
        report: TrainReport,
        stack: ExitStack,
    ) -> None:
        run, recipe, data, device = ready.run, ready.recipe, ready.data, ready.device
        self.ready, self.recipe, self.data = ready, recipe, data
        self.ranks, self.report = ranks, report
        self.stop = AgreedStop(stack.enter_context(StopRequest(report.stopping)), ranks)
        self._stopped_by: int | None = None
        self.loader = loader
        for line in self.loader.explain().splitlines():
            if line.startswith("copies "):
                report.note(f"copies: {line.removeprefix('copies').strip()}")
        self.batches = self._watched(out)
        self.val_loader = val_loader(recipe, data, run, device, stack)
        self.state = ready.make_state()
        self.state.forward = ranks.parallel(self.state.model, device)
        compile_model(self.state, recipe, report.note)
        self.history = History(device)
        self.writer = CheckpointWriter(out=out, keep=run.keep_checkpoints or 0, note=report.note)
        self._steps = StepCounter(recipe=recipe, batches_in=self.loader.steps_in)
        self._total = self._steps.total
        if ready.resumed is not None:
            try:
                self._restore(ready.resumed.content)
            except StateError as error:
                raise StateError.of(error, str(ready.resumed.path)) from error
            ready.resumed.content.clear()
            if ready.is_finished:
                report.note(f"{out} is finished; a longer --schedule continues it")
            else:
                more = f", up to {recipe.epochs} epochs of the new schedule" * ready.extended
                report.note(f"{out} resumes after {self.state.step} steps in total{more}")
        helps = device.type == "cuda" or recipe.compile
        if not ready.is_finished and (helps if run.warmup_shapes is None else run.warmup_shapes):
            warm_up(self.state, recipe.shapes, classes=len(data.train.classes), note=report.note)

    def _watched(self, out: Path) -> Any:
        """The loader's batches, with a record of the time in the folder of the run."""
        metrics = None
        if self.ready.run.tensorboard:
            from feedline.profile.live import tensorboard_writer

            metrics = tensorboard_writer(out / "tensorboard")
        forget("train")
        watched = watch(self.loader, run=out, panel=False, metrics=metrics)
        if self.ready.resumed is not None:
            watched.continue_run()
        return watched

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(path, reason) of images that could not be decoded."""
        return [*self.loader.skipped, *(self.val_loader.skipped if self.val_loader else [])]

    def _save(self, *, must: bool = False) -> None:
        """Write a checkpoint; see `CheckpointWriter.save`."""
        random_states = self.ranks.gathered(random_state(self.state.device))
        current = self._current_of_all_ranks()
        if not self.ranks.is_main:
            return
        content = {
            "recipe": self.recipe.as_dict(),
            "run": self.ready.run.as_dict(),
            "ranks": self.ranks.world,
            "precision": self.state.precision_name,
            "dataset": self.data.identity,
            "loader": self.loader.state_dict(),
            "state": self.state.state_dict(),
            "history": self.history.state_dict(current),
            "random": random_states,
        }
        between = None if current.steps else len(self.history.records)
        self.writer.save(content, epochs=between, must=must)

    def _restore(self, saved: dict[str, Any]) -> None:
        if self.ready.extended:
            self.loader.set_epoch(len(saved["history"]["records"]))
        else:
            self.loader.load_state_dict(saved["loader"])
        self.state.load_state_dict(saved["state"])
        self.history.load_state_dict(saved["history"])
        if not self.ranks.is_main:  # rank 0 has the sums of all
            self.history.current.loss_sum.zero_()
            self.history.current.samples = 0
        if self.ranks.rank < len(saved["random"]):
            restore_random_state(saved["random"][self.ranks.rank], self.state.device)

    def _current_of_all_ranks(self) -> EpochInProgress:
        """The epoch in progress, with the samples of all ranks."""
        current = self.history.current
        samples = self.ranks.summed(torch.tensor(current.samples, device="cpu"))
        loss_sum = self.ranks.summed(current.loss_sum)
        return replace(current, samples=int(samples), loss_sum=loss_sum)

    def _is_stopped(self, *, at_end: bool = False) -> bool:
        self._stopped_by = self.stop.requested(at_end=at_end)
        return self._stopped_by is not None

    def fit(self) -> int | None:
        """Train until the schedule is done, or a stop: return its signal, of any rank."""
        history, epochs = self.history, self.recipe.epochs
        images, val_images = len(self.data.train), len(self.data.val or ())
        self.report.planned(
            self.recipe, images=images, val_images=val_images, records=history.records
        )
        while len(history.records) < epochs:
            current = history.current
            self.state.set_phase(self.recipe.phase_at(current.epoch))
            self.report.begin(self._position())
            if self.loader.epoch == current.epoch and not self._train_epoch():
                return self._stopped_by
            if not self._finish_epoch():
                return self._stopped_by
        return None

    def _finish_epoch(self) -> bool:
        """Validate, record and save an epoch. Return False if a stop ended the run."""
        history, state = self.history, self.state
        phase = self.recipe.phase_at(history.current.epoch)
        began_s = time.monotonic()
        val = self._validate(phase.val_image_size or 0)
        stopped = self._is_stopped(at_end=True)
        if stopped and self.val_loader is not None and val is None:
            self._save(must=True)
            return False
        best = history.best_top1
        record = self._current_of_all_ranks().record(
            val,
            val_seconds=val and time.monotonic() - began_s,
            size_px=phase.size,
            lr=state.lr,
            clip_grad=state.clip_grad,
            precision=state.precision_name,
        )
        history.close_epoch(record)
        # First the weights, then the checkpoint that counts their epoch: after a crash in between
        # the run validates again, and so writes the same weights.
        better = record.val_top1 is None or best is None or record.val_top1 > best
        if better and self.ranks.is_main:
            content = {
                "model": self.recipe.model,
                "state_dict": state.eval_model.state_dict(),
                "classes": list(self.data.train.classes),
                "val_image_size": self.recipe.val_image_size,
                "epoch": record.epoch,
                "top1": record.val_top1,
            }
            self.writer.save_best(content)
        self._save()
        if self.ranks.is_main:
            history.write_figures(self.writer.out, self.report.note)
        self.report.ended(record, epochs=self.recipe.epochs)
        return not stopped or len(history.records) >= self.recipe.epochs

    def _position(self, loss: float | None = None) -> TrainPosition:
        current, recipe = self.history.current, self.recipe
        share = current.steps / self.loader.steps_in(current.epoch)
        return TrainPosition(
            epoch=current.epoch + 1,
            epochs=recipe.epochs,
            phase=recipe.phase_number(current.epoch) + 1,
            phases=len(recipe.phases),
            size_px=recipe.phase_at(current.epoch).size,
            step=self.state.step,
            steps=self._total,
            images=round(len(self.data.train) * min(1.0, share)),
            lr=self.state.lr,
            loss=loss,
            split=self.loader.timing.totals(),
        )

    def _train_epoch(self) -> bool:
        """Take the remaining steps of the epoch. Return False if a stop ended it, after saving."""
        state, loader, current = self.state, self.loader, self.history.current
        phase = self.recipe.phase_at(current.epoch)
        check_every = _CPU_CHECK_STEPS if state.device.type == "cpu" else _GPU_CHECK_STEPS
        save_every = self.ready.run.checkpoint_every or 0
        state.model.train()
        before_s, before, began_s = current.seconds, current.split, time.monotonic()
        untimed = loader.timing.totals()
        first, step_start = True, -1

        def update_sums() -> None:
            """Bring the sums up to date; waits for the device."""
            self._read_loss()
            current.seconds = before_s + time.monotonic() - began_s
            current.split = before + loader.timing.totals() - untimed

        batch = f"a batch of {phase.batch_size} images at {phase.size} px"
        with memory_error(f"{batch} (epoch {current.epoch + 1})"):
            for images, labels in self.batches:
                assert loader.batch is not None, "a batch was returned"
                if first:  # validation or the start of workers before it does not belong to a step
                    untimed = loader.timing.totals()
                    arrived_s = time.monotonic()
                    current.first_wait_s += arrived_s - began_s
                    first, began_s = False, arrived_s
                part, parts = self._steps.parts(current.epoch, loader.batch.step)
                if loader.batch.step - part != step_start:
                    finish_step(state)  # if its last batch was left out: no image could be read
                    step_start = loader.batch.step - part
                    state.set_progress(self._steps.progress(current.epoch, step_start))
                loss = train_step(state, images, labels, part=part, parts=parts)
                current.add(loss, len(labels))
                if part + 1 < parts:  # no checkpoint has half of a step's gradients
                    continue
                reads = current.steps % check_every == 0
                self.report.stepped(self._position(self._read_loss() if reads else None))
                if self._is_stopped():
                    update_sums()
                    self._save(must=True)
                    return False
                if save_every and state.step % save_every == 0:
                    update_sums()
                    self._save()
        finish_step(state)
        if not current.steps:
            raise no_image_error(loader)
        update_sums()
        return True

    def _read_loss(self) -> float:
        """The mean loss of the epoch so far; waits for the device. FeedlineError if not finite."""
        current, state, out = self.history.current, self.state, self.writer.out
        loss = current.mean_loss()
        if not math.isfinite(loss):
            again = new_run_hint(out)
            if (out / CHECKPOINT_NAME).is_file():
                again = f"feedline train --resume {shell_command(str(out))}"
            lower = f"--lr {self.recipe.peak_lr / 3:.2g} --clip-grad 1"
            raise FeedlineError(
                f"the loss became {loss} by step {state.step} (epoch {current.epoch + 1}, "
                f"{self.recipe.phase_at(current.epoch).size} px, learning rate {state.lr:.3g}, "
                f"{state.precision_name})",
                hint=f"the learning rate is probably too high: {again} {lower}",
            )
        return loss

    def _validate(self, image_size: int) -> Evaluation | None:
        """Evaluate the model; None if it was stopped or there are no validation images."""
        if self.val_loader is None:
            return None
        self.val_loader.set_image_size(image_size)
        self.ranks.share_buffers(self.state.eval_model)
        batch = f"a batch of {self.recipe.largest_batch} images at {image_size} px"
        epoch = self.history.current.epoch + 1
        hint = "use a smaller --val-image-size"
        with memory_error(f"in validation, {batch} (epoch {epoch})", hint):
            return evaluate(
                self.state.eval_model,
                without_padding(self.val_loader),
                device=self.state.device,
                precision=self.state.precision,
                labels=self.data.labels,
                ranks=self.ranks,
                stopped=self._is_stopped,
                advance=lambda done: self.report.validating(done=done),
            )
