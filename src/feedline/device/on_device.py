"""Transforms of a batch on its device: of its pixels, to values, and of the whole batch.

Guarantees: the same on every device and with every transfer; a user's function gets tensors that
nothing else uses, and its result is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from feedline.errors import UsageError
from feedline.order.batch_spec import BatchSpec, Field

__all__ = ["BatchTransform", "Constants", "OnDevice", "PixelTransform", "ToValues", "is_image"]

PixelTransform = Callable[[torch.Tensor, BatchSpec], torch.Tensor]
"""Function of a batch's images, uint8 (N, 3, H, W) on the device, and its `BatchSpec`. Returns
images."""

BatchTransform = Callable[..., "tuple[torch.Tensor, ...]"]
"""Function of a batch's normalised tensors, with its `BatchSpec` as `batch=`. Returns as many
tensors."""


Constants = tuple[torch.Tensor, ...]
"""Constants of the conversion to values, on the device."""


class ToValues(Protocol):
    """Converts pixels to values: `Normalise` or `ValueTable`."""

    def constants(self, device: torch.device) -> Constants:
        """Return its constants on a device."""

    def __call__(self, images: torch.Tensor, constants: Constants) -> torch.Tensor:
        """Convert images, uint8 (N, 3, H, W), channels_last in memory, to values in new memory."""


def is_image(field: Field) -> bool:
    """Return True if a field holds RGB pixels: rows of shape (H, W, 3), uint8."""
    return field.name == "image" and field.dtype == "uint8" and field.shape[2:] == (3,)


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Transforms of a batch on its device.

    Args:
        values: conversion of pixels to values; None: there are no pixels, or they stay pixels.
        pixels: user's function applied before the conversion; None for none.
        whole: user's function applied after the conversion; None for none.
    """

    values: ToValues | None = None
    pixels: PixelTransform | None = None
    whole: BatchTransform | None = None

    def constants(self, device: torch.device) -> Constants:
        """Constants of the conversion on the device."""
        return () if self.values is None else self.values.constants(device)

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        fields: Sequence[Field],
        batch: BatchSpec,
        constants: Constants,
    ) -> tuple[torch.Tensor, ...]:
        """Transform a batch's tensors.

        Args:
            tensors: tensors from the workers, on the device.
            fields: layout of their rows.
            batch: specification of the batch.
            constants: return value of `constants` for the device.

        Raises:
            UsageError: a user's function returns another shape, dtype or number of tensors.
            Exception: any error of a user's function.
        """
        made = []
        for tensor, field in zip(tensors, fields, strict=True):
            if is_image(field) and self.pixels is not None:
                tensor = self._changed(tensor, batch)
            if is_image(field) and self.values is not None:
                tensor = self.values(tensor, constants)
            made.append(tensor)
        if self.whole is None:
            return tuple(made)
        given = self.whole(*made, batch=batch)
        kinds = isinstance(given, tuple | list) and all(
            isinstance(each, torch.Tensor) for each in given
        )
        if not kinds or len(given) != len(made):
            raise UsageError(
                f"batch_transform must return {len(made)} tensors, as many as it receives, as a "
                f"tuple; it returned {_described(given)}"
            )
        return tuple(given)

    def _changed(self, images: torch.Tensor, batch: BatchSpec) -> torch.Tensor:
        assert self.pixels is not None, "no pixel_transform is set"
        given = self.pixels(images, batch)
        kept = isinstance(given, torch.Tensor) and given.dtype == torch.uint8
        if not kept or given.ndim != 4 or given.shape[:2] != images.shape[:2]:
            raise UsageError(
                "pixel_transform must return the same number of images, uint8 of shape (N, 3, H, "
                f"W); it received shape {tuple(images.shape)} and returned {_described(given)}"
            )
        return given


def _described(given: object) -> str:
    if isinstance(given, torch.Tensor):
        return f"a tensor of shape {tuple(given.shape)}, {given.dtype}"
    if isinstance(given, tuple | list):
        return f"{len(given)} of {', '.join(sorted({type(each).__name__ for each in given}))}"
    return f"a {type(given).__name__}"
