"""torchvision's fastest path to a row: its JPEG decoder and v2 transforms on uint8."""

from __future__ import annotations

from typing import Any

import torch
from torchvision.io import decode_image
from torchvision.transforms import v2

from progressive_peers.work import RATIO, SCALE

__all__ = ["crop", "read"]


def read(path: str) -> torch.Tensor:
    """Pixels of an image, uint8 (3, height, width)."""
    return decode_image(path, mode="RGB")


def crop(size: int) -> Any:
    """Random crop to a square, mirrored with probability 0.5."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, SCALE, RATIO, antialias=True),
            v2.RandomHorizontalFlip(),
        ]
    )
