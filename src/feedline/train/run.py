"""A whole training run: joins data, model, loop and checkpoints.

Guarantees: what can be found wrong is found before the first worker starts. Both loaders are built
once, so their workers start once. An interrupted run leaves a checkpoint that `resume` takes up
to the same weights, bit for bit on a CPU with the same number of torch threads.
"""

from __future__ import annotations

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from feedline.bench.machine import versions
from feedline.loader import DataLoader
from feedline.loader.levels import copies_in_words
from feedline.train.assignment import Assignment
from feedline.train.earlier_run import EarlierRun, settled
from feedline.train.journal import Journal, Running
from feedline.train.keeper import Keeper
from feedline.train.learner import Learner
from feedline.train.loaders import train_loader, val_loader
from feedline.train.memory_error import in_memory, too_large
from feedline.train.prepared import prepared
from feedline.train.ranks import Ranks, joined
from feedline.train.recipe import Recipe
from feedline.train.report import Report, Silent
from feedline.train.result import Result
from feedline.train.run_files import RunFiles
from feedline.train.run_folder import make_run_folder, occupied
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import machine, reseed
from feedline.train.stop import AgreedStop, StopRequest
from feedline.train.training import Training
from feedline.train.warm_up import shapes_of, warm_up
from feedline.watching.watched import forget, watch

__all__ = ["run_training", "train_model"]


def train_model(
    recipe: Recipe | None = None,
    run: RunSettings | None = None,
    *,
    config: str | PathLike[str] | None = None,
    report: Report | None = None,
) -> Result:
    """Train a timm model with progressive resizing, as `feedline train` does, or go on training.

    Ctrl-C, SIGTERM and SIGUSR1 end it after the step under way, with a checkpoint written; the
    result says so, and a run with `RunSettings(resume=its out)` alone goes on.

    Args:
        recipe: all that decides the weights; None takes that of the file, of the run that is gone
            on from, or the defaults.
        run: where and how; what it leaves out is the file's, or that of the run that is gone on
            from.
        config: a TOML file of settings, as `recipe.toml` in a run's folder; see the guide to
            training.
        report: is told how it goes; None tells nobody.

    Returns:
        The figures of each epoch, the run's folder, the best top-1, and what stopped it.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used as asked.
        SampleError: an image cannot be decoded and the recipe says "raise".
        FeedlineError: the loss is not finite.
    """
    what = Assignment.of(
        {} if recipe is None else recipe,
        RunSettings() if run is None else run,
        config=None if config is None else Path(config),
    )
    return run_training(what.recipe, report or Silent(), what.asked, what.earlier)


def run_training(
    recipe: Recipe, report: Report, asked: RunSettings, earlier: EarlierRun | None = None
) -> Result:
    """Train, or go on training.

    Ctrl-C, SIGTERM and SIGUSR1 end it after the step under way, with a checkpoint written.

    Args:
        recipe: all that decides the weights.
        report: is told how it goes.
        asked: where and how.
        earlier: the run that is gone on from, where its checkpoint is read already.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used as asked.
        SampleError: an image cannot be decoded and the recipe says "raise".
        FeedlineError: the loss is not finite.
    """
    with joined() as ranks:
        earlier = earlier or EarlierRun.found(asked, model=recipe.model)
        told = report if ranks.leads else Silent()
        return _trained(recipe, told, settled(asked, earlier), earlier, ranks)


