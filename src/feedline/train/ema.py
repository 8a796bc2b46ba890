"""A mean of all weights so far, in which later ones count more."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

__all__ = ["Ema"]


class Ema:
    """The exponential moving average of a model's weights and floating-point buffers.

    A step counts 1 - decay. Early on it counts more, 9 / (10 + steps), so that the first weights,
    which are random, are forgotten (as TensorFlow's ExponentialMovingAverage has it). Other
    buffers, counters for instance, are those of the model.

    Args:
        model: whose weights are averaged; a copy of it is made.
        decay: 0 to below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """A step has been done. Nothing waits for the device."""
        self._steps += 1
        weight = 1.0 - min(self._decay, (1 + self._steps) / (10 + self._steps))
        means, latest = list[torch.Tensor](), list[torch.Tensor]()
        for mean, new in zip(_tensors(self.model), _tensors(model), strict=True):
            if mean.is_floating_point():
                means.append(mean)
                latest.append(new)
            else:
                mean.copy_(new)
        torch._foreach_lerp_(means, latest, weight)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes."""
        return {"model": self.model.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self._steps = int(state["steps"])


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
