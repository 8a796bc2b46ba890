"""A whole training run: joins data, model, loop and checkpoints.

Guarantees: what can be found wrong is found before the first worker starts. Both loaders are built
once, so their workers start once. An interrupted run leaves a checkpoint that `resume` takes up
to the same weights, bit for bit on a CPU with the same number of torch threads.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from feedline.bench.machine import versions
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.train.check_memory import check_memory
from feedline.train.checkpoint import load_or_before
from feedline.train.data import TrainData
from feedline.train.journal import Journal, Running
from feedline.train.keeper import Keeper
from feedline.train.learner import Learner
from feedline.train.model import create_model, freeze
from feedline.train.ranks import Ranks, joined
from feedline.train.recipe import Recipe
from feedline.train.report import Report, Silent
from feedline.train.result import Result
from feedline.train.run_files import RunFiles
from feedline.train.run_folder import find_checkpoint, make_run_folder, occupied
from feedline.train.run_settings import RunSettings
from feedline.train.runtime import (
    choose_device,
    choose_precision,
    machine,
    prepare_process,
    reseed,
)
from feedline.train.stop import StopRequest
from feedline.train.training import Training
from feedline.train.transforms import RecipeTransforms
from feedline.train.warm_up import shapes_of, warm_up
from feedline.watching.watched import forget, watch

__all__ = ["run_training"]


def run_training(recipe: Recipe, report: Report, asked: RunSettings) -> Result:
    """Train, or go on training.

    Ctrl-C, SIGTERM and SIGUSR1 end it after the step under way, with a checkpoint written.

    Args:
        recipe: all that decides the weights.
        report: is told how it goes.
        asked: where and how.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used as asked.
        SampleError: an image cannot be decoded and the recipe says "raise".
        FeedlineError: the loss is not finite.
    """
    with joined() as ranks:
        return _trained(recipe, report if ranks.leads else Silent(), asked, ranks)


def _trained(recipe: Recipe, report: Report, asked: RunSettings, ranks: Ranks) -> Result:
    """A run, or one rank's part of it."""
    device = choose_device(asked.device)
    precision = choose_precision(recipe.amp, device)
    checkpoint = find_checkpoint(asked.resume, out=asked.out, model=recipe.model)
    if asked.resume == "auto" and checkpoint is None:
        report.note("there is no run to go on from: this one starts anew")
    saved = None if checkpoint is None else load_or_before(checkpoint, report.note)
    extended = False
    if saved is not None:
        journal = saved["journal"]
        between = None if journal["running"]["steps"] else len(journal["records"])
        extended = recipe.check_resumable(saved["recipe"], done=between)
        recipe = recipe.for_ranks(saved["ranks"], ranks.world)
    data = TrainData.found(asked.root, asked.val)
    if saved is not None:
        data.check_resumable(saved["dataset"])

    prepare_process(seed=recipe.seed, device=device)
    model = _model(recipe, data, report)
    check_memory(model, recipe, device=device, precision=precision)
    out = ranks.from_first(
        lambda: make_run_folder(asked.out, checkpoint=checkpoint, model=recipe.model)
    )
    reseed(recipe.seed, ranks.rank)
    files = RunFiles(out, report.note)
    report.note(
        f"{len(data.train)} images of {len(data.train.classes)} classes"
        + (f", {len(data.val)} to validate on" if data.val else "")
        + f"; {recipe.model} in {str(precision).removeprefix('torch.')} on {device.type}; "
        f"writing to {out}/"
    )
    if data.note:
        report.note(data.note)

    with ExitStack() as stack:
        if ranks.leads:
            stack.enter_context(occupied(out))
        stop = stack.enter_context(StopRequest())
        loader, val_loader = _loaders(recipe, data, asked, device, stack)
        for line in loader.explain().splitlines() if asked.cache else ():
            if line.startswith("copies "):
                report.note(" ".join(line.split()))
        learner = Learner(
            model,
            recipe,
            device=device,
            precision=precision,
            class_weights=data.class_weights(recipe),
        )
        learner.forward = ranks.parallel(learner.model, device)
        if recipe.compile:
            learner.forward = torch.compile(learner.forward)
        training = Training(
            recipe=recipe,
            dataset=data.facts,
            loader=loader,
            batches=_watched(loader, asked, out),
            val_loader=val_loader,
            labels_as=data.labels_as,
            learner=learner,
            journal=Journal(running=Running.begin(0, device)),
            keeper=Keeper(out=out, most=asked.keep, told=report.note),
            files=files,
            checkpoint_every=asked.checkpoint_every,
            ranks=ranks,
            stop=stop,
            report=report,
        )
        if saved is not None:
            training.restore(saved, extended=extended)
            del saved
            done = f"step {learner.step}"
            if extended:
                done += f", to {recipe.epochs} epochs, along the curve of the longer schedule"
            over = len(training.journal.records) >= recipe.epochs
            report.note(f"{checkpoint}: {'finished already' if over else 'going on'} after {done}")
        if ranks.leads:
            files.begin(recipe, {"machine": machine(device), "versions": versions("timm")})
        helps = device.type == "cuda" or recipe.compile
        if helps if asked.warm is None else asked.warm:
            _warm_up(learner, recipe, len(data.train.classes), report)
        finished = training.fit()
        skipped = [*loader.skipped, *([] if val_loader is None else val_loader.skipped)]

    return Result(
        recipe=recipe,
        out=out,
        classes=list(data.train.classes),
        records=training.journal.records,
        stopped_by=None if finished else stop.signum,
        best_top1=training.journal.best_top1,
        skipped=skipped,
        machine=machine(device),
        versions=versions("timm"),
    )


