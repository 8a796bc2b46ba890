"""feedline's loader over a sample of images, as measured (torch's: `torch_loaders.py`).

Guarantees: every worker started for a loader ends when its context does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.order.batch_spec import Field, Item
from feedline.profile.bench.options import BenchmarkOptions
from feedline.profile.bench.rate import Turn, count, endless, family_cpu

__all__ = ["PREFETCH", "FeedlineLoader", "ImageSample", "MeasuredLoader"]

PREFETCH = 3
"""Batches that feedline's loader makes ahead: the default."""

_ROWS = 1 << 20  # long enough that the end of the epoch is never measured


class ImageSample:
    """Images of a folder, repeated in a given order. A `Source`; can be pickled.

    Args:
        folder: the images.
        numbers: sample numbers in the folder, at least one.
    """

    def __init__(self, folder: ImageFolder, numbers: Sequence[int]) -> None:
        self.folder = folder
        self.numbers = list(numbers)

    def __len__(self) -> int:
        return max(_ROWS, len(self.numbers))

    def _number(self, sample: int) -> int:
        return self.numbers[sample % len(self.numbers)]

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels."""
        return self.folder.fields(image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row as the folder does."""
        self.folder.load(item._replace(sample=self._number(item.sample)), row)

    def name(self, sample: int) -> str:
        """Path of a sample's file, for messages."""
        return self.folder.name(self._number(sample))

    def fingerprint(self) -> str:
        """Short hash of the folder and the sample numbers."""
        digest = hashlib.blake2b(self.folder.fingerprint().encode(), digest_size=8)
        digest.update(np.asarray(self.numbers, "<i8").tobytes())
        return digest.hexdigest()


class MeasuredLoader(Protocol):
    """Loader whose images are counted; a context manager that ends its workers.

    `first_batch_s` is the time from building the loader to its first batch. It is shorter if
    another loader of feedline is alive, as loaders share their fork server.
    """

    name: str
    first_batch_s: float

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""


class FeedlineLoader:
    """feedline.DataLoader that lives from turn to turn.

    Args:
        sample: the images, in their order.
        settings: size of the images and of the batches.
        workers: processes; 0 loads in this one.
    """

    name = "feedline"

    def __init__(self, sample: ImageSample, settings: BenchmarkOptions, workers: int) -> None:
        start = time.perf_counter()
        self._loader: DataLoader[Any] = DataLoader(
            sample,
            settings.batch_size,
            image_size=settings.size_px,
            shuffle=False,  # the sample is in random order already
            num_workers=workers,
            prefetch=PREFETCH,
            on_error="skip",
            rank=0,  # all images, even if the environment sets a rank
            world_size=1,
            seed=0,
        )
        try:
            self._batches = endless(self._loader)
            next(self._batches)
            self.first_batch_s = time.perf_counter() - start
        except BaseException:
            self._loader.close()
            raise

    def turn(self, seconds: float) -> Turn:
        """Count images for about `seconds`."""
        ahead = PREFETCH + 1 if self._loader.num_workers else 0
        return count(self._batches, ahead=ahead, unit=1, seconds=seconds, cpu_s=family_cpu())

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(path, reason) of images that could not be loaded."""
        return self._loader.skipped

    def __enter__(self) -> FeedlineLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loader.close()
