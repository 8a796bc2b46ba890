"""One training step, of one batch or of several whose gradients are added up.

Guarantees: nothing here waits for the device. The loss stays a tensor on it; reading its value
waits, so callers read it rarely.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.train.learner import Learner

__all__ = ["autocast", "train_step"]


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """The context in which a model computes in a precision; float32 changes nothing."""
    dtype = None if precision is torch.float32 else precision
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def train_step(
    learner: Learner, images: Tensor, targets: Tensor, *, part: int = 0, parts: int = 1
) -> Tensor:
    """Learn from one batch; the weights move with the last of its parts.

    Args:
        learner: its model is in training mode.
        images: float, shape (N, 3, H, W), normalised, on the learner's device.
        targets: on the same device: int64, shape (N,), or shares of classes, float, (N, classes).
        part: which of the batches it is whose gradients make one step, from 0,
        parts: and how many these are.

    Returns:
        The mean loss of the batch before the step: float32, shape (), on the device, detached.
    """
    if part == 0:
        learner.optimizer.zero_grad(set_to_none=True)
    last = part + 1 == parts
    with nullcontext() if last else _unreduced(learner.forward):
        with autocast(learner.device, learner.precision):
            logits = learner.forward(images)
            loss = functional.cross_entropy(
                logits.float(),
                targets,
                weight=learner.class_weights,
                label_smoothing=learner.phase.label_smoothing or 0.0,
            )
        learner.scaler.scale(loss / parts).backward()
    if last:
        if learner.clip:
            learner.scaler.unscale_(learner.optimizer)
            nn.utils.clip_grad_norm_(learner.model.parameters(), learner.clip)
        learner.scaler.step(learner.optimizer)
        learner.scaler.update()
        learner.step += 1
        if learner.ema is not None:
            learner.ema.update(learner.model)
    return loss.detach()


def _unreduced(model: object) -> Any:
    """The gradients of processes are brought together at the last part alone."""
    no_sync: Any = getattr(model, "no_sync", nullcontext)
    return no_sync()
