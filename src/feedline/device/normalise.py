"""Normalisation of uint8 pixels to floats, with the same arithmetic on every device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from feedline.errors import UsageError

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Normalise"]

# The customary channel statistics of ImageNet's training images, RGB, for pixels in 0 .. 1
# (torchvision.transforms documentation).
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Normalise:
    """(x / 255 - mean) / std per channel, in float32, then cast.

    Args:
        mean: mean of each channel, for pixels in 0 .. 1, RGB.
        std: standard deviation of each channel, for pixels in 0 .. 1, RGB.
        dtype: floating-point type of the result.

    Raises:
        UsageError: not three values, a std that is not positive, or a dtype that is not
            floating-point.
    """

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        try:
            fits = len(self.mean) == len(self.std) == 3 and all(std > 0 for std in self.std)
        except TypeError:
            fits = False
        if not fits:
            raise UsageError(
                "mean and std must have three numbers each (RGB, for pixels in 0 .. 1), with std "
                f"above 0; got mean={self.mean!r}, std={self.std!r}"
            )
        if not self.dtype.is_floating_point:
            raise UsageError(f"dtype must be a floating-point type, got {self.dtype}")

    def constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and shift, shape (1, 3, 1, 1), float32: result = pixel * scale + shift."""
        mean = torch.tensor(self.mean, dtype=torch.float64, device="cpu").view(1, 3, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float64, device="cpu").view(1, 3, 1, 1)
        scale, shift = 1 / (255 * std), -mean / std
        return scale.float().to(device), shift.float().to(device)

    def __call__(self, images: torch.Tensor, constants: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Normalise images of shape (N, 3, H, W), uint8; keeps their memory layout."""
        scale, shift = constants
        return images.to(torch.float32).mul_(scale).add_(shift).to(self.dtype)