def _trained(
    recipe: Recipe,
    report: Report,
    asked: RunSettings,
    earlier: EarlierRun | None,
    ranks: Ranks,
) -> Result:
    """A run, or one rank's part of it."""
    ready = prepared(recipe, report.note, asked, earlier=earlier, world=ranks.world)
    recipe, data, device = ready.recipe, ready.data, ready.device
    checkpoint, extended = ready.checkpoint, ready.extended
    out = ranks.from_first(
        lambda: make_run_folder(asked.out, checkpoint=checkpoint, model=recipe.model)
    )
    reseed(recipe.seed, ranks.rank)
    files = RunFiles(out, report.note)
    report.note(
        f"{len(data.train)} images of {len(data.train.classes)} classes"
        + (f", {len(data.val)} to validate on" if data.val else "")
        + f"; {recipe.model} in {str(ready.precision).removeprefix('torch.')} on {device.type}; "
        f"writing to {out}/"
    )
    if data.note:
        report.note(data.note)

    with ExitStack() as stack:
        if ranks.leads:
            stack.enter_context(occupied(out))
        stop = stack.enter_context(StopRequest(report.stopping))
        loader = train_loader(recipe, data.train, asked, device, stack)
        if copies := copies_in_words(loader._session.settings, loader._session.decision()):
            report.note(f"copies: {copies}")
        validating = val_loader(recipe, data, asked, device, stack)
        learner = ready.learner()
        learner.forward = ranks.parallel(learner.model, device)
        if recipe.compile:
            learner.forward = torch.compile(learner.forward)
        training = Training(
            recipe=recipe,
            asked=asked.as_dict(),
            dataset=data.facts,
            loader=loader,
            batches=_watched(loader, asked, out, resumed=ready.saved is not None),
            val_loader=validating,
            labels_as=data.labels_as,
            learner=learner,
            journal=Journal(running=Running.begin(0, device)),
            keeper=Keeper(out=out, most=asked.keep or 0, told=report.note),
            files=files,
            checkpoint_every=asked.checkpoint_every or 0,
            ranks=ranks,
            stop=AgreedStop(stop, ranks),
            report=report,
        )
        if ready.saved is not None:
            training.restore(ready.saved, extended=extended)
            ready.saved = None
            done = f"step {learner.step}"
            if extended:
                done += f", to {recipe.epochs} epochs, along the curve of the longer schedule"
            over = len(training.journal.records) >= recipe.epochs
            going = "finished already, so nothing is trained or validated," if over else "going on"
            report.note(f"{out}: {going} after {done}")
        if ranks.leads:
            files.begin(recipe, asked, {"machine": machine(device), "versions": versions("timm")})
        helps = device.type == "cuda" or recipe.compile
        if helps if asked.warm is None else asked.warm:
            _warm_up(learner, recipe, len(data.train.classes), report)
        stopped_by = training.fit()
        skipped = [*loader.skipped, *([] if validating is None else validating.skipped)]

    return Result(
        recipe=recipe,
        out=out,
        classes=list(data.train.classes),
        records=training.journal.records,
        stopped_by=stopped_by,
        best_top1=training.journal.best_top1,
        weights=training.keeper.best,
        unkept=training.keeper.unkept,
        unsaved=training.keeper.unsaved,
        skipped=skipped,
        machine=machine(device),
        versions=versions("timm"),
    )


def _watched(loader: DataLoader[Any], asked: RunSettings, out: Any, *, resumed: bool) -> Any:
    """The loader's batches, with a record of where the time goes in the run's folder."""
    metrics = None
    if asked.tensorboard:
        from feedline.watching import tensorboard

        metrics = tensorboard.writer(out / "tensorboard")
    forget("train")
    watched = watch(loader, run=out, panel=False, metrics=metrics)
    if resumed:
        watched.continue_run()
    return watched


def _warm_up(learner: Learner, recipe: Recipe, classes: int, report: Report) -> None:
    took: list[str] = []

    def told(shape: tuple[int, int], seconds: float) -> None:
        took.append(f"{shape[1]} px {seconds:.1f} s")
        report.note(f"shape of {shape[0]} images at {shape[1]} px warmed in {seconds:.1f} s")

    shapes = shapes_of(recipe)
    with in_memory(lambda error: too_large("a batch", *shapes[len(took)], error)):
        warm_up(learner, shapes, classes=classes, told=told)
