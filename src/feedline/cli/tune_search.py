"""What `feedline tune` searches with: over a folder of images, or over what a function gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.cli.batch_sizes import Batches, batches
from feedline.cli.train_folder import note_train_folder
from feedline.errors import UsageError
from feedline.images.crops import TrainCrop
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.stores.cache_layout import is_cache
from feedline.train.data import find_splits
from feedline.tuning.folder import FolderTuning, tune_folder
from feedline.tuning.tune import Told, search_settings
from feedline.tuning.tuned import Tuned
from feedline.tuning.user_code import function_named, is_function_name, loader_of

__all__ = ["TuneSearch", "of_folder", "of_function"]


@dataclass(frozen=True, slots=True)
class TuneSearch:
    """A search that is ready to run.

    Args:
        run: takes the milliseconds of a step, the seconds of the budget, and who is told.
        folder: its images, and how large batches are; None for what a function gives.
    """

    run: Callable[[float | None, float, Told], Tuned]
    folder: tuple[ImageFolder, Batches] | None = None


def of_folder(
    folder: Path,
    *,
    schedule: str,
    batch_size: str,
    gpu_memory: float | None,
    model: str | None,
    step_ms: float | None,
    device: str,
    cache: Path | None,
    decode: Any,
    warm: bool,
) -> TuneSearch:
    """Over the images of a folder; arguments are as the command's options.

    Raises:
        UsageError: one of them cannot be used.
    """
    root = folder if is_cache(str(folder)) else find_splits(folder).train
    note_train_folder(folder, root)
    own_step = model is not None and is_function_name(model)
    if device != "auto" and (model is None or own_step):
        raise UsageError(
            f"--device {device} says where a model of timm's trains, and no step of one is done "
            "here; leave it out, or name the model with --model"
        )
    images = ImageFolder(root, transform=TrainCrop())
    asked = batches(
        batch_size,
        schedule,
        model=None if own_step else model,
        classes=len(images.classes),
        images=len(images),
        device=device,
        gpu_memory=gpu_memory,
    )
    step, where = None, None
    if model is not None and own_step:
        step = function_named(model)
    elif model is not None and step_ms is None and not asked.estimated:
        from feedline.train.tune_step import make_step

        step, where = make_step(
            model,
            classes=len(images.classes),
            schedule=asked.schedule,
            rows=asked.rows,
            device=device,
        )

    def run(step_ms: float | None, budget: float, told: Told) -> Tuned:
        of = FolderTuning(
            root=root,
            schedule=asked.schedule,
            batch_size=asked.rows,
            cache=cache,
            decode=decode,
            device=where,
            warm=warm,
            budget_s=budget,
        )
        return tune_folder(of, step, step_ms=step_ms, told=told)

    return TuneSearch(run, (images, asked))


def of_function(
    source: str, schedule: str | None, batch_size: str | None, model: str | None
) -> TuneSearch:
    """Over the loader, or the dataset, that a function gives.

    Raises:
        UsageError: the function or an option cannot be used.
        Exception: whatever the function raises.
    """
    if batch_size is not None and not (batch_size.isdecimal() and int(batch_size)):
        raise UsageError(f"--batch-size must be a whole number of samples, got {batch_size!r}")
    step = None
    if model is not None:
        if not is_function_name(model):
            raise UsageError(
                f"--model {model!r} would be trained on a folder of images; for the loader of "
                f"{source!r} name a step, as module:function, or --step-ms"
            )
        step = function_named(model)
    rows = None if batch_size is None else int(batch_size)
    loader = loader_of(source, schedule=schedule, batch_size=rows)

    def run(step_ms: float | None, budget: float, told: Told) -> Tuned:
        with contextlib.ExitStack() as stack:
            if isinstance(loader, DataLoader):
                stack.enter_context(loader)
            return search_settings(loader, step, step_ms=step_ms, budget_s=budget, told=told)

    return TuneSearch(run)
