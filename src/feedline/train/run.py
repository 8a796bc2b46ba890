"""A whole training run: joins data, model, loop and checkpoints.

Guarantees: what can be found wrong is found before the first worker starts. Both loaders are built
once, so their workers start once. An interrupted run leaves a checkpoint that `resume` takes up
to the same weights, bit for bit on a CPU with the same number of torch threads.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from feedline.bench.machine import versions
from feedline.errors import StateError, UsageError
from feedline.images.crops import EvalCrop, TrainCrop
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.system import rank_and_world
from feedline.train.checkpoint import load_checkpoint
from feedline.train.journal import Journal, Running
from feedline.train.learner import Learner
from feedline.train.model import create_model
from feedline.train.recipe import Recipe, differences
from feedline.train.result import Result
from feedline.train.run_folder import find_checkpoint, make_run_folder, occupied
from feedline.train.runtime import (
    choose_device,
    choose_precision,
    machine,
    prepare_process,
)
from feedline.train.splits import check_classes, find_splits, label_map
from feedline.train.stop import StopRequest
from feedline.train.training import Report, Training

__all__ = ["run_training"]


def run_training(
    recipe: Recipe,
    report: Report,
    *,
    root: Path,
    val: Path | None = None,
    device: str = "auto",
    workers: int | Literal["auto"] | None = None,
    settings: Path | None = None,
    out: Path | None = None,
    resume: str | None = None,
    checkpoint_every: int = 0,
) -> Result:
    """Train, or go on training.

    Ctrl-C and SIGTERM end it after the step under way, with a checkpoint written.

    Args:
        recipe: all that decides the weights.
        report: is told how it goes.
        root: the dataset.
        val: validation images, where they are not under `root`.
        device: "auto", "cpu" or "cuda".
        workers: "auto" or how many worker processes load images; None for what `settings` say, or
            else "auto".
        settings: a file of `feedline tune --save`; see `DataLoader`.
        out: the run's folder; None takes `runs/MODEL-N`.
        resume: a checkpoint, a run's folder, "auto", or None.
        checkpoint_every: steps between checkpoints within an epoch; 0 saves after epochs only.

    Raises:
        UsageError: a setting is out of range, or a folder, model, device or checkpoint cannot be
            used as asked.
        SampleError: an image cannot be decoded and the recipe says "raise".
        FeedlineError: the loss is not finite.
    """
    if checkpoint_every < 0:
        raise UsageError(f"checkpoint_every must be 0 or above, got {checkpoint_every}")
    if isinstance(workers, int) and workers < 0:
        raise UsageError(f"workers must be 'auto' or 0 or above, got {workers}")
    rank, world_size = rank_and_world()
    if world_size > 1:
        raise UsageError(
            f"training here uses one process, and this is rank {rank} of {world_size}: each would "
            "train on its share of the images alone. Start it without torchrun, or unset RANK and "
            "WORLD_SIZE"
        )
    torch_device = choose_device(device)
    precision = choose_precision(recipe.amp, torch_device)
    splits = find_splits(root, val=val)
    checkpoint = find_checkpoint(resume, out=out, model=recipe.model)
    saved = None if checkpoint is None else load_checkpoint(checkpoint)
    if saved is not None:
        recipe.check_resumable(saved["recipe"])

    train_data = ImageFolder(splits.train, transform=TrainCrop())
    check_classes(splits.train, train_data.classes)
    val_data = None if splits.val is None else ImageFolder(splits.val, transform=EvalCrop())
    labels_as = None if val_data is None else label_map(train_data.classes, val_data.classes)
    dataset: dict[str, Any] = {
        "classes": list(train_data.classes),
        "images": len(train_data),
        "files": train_data.fingerprint(),
    }
    if saved is not None and (found := differences(saved["dataset"], dataset, "were", "are")):
        raise StateError(
            f"cannot resume: the checkpoint is of another dataset ({found}). Name the folder it "
            "was made with, with the same files in it, or start anew without --resume"
        )

    prepare_process(seed=recipe.seed, device=torch_device)
    model = create_model(recipe.model, classes=len(train_data.classes), sizes=recipe.sizes)
    out = make_run_folder(out, checkpoint=checkpoint, model=recipe.model)
    report.note(
        f"{len(train_data)} images of {len(train_data.classes)} classes"
        + (f", {len(val_data)} to validate on" if val_data else "")
        + f"; {recipe.model} in {str(precision).removeprefix('torch.')} on {torch_device.type}; "
        f"writing to {out}/"
    )
    if splits.note:
        report.note(splits.note)

    make_loader: partial[DataLoader[Any]] = partial(
        DataLoader,
        seed=recipe.seed,
        num_workers="auto" if workers is None and settings is None else workers,
        settings=settings,
        device=torch_device.type,
        on_error=recipe.on_error,
    )
    with (
        occupied(out),
        StopRequest() as stop,
        make_loader(
            train_data,
            recipe.batch_size,
            schedule=recipe.schedule,
            # A last batch of a row or two upsets batch normalisation; a set smaller than a batch
            # has no other.
            drop_last=len(train_data) >= recipe.largest_batch,
        ) as loader,
        nullcontext()
        if val_data is None
        else make_loader(
            val_data, recipe.largest_batch, image_size=recipe.val_px, shuffle=False
        ) as val_loader,
    ):
        training = Training(
            recipe=recipe,
            dataset=dataset,
            loader=loader,
            val_loader=val_loader,
            labels_as=labels_as,
            learner=Learner(
                model,
                recipe,
                total_steps=loader.total_steps,
                device=torch_device,
                precision=precision,
            ),
            journal=Journal(running=Running.begin(0, torch_device)),
            out=out,
            checkpoint_every=checkpoint_every,
            stop=stop,
            report=report,
        )
        if saved is not None:
            training.restore(saved)
            del saved
            done = f"step {training.learner.step} of {training.learner.total_steps}"
            over = len(training.journal.records) == recipe.phases.epochs
            report.note(f"{checkpoint}: {'finished already' if over else 'going on'} after {done}")
        finished = training.fit()
        skipped = [*loader.skipped, *([] if val_loader is None else val_loader.skipped)]

    return Result(
        recipe=recipe,
        out=out,
        classes=dataset["classes"],
        records=training.journal.records,
        stopped_by=None if finished else stop.signum,
        best_top1=training.journal.best_top1,
        skipped=skipped,
        machine=machine(torch_device),
        versions=versions("timm"),
    )
