"""The recipe's training step for `feedline tune`: its time and its largest batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from feedline.engine.devices import synchronize
from feedline.errors import UsageError
from feedline.train.model import create_model
from feedline.train.recipe import Recipe
from feedline.train.runtime import choose_device, choose_precision, prepare_process
from feedline.train.train_state import TrainState, create_optimizer, train_step
from feedline.tuning.batch_sizes import BatchSizes
from feedline.tuning.find_batch_size import find_batch_size

__all__ = ["largest_batches", "make_step"]


def make_step(
    model: str, *, classes: int, schedule: str, rows: int, device: str
) -> tuple[Callable[[Any], None], str]:
    """Make a training step of a timm model with random weights that waits for the device.

    Returns:
        The step, called with a batch of images and labels on the device; and the device's type.
    """
    where = choose_device(device)
    recipe = Recipe(model=model, schedule=schedule, batch_size=rows)
    made = _make_model(recipe, classes, where)
    state = TrainState(made, recipe, device=where, precision=choose_precision(where))
    state.model.train()

    def step(batch: Any) -> None:
        train_step(state, *batch)
        synchronize(where)

    return step, where.type


def _make_model(recipe: Recipe, classes: int, device: torch.device) -> nn.Module:
    prepare_process(seed=0, device=device)
    return create_model(recipe.model, classes=classes, sizes=recipe.sizes)


def largest_batches(
    model: str,
    *,
    classes: int,
    schedule: str,
    device: str,
    gpu_memory: float | None,
    **search: Any,
) -> BatchSizes:
    """Find the largest batch for each phase, with the recipe's optimizer, loss and precision.

    `search` are `max_batch_size` and `on_trial` of `find_batch_size`.
    """
    where = choose_device(device)
    tried = gpu_memory is None
    if tried and where.type == "cpu":
        raise UsageError(
            f"--batch-size auto tries batches on a GPU, got the CPU (--device {device})",
            hint="--gpu-memory 8 estimates for a GPU with 8 GB",
        )
    recipe = Recipe(model=model, schedule=schedule)
    made = _make_model(recipe, classes, where)
    if tried:
        made.to(device=where)
    return find_batch_size(
        made,
        schedule,
        optimizer=create_optimizer(made, recipe),
        loss=partial(functional.cross_entropy, label_smoothing=recipe.smoothing),
        precision=choose_precision(where) if tried else torch.bfloat16,
        gpu_memory=gpu_memory,
        **search,
    )
