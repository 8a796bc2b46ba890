"""A whole training run: finds data, model and checkpoint, then trains.

Guarantees: errors that can be found beforehand are raised before a folder is made or a worker
starts. Both loaders are built once, so their workers start once. A resumed run ends with the same
weights as an uninterrupted one, bit for bit on a CPU with the same number of torch threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from feedline.bench.machine import machine, versions
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.saved_settings import SavedSettings
from feedline.trace.this_machine import device_name
from feedline.train.checkpoint import BEST_NAME, CHECKPOINT_NAME, CheckpointWriter
from feedline.train.config import (
    Assignment,
    ResumedRun,
    as_toml,
    changed_on_resume,
    check_resumable,
    share_batches,
)
from feedline.train.data import TrainData, train_loader, val_loader
from feedline.train.history import (
    History,
    TrainReport,
    TrainResult,
)
from feedline.train.loop import TrainingLoop
from feedline.train.model import create_model, freeze
from feedline.train.ranks import AgreedStop, Ranks, join_ranks
from feedline.train.recipe import Recipe
from feedline.train.run_folder import (
    RECIPE_NAME,
    check_run_folder,
    lock_run_folder,
    make_run_folder,
    write_text,
)
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import (
    choose_device,
    choose_precision,
    compile_model,
    memory_error,
    prepare_process,
    reseed,
    warm_up,
)
from feedline.train.stop import StopRequest
from feedline.train.train_state import TrainState, create_optimizer
from feedline.watching.watched import forget, watch

__all__ = ["PreparedRun", "prepare", "run_training", "train_model"]


def train_model(
    recipe: Recipe | None = None,
    run: RunSettings | None = None,
    *,
    config: str | PathLike[str] | None = None,
    report: TrainReport | None = None,
) -> TrainResult:
    """Train a timm model with progressive resizing, or resume a run, as `feedline train` does.

    Ctrl-C, SIGTERM and SIGUSR1 end it after the current step, with a checkpoint;
    `RunSettings(resume=result.out)` continues.

    Args:
        recipe: settings that decide the weights; None for those of the file, of the resumed run,
            or the defaults.
        run: where and how to train; completed by the file and the resumed run.
        config: a TOML file of settings, such as `recipe.toml` in the folder of a run.
        report: callbacks; None for no output.

    Returns:
        The figures of each epoch, the folder of the run, the best top-1, and what stopped it.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used.
        SampleError: an image cannot be decoded, and on_error is "raise".
        FeedlineError: the loss became NaN or infinite.
    """
    assignment = Assignment.collect(
        {} if recipe is None else recipe,
        RunSettings() if run is None else run,
        config=None if config is None else Path(config),
    )
    return run_training(assignment, report or TrainReport())


def run_training(assignment: Assignment, report: TrainReport) -> TrainResult:
    """Train, or resume a run; see `train_model`."""
    with join_ranks() as ranks:
        report = report if ranks.is_main else TrainReport()
        ready = prepare(assignment, report.note, world=ranks.world)
        return _train(ready, ranks, report)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRun:
    """Everything a run needs before it begins.

    Args:
        recipe: the recipe, with batch sizes for the number of ranks.
        run: run settings.
        resumed: the run to resume, if any; with another schedule if `extended`.
        data: images.
        device, precision: of the steps.
        model: with its initial weights, on the CPU.
    """

    recipe: Recipe
    run: RunSettings
    resumed: ResumedRun | None
    extended: bool
    data: TrainData
    device: torch.device
    precision: torch.dtype
    model: torch.nn.Module

    def make_state(self) -> TrainState:
        """The model on its device, with its optimizer (UsageError if memory is out)."""
        with memory_error(f"the model {self.recipe.model!r}", "choose a smaller --model"):
            return TrainState(
                self.model,
                self.recipe,
                device=self.device,
                precision=self.precision,
                class_weights=self.data.class_weights(self.recipe),
            )


def prepare(assignment: Assignment, note: Callable[[str], object], *, world: int) -> PreparedRun:
    """Find and check everything that a run on `world` ranks needs.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used.
    """
    recipe, run, resumed = assignment.recipe, assignment.run, assignment.resumed
    if run.data is None:
        raise UsageError(
            "no folder of images, and no run to resume",
            hint="feedline train DIR, with train/ and val/ in it, or feedline train --resume RUN; "
            "`feedline demo-data demo-data` makes images to try",
        )
    if run.settings is not None:
        SavedSettings.read(run.settings)  # the loader reads it again; errors now
    device = choose_device(run.device or "auto")
    precision = choose_precision(recipe.amp, device)
    data, extended = TrainData.find(run.data, run.val_dir), False
    if resumed is not None:
        if resumed.note:
            note(resumed.note)
        saved = resumed.content
        extended = check_resumable(recipe, saved["recipe"], done=resumed.between_epochs)
        if changed := changed_on_resume(recipe, saved["recipe"]):
            note(f"changed from here on: {changed}")
        recipe = share_batches(recipe, saved["ranks"], world)
        data.check_resumable(saved["dataset"])
    elif run.resume == "auto":
        note("no run to resume: starting a new one")
    prepare_process(seed=recipe.seed, device=device)
    model = create_model(
        recipe.model,
        classes=len(data.train.classes),
        sizes=recipe.sizes,
        pretrained=recipe.pretrained,
        drop=max(phase.drop or 0.0 for phase in recipe.phases),
        drop_path=max(phase.drop_path or 0.0 for phase in recipe.phases),
    )
    if frozen := freeze(model, recipe.freeze):
        note(f"{frozen} parameters are frozen")
    create_optimizer(model, recipe)  # the real one is made on the device; errors now
    check_run_folder(run.out, checkpoint=resumed.checkpoint if resumed else None)
    return PreparedRun(
        recipe=recipe,
        run=run,
        resumed=resumed,
        extended=extended,
        data=data,
        device=device,
        precision=precision,
        model=model,
    )


def _train(ready: PreparedRun, ranks: Ranks, report: TrainReport) -> TrainResult:
    """Train on one rank."""
    recipe, run, resumed = ready.recipe, ready.run, ready.resumed
    data, device = ready.data, ready.device
    made = None
    if ranks.is_main:
        checkpoint = resumed.checkpoint if resumed else None
        made = make_run_folder(run.out, checkpoint=checkpoint, model=recipe.model)
    out = ranks.gathered(made)[0]
    assert out is not None, "rank 0 has made it"
    reseed(recipe.seed, ranks.rank)
    report.note(
        f"{len(data.train)} images of {len(data.train.classes)} classes"
        + (f", {len(data.val)} for validation" if data.val else "")
        + f"; {recipe.model} in {str(ready.precision).removeprefix('torch.')} on {device.type}; "
        f"writing to {out}/"
    )
    if data.note:
        report.note(data.note)
    with ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(lock_run_folder(out))
        stop = stack.enter_context(StopRequest(report.stopping))
        loader = train_loader(recipe, data.train, run, device, stack)
        for line in loader.explain().splitlines():
            if line.startswith("copies "):
                report.note(f"copies: {line.removeprefix('copies').strip()}")
        validation = val_loader(recipe, data, run, device, stack)
        state = ready.make_state()
        state.forward = ranks.parallel(state.model, device)
        compile_model(state, recipe, report.note)
        loop = TrainingLoop(
            recipe=recipe,
            run=run,
            data=data,
            loader=loader,
            batches=_watch(loader, run, out, resumed=resumed is not None),
            val_loader=validation,
            state=state,
            history=History(device),
            writer=CheckpointWriter(out=out, keep=run.keep_checkpoints or 0, note=report.note),
            ranks=ranks,
            stop=AgreedStop(stop, ranks),
            report=report,
        )
        if resumed is not None:
            loop.restore(resumed.content, extended=ready.extended)
            resumed.content.clear()
            done = len(loop.history.records) >= recipe.epochs
            text = "is finished: nothing to do" if done else f"resumes after step {state.step}"
            if ready.extended and not done:
                text += f", up to {recipe.epochs} epochs of the new schedule"
            report.note(f"{out} {text}")
        environment: dict[str, Any] = {
            "machine": machine()
            | {"device": device.type, "gpu": device_name(), "threads": torch.get_num_threads()},
            "versions": versions("timm"),
        }
        if ranks.is_main:
            write_text(out / RECIPE_NAME, as_toml(recipe, run), report.note)
            write_text(out / "environment.json", json.dumps(environment, indent=2), report.note)
        helps = device.type == "cuda" or recipe.compile
        if helps if run.warmup_shapes is None else run.warmup_shapes:
            warm_up(state, recipe.shapes, classes=len(data.train.classes), note=report.note)
        stopped_by = loop.fit()
        skipped = [*loader.skipped, *([] if validation is None else validation.skipped)]
    return TrainResult(
        recipe=recipe,
        out=out,
        classes=list(data.train.classes),
        records=loop.history.records,
        stopped_by=stopped_by,
        best_top1=loop.history.best_top1,
        weights=loop.writer.best,
        weights_error=loop.writer.errors.get(BEST_NAME),
        checkpoint_error=loop.writer.errors.get(CHECKPOINT_NAME),
        skipped=skipped,
        **environment,
    )


def _watch(loader: DataLoader[Any], run: RunSettings, out: Path, *, resumed: bool) -> Any:
    """The loader's batches, with a record of the time in the folder of the run."""
    metrics = None
    if run.tensorboard:
        from feedline.watching import tensorboard

        metrics = tensorboard.writer(out / "tensorboard")
    forget("train")
    watched = watch(loader, run=out, panel=False, metrics=metrics)
    if resumed:
        watched.continue_run()
    return watched
