"""Making values of pixels as work for a model of a device."""

from __future__ import annotations

import torch
from model import ModelDevice

from feedline.engine.normalise import Constants, PixelConversion


class ModelValues:
    """Function that computes values as work of a model's current stream.

    Args:
        model: the device.
        values: computes the values.
        takes_ms: duration.
    """

    def __init__(self, model: ModelDevice, values: PixelConversion, takes_ms: float = 0.5) -> None:
        self._model, self._values, self._takes_ms = model, values, takes_ms
        self._plain = values.constants(torch.device("cpu"))

    def constants(self, device: torch.device) -> Constants:
        model = self._model
        placed = tuple(model.empty(t.shape, t.stride(), t.dtype) for t in self._plain)
        for target, tensor in zip(placed, self._plain, strict=True):
            memory = model.memory(target)
            model.current_stream().give(lambda m=memory, t=tensor: m.copy_(t))  # type: ignore[misc]
        return placed

    def __call__(self, images: torch.Tensor, constants: Constants) -> torch.Tensor:
        model, values = self._model, self._values
        form = values(torch.zeros_like(images), self._plain)
        made = model.empty(form.shape, form.stride(), form.dtype)
        target, source = model.memory(made), model.memory(images)
        there = tuple(map(model.memory, constants))
        model.current_stream().give(lambda: target.copy_(values(source, there)), self._takes_ms)
        return made
