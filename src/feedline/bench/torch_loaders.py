"""torch's DataLoader with torchvision, in two forms.

"pillow" is the usual pipeline: torchvision.datasets.ImageFolder, Pillow, RandomResizedCrop,
RandomHorizontalFlip, ToTensor, Normalize; float32. "uint8" is torchvision's fastest pipeline:
its own decoder and transforms v2 on uint8 tensors, normalised later on the device.
Both keep their workers between epochs; torch limits each worker to one thread.

Relies on: torchvision, which feedline itself does not need. `loaders` imports this module in
a separate process.
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

from feedline.bench.options import BenchmarkOptions
from feedline.bench.survey import ImageSample
from feedline.engine.normalise import IMAGENET_MEAN, IMAGENET_STD
from feedline.engine.process import end_with_parent
from feedline.images.crops import TrainCrop

__all__ = ["PREFETCH_FACTOR", "build_loader", "torchvision_folder"]

PREFETCH_FACTOR = 2
"""Batches that each worker makes ahead; torch's own default."""


class _RepeatedFolder(ImageFolder):  # type: ignore[misc]
    """torchvision's ImageFolder over the images of a sample, repeated; lists no files."""

    def __init__(
        self, sample: ImageSample, loader: Callable[[str], Any], transform: Callable[[Any], Any]
    ) -> None:
        self._sample = sample
        super().__init__(sample.folder.root, transform=transform, loader=loader)

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        """Return the sample's classes; called by the base class's constructor."""
        return self._sample.folder.classes, self._sample.folder.class_to_idx

    def make_dataset(self, *_: object, **__: object) -> list[tuple[str, int]]:
        """Return the sample's paths and labels; called by the base class's constructor."""
        folder = self._sample.folder
        labels = folder.targets.tolist()
        return [(folder.path(number), labels[number]) for number in self._sample.numbers]

    def __len__(self) -> int:
        return len(self._sample)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % len(self.samples))


def _decode(path: str) -> torch.Tensor:
    """Decode to uint8 (3, H, W) by torchvision, or by Pillow for formats torchvision lacks."""
    try:
        pixels: torch.Tensor = io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
    except RuntimeError:
        pixels = pil_to_tensor(default_loader(path))
    return pixels


def torchvision_folder(form: str, sample: ImageSample, size: int) -> ImageFolder:
    """Return torchvision's ImageFolder of a sample's images, with the transforms of a form.

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
    return _RepeatedFolder(sample, loader, transform)


def build_loader(
    form: str, sample: ImageSample, settings: BenchmarkOptions, workers: int, start_method: str
) -> DataLoader[Any]:
    """Return the loader of a form ("pillow" or "uint8") over a sample in its order.

    `start_method` is multiprocessing's, for the workers; 0 workers load in this process.
    """
    return DataLoader(
        torchvision_folder(form, sample, settings.size_px),
        settings.batch_size,
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        persistent_workers=workers > 0,
        multiprocessing_context=start_method if workers else None,
        worker_init_fn=partial(_end_with_parent, os.getpid()),
    )


def _end_with_parent(parent: int, _worker: int) -> None:
    if os.getppid() == parent:  # with "forkserver" another process is the parent
        end_with_parent(parent)
