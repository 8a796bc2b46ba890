"""torch's DataLoader with torchvision, in two forms.

"pillow" is the usual pipeline: torchvision.datasets.ImageFolder, Pillow, RandomResizedCrop,
RandomHorizontalFlip, ToTensor, Normalize; float32. "uint8" is torchvision's fastest pipeline:
its own decoder and transforms v2 on uint8 tensors, normalised later on the device.
Both keep their workers between epochs; torch limits each worker to one thread.

Relies on: torchvision, which feedline itself does not need.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
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

from feedline.engine.normalise import IMAGENET_MEAN, IMAGENET_STD
from feedline.images.crops import TrainCrop
from feedline.profile.bench.loaders import ImageSample
from feedline.profile.bench.options import BenchmarkOptions
from feedline.profile.bench.rate import Turn, count, endless, family_cpu

__all__ = ["FORMS", "TorchLoader", "torchvision_folder"]

FORMS = {"pillow": "torch + Pillow, float32", "uint8": "torch + torchvision v2, uint8"}
"""Printed names of the forms."""

_PREFETCH_FACTOR = 2  # batches that each worker makes ahead; torch's own default


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


class TorchLoader:
    """torch's DataLoader over a sample, in its order; loads its first batch when it is created.

    Args:
        form: "pillow" or "uint8".
        sample: the images, in their order.
        settings: size of the images and of the batches.
        workers: processes; 0 loads in this one.

    Raises:
        Exception: any error of torch or torchvision.
    """

    def __init__(
        self, form: str, sample: ImageSample, settings: BenchmarkOptions, workers: int
    ) -> None:
        self.name = FORMS[form]
        self._workers = workers
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about many workers, and about forking
            loader = DataLoader(
                torchvision_folder(form, sample, settings.size_px),
                settings.batch_size,
                num_workers=workers,
                prefetch_factor=_PREFETCH_FACTOR if workers else None,
                persistent_workers=workers > 0,
            )
            self._batches = endless(loader)
            next(self._batches)
        self.first_batch_s = time.perf_counter() - start

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""
        unit = max(1, self._workers)  # each worker makes its own batch
        ahead = _PREFETCH_FACTOR * self._workers
        return count(self._batches, ahead=ahead, unit=unit, seconds=seconds, cpu_s=family_cpu())

    def __enter__(self) -> TorchLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        # torch ends the workers with the last reference to the loader, which the generator has.
        self._batches.close()
