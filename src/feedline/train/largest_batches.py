"""The largest batches for a recipe: tried on this machine's GPU, or estimated for another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from feedline.errors import UsageError
from feedline.plan.schedule import Schedule
from feedline.train.model import create_model
from feedline.train.optimizer import create_optimizer
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_device, choose_precision, prepare_process
from feedline.tuning.batch_search import BatchTrial
from feedline.tuning.batch_sizes import BatchSizes
from feedline.tuning.find_batch_size import find_batch_size

__all__ = ["largest_batches"]


def largest_batches(
    model: str,
    *,
    classes: int,
    schedule: str,
    most: int,
    device: str,
    gpu_memory: float | None,
    told: Callable[[int, BatchTrial], object] | None = None,
) -> BatchSizes:
    """Find the largest batch for each phase, with the recipe's optimizer, loss and precision.

    Args:
        model: of timm, by name.
        classes: that it tells apart.
        schedule: as `Schedule.parse` takes it; batch sizes that it names stay.
        most: no larger batch is tried.
        device: see `choose_device`.
        gpu_memory: in GB, to estimate for; None tries on this machine's GPU.
        told: is called after each trial, with the image size.

    Raises:
        UsageError: there is no GPU and no `gpu_memory`; no such model; nothing fits.
    """
    where = choose_device(device)
    tried = gpu_memory is None
    if tried and where.type == "cpu":
        raise UsageError(
            "--batch-size auto tries batches on a GPU, and the training is on the CPU "
            f"(--device {device}); say how much memory your GPU has, in GB, for an estimate: "
            "--gpu-memory 8"
        )
    recipe = Recipe(model=model, schedule=schedule)
    prepare_process(seed=0, device=where)
    made = create_model(model, classes=classes, sizes=Schedule.parse(schedule).sizes)
    if tried:
        made.to(device=where)
    return find_batch_size(
        made,
        schedule,
        optimizer=create_optimizer(made, recipe),
        loss=partial(functional.cross_entropy, label_smoothing=recipe.label_smoothing),
        precision=choose_precision(recipe.amp, where) if tried else torch.bfloat16,
        most=most,
        gpu_memory=gpu_memory,
        told=told,
    )
