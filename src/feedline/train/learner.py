"""The learner: a model with all that changes it, as one thing to step, save and restore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from feedline.train.ema import Ema
from feedline.train.optimizer import create_optimizer
from feedline.train.phase import TrainPhase
from feedline.train.rate import rate_at
from feedline.train.recipe import Recipe
from feedline.train.regularisation import Regularisation

__all__ = ["Learner"]


class Learner:
    """A model in training.

    A change of phase touches nothing of what is learnt: not weights, optimizer, mean or scaler.

    Args:
        model: in channels_last layout; is moved to the device.
        recipe: says which optimizer and rate.
        device: where a step computes.
        precision: what it computes in. With float16 the loss is scaled, for gradients underflow.
        class_weights: shape (classes,), float32: by which a class's loss counts; None for alike.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        device: torch.device,
        precision: torch.dtype,
        class_weights: torch.Tensor | None = None,
    ) -> None:
        self.model = model.to(device=device)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        """What a step calls: the model, or what compiles it or reduces its gradients."""
        self.optimizer = create_optimizer(self.model, recipe)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision is torch.float16)
        self.ema = Ema(self.model, recipe.ema) if recipe.ema else None
        self.precision = precision
        self.device = device
        self.class_weights = None if class_weights is None else class_weights.to(device)
        self.clip = recipe.clip
        self.phase = recipe.phases[0]
        self.step = 0  # of the optimizer, done so far
        self._recipe = recipe
        self._regularisation = Regularisation(
            self.model,
            max(phase.dropout or 0.0 for phase in recipe.phases),
            max(phase.drop_path or 0.0 for phase in recipe.phases),
        )
        self.set_phase(self.phase)
        self.set_progress(0.0)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def computes_in(self) -> str:
        """Its precision, as torch names it."""
        return str(self.precision).removeprefix("torch.")

    @property
    def judged(self) -> nn.Module:
        """The model that is validated and kept: the mean, where there is one."""
        return self.model if self.ema is None else self.ema.model

    def set_phase(self, phase: TrainPhase) -> None:
        """Train on as a phase says, which says everything."""
        self.phase = phase
        self._regularisation.set(phase.dropout or 0.0, phase.drop_path or 0.0)

    def set_progress(self, seen: float) -> None:
        """Take the rate of a moment: the share, 0 to 1, of all samples seen before its step."""
        recipe = self._recipe
        rate = rate_at(seen, curve=recipe.curve, warmup=recipe.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.peak_lr * self.phase.lr * rate

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later step depends on, but for the random state and the position."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled() and state["scaler"]:  # empty where it was switched off
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None and state["ema"] is not None:
            self.ema.load_state_dict(state["ema"])
        self.step = int(state["step"])
