"""Normalising as work for a model of a device."""

from __future__ import annotations

import torch
from model import ModelDevice

from feedline.device.normalise import Normalise

__all__ = ["ModelNormalise"]


class ModelNormalise(Normalise):
    """Normalising as work of a model's current stream.

    Args:
        model: the device.
        takes_ms: how long it takes.
    """

    def __init__(self, model: ModelDevice, takes_ms: float = 0.5, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.__dict__.update(_model=model, _takes_ms=takes_ms)  # the class is frozen

    def constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        model: ModelDevice = self._model
        made = super().constants(device)
        placed = [model.empty(t.shape, t.stride(), t.dtype) for t in made]
        for target, tensor in zip(placed, made, strict=True):
            memory = model.memory(target)
            model.current_stream().give(lambda m=memory, t=tensor: m.copy_(t))
        return placed[0], placed[1]

    def __call__(
        self, images: torch.Tensor, constants: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        model: ModelDevice = self._model
        made = model.empty(images.shape, images.stride(), self.dtype)
        target, source = model.memory(made), model.memory(images)
        scale, shift = map(model.memory, constants)
        model.current_stream().give(
            lambda: target.copy_(Normalise.__call__(self, source, (scale, shift))), self._takes_ms
        )
        return made
