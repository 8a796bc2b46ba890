"""A batch that is larger than the memory, found out before anything is started."""

from __future__ import annotations

from functools import partial

import torch
from rich.filesize import decimal
from torch import nn
from torch.nn import functional

from feedline.errors import UsageError
from feedline.system import available_memory_bytes
from feedline.train.recipe import Recipe
from feedline.train.warm_up import shapes_of
from feedline.tuning.forward_bytes import count_forward_bytes
from feedline.tuning.step_bytes import StepBytes, count_step_bytes

__all__ = ["check_memory", "free_bytes", "largest_batch", "step_bytes"]

_SURELY = 4000
"""Bytes that no usual network takes for a pixel in a training step; in float32 ResNet-50 takes
1700, ConvNeXt-T 2400. What is below that need not be counted, which takes seconds."""

_SURELY_FORWARD = 1000
"""The same of a forward pass alone: ResNet-18 takes 150, ConvNeXt-T 250."""

_SIZES = 32  # a size that is named is a multiple of it

_SHARE = 0.92  # of what is free: fragments, and the loader's own batches


def check_memory(
    model: nn.Module,
    recipe: Recipe,
    *,
    device: torch.device,
    precision: torch.dtype,
    val_images: int = 0,
) -> None:
    """See whether the largest batch of a recipe can be trained on here, and be validated on.

    Args:
        model: as it is trained.
        recipe: its phases.
        device: where its steps compute.
        precision: what they compute in.
        val_images: that it validates on.

    Raises:
        UsageError: it takes more memory than is free; says how large a batch, or a size of
            validation, may be.
    """
    free = free_bytes(device)
    _check_training(model, recipe, device, precision, free)
    if val_images:
        rows = min(recipe.largest_batch, val_images)
        size = max(recipe.val_size_of(phase) for phase in recipe.phases)
        _check_validation(model, rows, size, device, precision, free)


def _check_training(
    model: nn.Module, recipe: Recipe, device: torch.device, precision: torch.dtype, free: int
) -> None:
    rows, size = shapes_of(recipe)[0]
    if rows * size**2 * _SURELY <= free:
        return
    counted = step_bytes(model, recipe, size, precision)
    if counted is None:
        return  # its own error tells
    room = _SHARE * free
    if counted.at(rows) > room:
        most = counted.largest(room, rows)
        fits, instead = "not even one image of that size would fit", "Use smaller images"
        if most:
            fits = f"one of {most} would fit"
            instead = (
                f"Use a smaller batch (--batch-size, or @{most} in the schedule) with "
                "--accumulate, or smaller images"
            )
        raise UsageError(
            f"a training step with {rows} images at {size} px takes about "
            f"{decimal(round(counted.at(rows)))} of memory, and {decimal(free)} are free on "
            f"{device.type}: {fits}. {instead}"
        )


def _check_validation(
    model: nn.Module,
    rows: int,
    size: int,
    device: torch.device,
    precision: torch.dtype,
    free: int,
) -> None:
    """The largest images of validation; smaller ones take less."""
    if rows * size**2 * _SURELY_FORWARD <= free:
        return
    taken = _forward_bytes(model, rows, size, precision)
    if taken is None or taken <= _SHARE * free:
        return
    fits = _val_size_that_fits(model, rows, size, precision, _SHARE * free, taken)
    instead = "Use a smaller --val-size, or"
    if fits:
        instead = f"Use --val-size {fits}, or a phase's val_size of that, which would fit, or"
    raise UsageError(
        f"validation with {rows} images at {size} px takes about {decimal(round(taken))} of "
        f"memory, and {decimal(free)} are free on {device.type}. {instead} a smaller --batch-size: "
        "validation has batches as large as the largest of training"
    )


def _val_size_that_fits(
    model: nn.Module, rows: int, size: int, precision: torch.dtype, room: float, taken: float
) -> int | None:
    """A size that fits, not far below the largest one; None where none is found."""
    tried = float(size)
    while True:
        # By pixels; where the memory grows faster than they do, there is another round.
        tried = min(0.95 * tried, tried * (room / taken) ** 0.5) // _SIZES * _SIZES
        if not tried:
            return None
        found = _forward_bytes(model, rows, int(tried), precision)
        if found is None:
            return None
        if found <= room:
            return int(tried)
        taken = found


def _forward_bytes(model: nn.Module, rows: int, size: int, precision: torch.dtype) -> float | None:
    """What a validation batch takes; None where that cannot be counted."""
    try:
        return count_forward_bytes(model, size, precision=precision).at(rows)
    except UsageError:
        return None


def largest_batch(
    model: nn.Module,
    recipe: Recipe,
    rows: int,
    size: int,
    device: torch.device,
    precision: torch.dtype,
) -> int | None:
    """The largest batch below one that did not fit; None where that is not known."""
    counted = step_bytes(model, recipe, size, precision)
    if counted is None:
        return None
    room = _SHARE * (free_bytes(device) + _reserved(device))
    most = counted.largest(room, rows)
    return most if 0 < most < rows else None


def _reserved(device: torch.device) -> int:
    """What torch holds of the device's memory already."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def free_bytes(device: torch.device) -> int:
    """The memory that is free where steps compute."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory_bytes()


def step_bytes(
    model: nn.Module, recipe: Recipe, size: int, precision: torch.dtype
) -> StepBytes | None:
    """What a training step at a size takes; None where it cannot be done without values.

    Args:
        model: as it is trained.
        recipe: says the loss.
        size: side of the images, in pixels.
        precision: what it computes in.
    """
    loss = partial(functional.cross_entropy, label_smoothing=recipe.label_smoothing)
    try:
        return count_step_bytes(model, size, loss=loss, precision=precision, rows=(2, 32))
    except UsageError:
        return None
