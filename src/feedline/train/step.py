"""One training step.

Guarantees: nothing here waits for the device. The loss stays a tensor on it; reading its value
waits, so callers read it rarely.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn import functional

from feedline.train.learner import Learner

__all__ = ["autocast", "train_step"]


def autocast(learner: Learner) -> torch.autocast:
    """The context in which the learner's model computes."""
    dtype = None if learner.precision is torch.float32 else learner.precision
    return torch.autocast(learner.device.type, dtype=dtype, enabled=dtype is not None)


def train_step(learner: Learner, images: Tensor, labels: Tensor) -> Tensor:
    """Learn from one batch.

    Args:
        learner: its model is in training mode.
        images: float, shape (N, 3, H, W), normalised, on the learner's device.
        labels: int64, shape (N,), on the same device.

    Returns:
        The mean loss of the batch before the step: float32, shape (), on the device, detached.
    """
    learner.optimizer.zero_grad(set_to_none=True)
    with autocast(learner):
        logits = learner.model(images)
        loss = functional.cross_entropy(
            logits.float(), labels, label_smoothing=learner.label_smoothing
        )
    learner.scaler.scale(loss).backward()
    learner.scaler.step(learner.optimizer)
    learner.scaler.update()
    learner.step += 1
    if learner.step < learner.total_steps:
        with warnings.catch_warnings():
            # A scaler that skips the first step makes torch suspect a wrong order of calls.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            learner.rate.step()
    return loss.detach()
