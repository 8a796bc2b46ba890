"""Datasets of the laboratory: normal ones, and some with a flaw that can be switched off."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from situation import burn


def folder(path: Path, transform: Callable[[Any], Any]) -> ImageFolder:
    """torchvision's ImageFolder."""
    return ImageFolder(str(path), transform)


def usual(size: int, *more: Callable[[Any], Any]) -> transforms.Compose:
    """Transform of most trainings, with the steps `more` before the conversion to a tensor.

    Produces uint8: the cost of floats is another situation.
    """
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            *more,
            transforms.PILToTensor(),
        ]
    )


class Repeated(Dataset):
    """A dataset repeated to a given length, so that an epoch is long enough."""

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset, self.length = dataset, length
        self.samples = [dataset.samples[k % len(dataset)] for k in range(length)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return self.dataset[number % len(self.dataset)]


class Throttled(io.BytesIO):
    """A file on slow storage: each read waits for latency and bandwidth."""

    def __init__(self, path: str, latency_s: float, bytes_per_s: float) -> None:
        super().__init__(Path(path).read_bytes())
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s
        self._paid = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        end = self.tell()
        if end > self._paid:  # data that was read before is not charged again
            fetched = max(end - self._paid, 1 << 16)
            time.sleep(self._latency_s + fetched / self._bytes_per_s)
            self._paid += fetched
        return data


class FarFolder(ImageFolder):
    """An image folder on throttled storage."""

    def __init__(self, path: Path, transform: Any, *, far: bool) -> None:
        super().__init__(str(path), transform)
        self._far = far

    def __getitem__(self, number: int) -> Any:
        path, label = self.samples[number]
        file: Any = (
            Throttled(path, 0.004, 20e6) if self._far else io.BytesIO(Path(path).read_bytes())
        )
        return self.transform(Image.open(file).convert("RGB")), label


class Computed(Dataset):
    """Samples computed by the dataset's own code: milliseconds on a core, and a size in bytes."""

    def __init__(
        self,
        length: int,
        ms: float,
        shape: tuple[int, ...] = (3, 64, 64),
        *,
        slow_every: int = 0,
        slow_ms: float = 0.0,
    ) -> None:
        self.length, self.ms, self.shape = length, ms, shape
        self.slow_every, self.slow_ms = slow_every, slow_ms

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        slow = self.slow_every and number % self.slow_every == self.slow_every // 2
        burn(self.slow_ms if slow else self.ms)
        return torch.zeros(self.shape, dtype=torch.uint8), number % 10


class Arrays(Dataset):
    """Images in memory with a transform."""

    def __init__(self, length: int, size: int, transform: Callable[[Any], Any]) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 255, (16, size, size, 3), np.uint8)
        self.length, self.transform = length, transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return self.transform(self.pixels[number % 16]), number % 10
