"""torch's DataLoader with torchvision, in two forms.

"pillow" is what most people run: torchvision.datasets.ImageFolder, Pillow, RandomResizedCrop,
RandomHorizontalFlip, ToTensor, Normalize; float32. "uint8" is the best that torchvision can be
tuned to here: its own decoder and transforms v2 on uint8 tensors, normalised later on the device.
Both keep their workers over epochs; torch holds each worker to one thread.

Relies on: torchvision, which feedline itself does not need. `theirs` imports this file, in a
process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import io
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import (
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToTensor,
    v2,
)
from torchvision.transforms.functional import pil_to_tensor

from feedline.bench.sample import Sample
from feedline.bench.settings import Settings
from feedline.device.normalise import IMAGENET_MEAN, IMAGENET_STD
from feedline.engine.process import end_with_parent
from feedline.images.crops import TrainCrop

__all__ = ["PREFETCH_FACTOR", "build", "chosen"]

PREFETCH_FACTOR = 2
"""Batches that each worker makes ahead; torch's own default."""


class _Chosen(ImageFolder):  # type: ignore[misc]
    """torchvision's ImageFolder of the images of a sample, over and over; it searches nothing."""

    def __init__(
        self, sample: Sample, loader: Callable[[str], Any], transform: Callable[[Any], Any]
    ) -> None:
        self._sample = sample
        super().__init__(sample.folder.root, transform=transform, loader=loader)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """The sample's classes; the base class asks for them when it is built."""
        return self._sample.folder.classes, self._sample.folder.class_to_idx

    def make_dataset(self, *_: object, **__: object) -> list[tuple[str, int]]:
        """The sample's paths and labels; the base class asks for them when it is built."""
        folder = self._sample.folder
        labels = folder.targets.tolist()
        return [(folder.path(number), labels[number]) for number in self._sample.numbers]

    def __len__(self) -> int:
        return len(self._sample)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % len(self.samples))


def _decode(path: str) -> torch.Tensor:
    """uint8 (3, H, W): torchvision's decoder, or Pillow for the formats it does not read."""
    try:
        pixels: torch.Tensor = io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
    except RuntimeError:
        pixels = pil_to_tensor(default_loader(path))
    return pixels


def chosen(form: str, sample: Sample, size: int) -> ImageFolder:
    """torchvision's ImageFolder of a sample's images, with a form's transforms.

    Its items are (image, label): float32 or uint8 (3, size, size), and int.
    """
    crop = TrainCrop()
    area = {"scale": crop.scale, "ratio": crop.ratio}
    if form == "pillow":
        loader: Callable[[str], Any] = default_loader
        normalise = [ToTensor(), Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        steps = [RandomResizedCrop(size, **area), RandomHorizontalFlip(crop.flip), *normalise]
        transform: Any = Compose(steps)
    else:
        loader = _decode
        transform = v2.Compose(
            [v2.RandomResizedCrop(size, **area, antialias=True), v2.RandomHorizontalFlip(crop.flip)]
        )
    return _Chosen(sample, loader, transform)


def build(
    form: str, sample: Sample, settings: Settings, workers: int, start_method: str
) -> DataLoader[Any]:
    """The loader of a form ("pillow" or "uint8"), over a sample in its order.

    Its workers start as multiprocessing's `start_method` says; 0 workers load in this process.
    """
    return DataLoader(
        chosen(form, sample, settings.size_px),
        settings.batch_size,
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        persistent_workers=workers > 0,
        multiprocessing_context=start_method if workers else None,
        worker_init_fn=partial(_tie, os.getpid()),
    )


def _tie(parent: int, _worker: int) -> None:
    if os.getppid() == parent:  # with "forkserver" another process is the parent
        end_with_parent(parent)
