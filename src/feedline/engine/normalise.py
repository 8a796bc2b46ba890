"""Transforms applied on the device, in order: pixel_transform (uint8), conversion to floats,
batch_transform.

Guarantees: the same on every device and with every transfer; a user's function gets tensors that
nothing else uses, and its result is checked. Normalisation has the same arithmetic on every device.
A `ValueTable` gives the table's own values, bit for bit, and transfers bytes, not floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from feedline.errors import UsageError
from feedline.order.batch_spec import BatchSpec, Field
from feedline.order.pixel_layout import RGB, PixelLayout, is_image

PixelTransform = Callable[[torch.Tensor, BatchSpec], torch.Tensor]
"""Function of a batch's images, (N, channels, H, W) on the device, and its `BatchSpec`. Returns
images."""

BatchTransform = Callable[..., "tuple[torch.Tensor, ...]"]
"""Function of a batch's normalised tensors, with its `BatchSpec` as `batch=`. Returns as many
tensors."""

Constants = tuple[torch.Tensor, ...]
"""Constants of the conversion to values, on the device."""


@dataclass(frozen=True, slots=True)
class DeviceTransforms:
    """Transforms of a batch on its device."""

    values: PixelConversion | None = None  # None: there are no pixels, or they stay pixels
    pixels: PixelTransform | None = None  # the user's, before the conversion
    batch_transform: BatchTransform | None = None  # the user's, after the conversion

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
        """Transform a batch's tensors, which are on the device, with `constants` for it."""
        values = []
        for tensor, field in zip(tensors, fields, strict=True):
            if is_image(field) and self.pixels is not None:
                tensor = self._transform_pixels(self.pixels, tensor, batch)
            if is_image(field) and self.values is not None:
                tensor = self.values(tensor, constants)
            values.append(tensor)
        if self.batch_transform is None:
            return tuple(values)
        result = self.batch_transform(*values, batch=batch)
        are_tensors = isinstance(result, tuple | list) and all(
            isinstance(each, torch.Tensor) for each in result
        )
        if not are_tensors or len(result) != len(values):
            raise UsageError(
                f"must return {len(values)} tensors, as many as it receives, as a tuple; it "
                f"returned {_describe(result)}",
                argument="batch_transform",
            )
        return tuple(result)

    @staticmethod
    def _transform_pixels(
        transform: PixelTransform, images: torch.Tensor, batch: BatchSpec
    ) -> torch.Tensor:
        result = transform(images, batch)
        is_alike = isinstance(result, torch.Tensor) and result.dtype == images.dtype
        if not is_alike or result.ndim != 4 or result.shape[:2] != images.shape[:2]:
            raise UsageError(
                "must return the same number of images, with the same channels and dtype; it "
                f"received {_describe(images)} and returned {_describe(result)}",
                argument="pixel_transform",
            )
        return result


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    if isinstance(value, tuple | list):
        return f"{len(value)} of {', '.join(sorted({type(each).__name__ for each in value}))}"
    return f"a {type(value).__name__}"


# The customary channel statistics of ImageNet's training images, RGB, for pixels in 0 .. 1
# (torchvision.transforms documentation).
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Normalise:
    """(x / white - mean) / std per channel, in float32, then cast; white is 255 for uint8.

    `mean` and `std` have one number per channel, for pixels in 0 .. 1.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    dtype: torch.dtype = torch.float32
    layout: PixelLayout = RGB

    def __post_init__(self) -> None:
        channels = self.layout.channels
        try:
            lengths = len(self.mean), len(self.std)
            is_valid = lengths == (channels, channels) and all(std > 0 for std in self.std)
        except TypeError:
            is_valid = False
        if not is_valid:
            raise UsageError(
                f"mean and std must have one number per channel, for pixels in 0 .. 1, with std "
                f"above 0; got mean={self.mean!r}, std={self.std!r} for {self.layout}"
            )
        if not self.dtype.is_floating_point:
            raise UsageError(f"must be a floating-point type, got {self.dtype}", argument="dtype")

    def constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift, shape (1, channels, 1, 1), float32: result = pixel * scale + shift."""
        mean = torch.tensor(self.mean, dtype=torch.float64, device="cpu").view(1, -1, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float64, device="cpu").view(1, -1, 1, 1)
        scale, shift = 1 / (self.layout.white * std), -mean / std
        return scale.float().to(device), shift.float().to(device)

    def __call__(self, images: torch.Tensor, constants: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Normalise images of shape (N, channels, H, W); keeps their memory layout."""
        scale, shift = constants
        return images.to(torch.float32).mul_(scale).add_(shift).to(self.dtype)


_LEVELS = 256


@dataclass(frozen=True, eq=False)
class ValueTable:
    """Table of the value of each grey level in each channel."""

    table: np.ndarray[Any, Any]  # shape (3, 256), of a dtype torch supports

    def constants(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Values, shape (768,), and offset of each channel, int32 (1, 3, 1, 1)."""
        values = torch.from_numpy(self.table.reshape(-1).copy())
        firsts = torch.arange(0, 3 * _LEVELS, _LEVELS, dtype=torch.int32, device=device)
        return values.to(device), firsts.view(1, 3, 1, 1)

    def __call__(self, images: torch.Tensor, constants: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Values of images (N, 3, H, W), uint8: (N, 3, H, W), contiguous.

        Temporarily uses four more bytes per value, for the table indices.
        """
        values, firsts = constants
        places = images.to(torch.int32, memory_format=torch.contiguous_format).add_(firsts)
        return values.index_select(0, places.view(-1)).view(places.shape)


PixelConversion: TypeAlias = Normalise | ValueTable
"""Converts images, uint8 (N, 3, H, W), channels_last in memory, to values in new memory."""
