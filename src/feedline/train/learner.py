"""The learner: a model with all that changes it, as one thing to step, save and restore."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from feedline.train.optimizer import create_optimizer
from feedline.train.rate import create_rate
from feedline.train.recipe import Recipe

__all__ = ["Learner"]


class Learner:
    """A model in training.

    Args:
        model: in channels_last layout; is moved to the device.
        recipe: says which optimizer and rate.
        total_steps: steps of the whole schedule.
        device: where a step computes.
        precision: what it computes in. With float16 the loss is scaled, for gradients underflow.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        total_steps: int,
        device: torch.device,
        precision: torch.dtype,
    ) -> None:
        self.model = model.to(device=device)
        self.optimizer = create_optimizer(self.model, recipe)
        self.rate = create_rate(self.optimizer, recipe, total_steps=total_steps)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)
        self.precision = precision
        self.device = device
        self.label_smoothing = recipe.label_smoothing
        self.total_steps = total_steps
        self.step = 0  # steps done so far

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later step depends on, but for the random state."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rate": self.rate.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rate.load_state_dict(state["rate"])
        if self.scaler.is_enabled() and state["scaler"]:  # empty where it was switched off
            self.scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])
