"""A plain training step of a classifier, and batches for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.engine.normalise import Normalise
from feedline.errors import UsageError

__all__ = ["Loss", "MakeBatch", "Step", "class_loss", "noise_batches", "training_step"]

Step = Callable[[Any], object]
"""Training step on a batch: forward, backward and optimizer."""

MakeBatch = Callable[[int, int], Any]
"""Function of (rows, image size) that makes a batch on the device."""

Loss = Callable[[Any, Tensor], Tensor]
"""Function of a model's outputs and labels (int64, shape (N,)) that returns the loss."""


def class_loss(outputs: Any, labels: Tensor) -> Tensor:
    """Return the cross entropy.

    Raises:
        UsageError: the outputs are not class logits.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UsageError(
            f"expected logits of shape (N, classes) from the model, got {got}",
            hint="pass loss=lambda outputs, labels: ...",
        )
    return functional.cross_entropy(outputs, labels)


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Step:
    """Build a training step on (images, labels).

    Args:
        model: accepts images, float32, shape (N, 3, H, W).
        optimizer: optimizer of its parameters.
        loss: loss of the model's output, converted to float32 if it is a tensor, and labels.
        autocast: makes the context of the forward pass.
    """

    def step(batch: tuple[Tensor, Tensor]) -> None:
        images, labels = batch
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            outputs = model(images)
            if isinstance(outputs, Tensor):
                outputs = outputs.float()
            lost = loss(outputs, labels)
        lost.backward()
        optimizer.step()

    return step


def noise_batches(device: torch.device) -> MakeBatch:
    """Return a function that makes batches of noise like the loader's, from pixels on the device.

    Images are float32, shape (N, 3, size, size), channels_last. Labels are int64, shape (N,), all
    0, as they do not affect memory and every number of classes has class 0.
    """
    normalise = Normalise()
    constants = normalise.constants(device)

    def make(rows: int, size: int) -> tuple[Tensor, Tensor]:
        shape = rows, size, size, 3
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        images = normalise(pixels.permute(0, 3, 1, 2), constants)
        return images, torch.zeros(rows, dtype=torch.int64, device=device)

    return make
