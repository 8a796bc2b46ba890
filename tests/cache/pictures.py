"""Images and datasets for cache tests, and a summary of a cache's content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from feedline import ImageFolder
from feedline.sources.remote_cache import open_cache
from torchvision_folder import image, pixel_error

CLASSES = ["ants", "bees", "cats"]
LABELS = [2, 0, 1, 1, 0, 2, 2, 0]


def pictures() -> list[Image.Image]:
    """One image per label, 36 to 43 x 30 px."""
    return [image(number, 36 + number, 30) for number in range(len(LABELS))]


class Samples(Dataset[Any]):
    """A dataset of the given samples; exceptions among them are raised."""

    def __init__(self, samples: list[Any], classes: Any = None) -> None:
        self.samples_there = samples
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.samples_there)

    def __getitem__(self, at: int) -> Any:
        sample = self.samples_there[at]
        if isinstance(sample, Exception):
            raise sample
        return sample


def assert_cached(
    root: Path, originals: list[Image.Image], labels: Any, names: list[str], classes: list[str]
) -> None:
    """A cache of raw copies of 16 px holds these images, as feedline reads it."""
    cache = ImageFolder(root)
    assert cache.targets.tolist() == np.asarray(labels).tolist()
    assert [cache.name(sample) for sample in range(len(cache))] == names
    assert cache.classes == classes
    store = open_cache(root)
    for sample, original in enumerate(originals):
        copy = store.read(sample, 16)
        assert isinstance(copy, np.ndarray)
        assert min(copy.shape[:2]) == 16
        assert store.original_size(sample) == original.size[::-1]
        size = copy.shape[1], copy.shape[0]
        expected = original.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        assert pixel_error(copy, expected) < 0.1