def _model(recipe: Recipe, data: TrainData, report: Report) -> torch.nn.Module:
    model = create_model(
        recipe.model,
        classes=len(data.train.classes),
        sizes=recipe.sizes,
        pretrained=recipe.pretrained,
        dropout=max(phase.dropout or 0.0 for phase in recipe.phases),
        drop_path=max(phase.drop_path or 0.0 for phase in recipe.phases),
    )
    if frozen := freeze(model, recipe.freeze):
        report.note(f"{frozen} values of the model stay as they are")
    return model


def _loaders(
    recipe: Recipe, data: TrainData, asked: RunSettings, device: torch.device, stack: ExitStack
) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    """Of the training images, and of those of validation; they close with the stack."""
    transforms = RecipeTransforms(recipe, len(data.train.classes))
    make: partial[DataLoader[Any]] = partial(
        DataLoader,
        seed=recipe.seed,
        num_workers="auto" if asked.workers is None and asked.settings is None else asked.workers,
        settings=asked.settings,
        device=str(device),
        on_error=recipe.on_error,
    )
    loader = stack.enter_context(
        make(
            data.train,
            recipe.batch_size,
            schedule=recipe.loads,
            pixel_transform=transforms.pixels,
            batch_transform=transforms.whole,
            cache=asked.cache,
            # A last batch of a row or two upsets batch normalisation; a set smaller than a batch
            # has no other.
            drop_last=len(data.train) >= recipe.largest_batch,
        )
    )
    if data.val is None:
        return loader, None
    val_loader = make(
        data.val,
        recipe.largest_batch,
        image_size=recipe.val_px,
        max_image_size=max(phase.val_size or 0 for phase in recipe.phases),
        shuffle=False,
    )
    return loader, stack.enter_context(val_loader)


def _watched(loader: DataLoader[Any], asked: RunSettings, out: Any) -> Any:
    """The loader's batches, with a record of where the time goes in the run's folder."""
    metrics = None
    if asked.tensorboard:
        from feedline.watching import tensorboard

        metrics = tensorboard.writer(out / "tensorboard")
    forget("train")
    return watch(loader, run=out, panel=False, metrics=metrics)


def _warm_up(learner: Learner, recipe: Recipe, classes: int, report: Report) -> None:
    took: list[str] = []

    def told(shape: tuple[int, int], seconds: float) -> None:
        took.append(f"{shape[1]} px {seconds:.1f} s")
        report.note(f"shape of {shape[0]} images at {shape[1]} px warmed in {seconds:.1f} s")

    shapes = shapes_of(recipe)
    try:
        warm_up(learner, shapes, classes=classes, told=told)
    except torch.OutOfMemoryError as error:
        rows, size = shapes[len(took)]
        raise UsageError(
            f"a batch of {rows} images at {size} px does not fit the device's memory: {error}. "
            "Use a smaller --batch-size, or --accumulate; feedline tune --batch-size auto finds "
            "the largest that fits"
        ) from error
