"""The fastest of torchvision's own ways to a row: its JPEG decoder and v2 transforms on uint8."""

from __future__ import annotations

from typing import Any

import torch
from torchvision.io import decode_image
from torchvision.transforms import v2

from progressive_peers.work import RATIO, SCALE

__all__ = ["crop", "read"]


def read(path: str) -> torch.Tensor:
    """An image's pixels, uint8 (3, height, width)."""
    return decode_image(path, mode="RGB")


def crop(size: int) -> Any:
    """The random crop to a square, mirrored half of the time."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, SCALE, RATIO, antialias=True),
            v2.RandomHorizontalFlip(),
        ]
    )
