"""The learner: a model with all that changes it, as one thing to step, save and restore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from feedline.train.optimizer import create_optimizer
from feedline.train.rate import create_rate
from feedline.train.recipe import Recipe
from feedline.train.runtime import Precision

__all__ = ["Learner", "create_learner"]


@dataclass(kw_only=True)
class Learner:
    """A model in training.

    Args:
        model: on `device`, in channels_last layout.
        optimizer: over the model's parameters.
        rate: the learning rate's curve.
        scaler: scales the loss; switched off unless the precision asks for it.
        precision: how a step computes.
        device: where.
        label_smoothing: of the training loss.
        total_steps: steps of the whole schedule.
        step: steps done so far.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rate: OneCycleLR
    scaler: torch.amp.GradScaler
    precision: Precision
    device: torch.device
    label_smoothing: float
    total_steps: int
    step: int = 0

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


def create_learner(
    model: nn.Module,
    recipe: Recipe,
    *,
    total_steps: int,
    device: torch.device,
    precision: Precision,
) -> Learner:
    """Move a model to its device and put optimizer, rate and scaler around it."""
    model = model.to(device=device)
    optimizer = create_optimizer(model, recipe)
    return Learner(
        model=model,
        optimizer=optimizer,
        rate=create_rate(optimizer, recipe, total_steps=total_steps),
        scaler=torch.amp.GradScaler(device.type, enabled=precision.scaled),
        precision=precision,
        device=device,
        label_smoothing=recipe.label_smoothing,
        total_steps=total_steps,
    )
