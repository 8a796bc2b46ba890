"""Datasets of tunings."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.data import Dataset

from feedline import ImageArray, TrainCrop

__all__ = ["Far", "images"]


class Far(Dataset[torch.Tensor]):
    """Samples of a server: each is waited for."""

    def __init__(self, seconds: float = 0.003, broken: bool = False) -> None:
        self.seconds, self.broken = seconds, broken

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.broken:
            raise ArithmeticError("this sample cannot be made")
        time.sleep(self.seconds)
        return torch.tensor([number])


def images() -> ImageArray:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 24, 24, 3), np.uint8)
    return ImageArray(pixels, np.arange(64) % 10, transform=TrainCrop())
