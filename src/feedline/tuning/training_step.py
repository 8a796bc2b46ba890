"""One step that trains a classifier, and batches for it, on a device or on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.device.normalise import Normalise
from feedline.errors import UsageError

__all__ = ["Loss", "MakeBatch", "Step", "class_loss", "noise", "training_step"]

Step = Callable[[Any], object]
"""One training step on a batch: forward, backward and optimizer."""

MakeBatch = Callable[[int, int], Any]
"""Makes a batch on the device, of so many rows, with images of so many pixels' side."""

Loss = Callable[[Any, Tensor], Tensor]
"""The loss of what a model gives for a batch and its labels: int64, shape (N,)."""


def class_loss(outputs: Any, labels: Tensor) -> Tensor:
    """Cross entropy.

    Raises:
        UsageError: the outputs are no logits of classes.
    """
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UsageError(
            f"the model gives {found} and not logits of shape (N, classes), so its loss is not "
            "known; name it: loss=lambda outputs, labels: ..."
        )
    return functional.cross_entropy(outputs, labels)


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Step:
    """A step on (images, labels).

    Args:
        model: takes images, float32, shape (N, 3, H, W).
        optimizer: of its parameters.
        loss: gets what the model gives; a tensor as float32.
        autocast: makes the context that the forward pass runs in.
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


def noise(device: torch.device) -> MakeBatch:
    """Makes batches of noise as the loader hands them out, from pixels that lie on the device.

    Images are float32, shape (N, 3, size, size), channels_last; labels int64, shape (N,), all 0, as
    they decide nothing of the memory and any number of classes has a first.
    """
    normalise = Normalise()
    constants = normalise.constants(device)

    def make(rows: int, size: int) -> tuple[Tensor, Tensor]:
        shape = rows, size, size, 3
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        images = normalise(pixels.permute(0, 3, 1, 2), constants)
        return images, torch.zeros(rows, dtype=torch.int64, device=device)

    return make
