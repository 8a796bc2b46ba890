"""Survey of the images: sizes, files that cannot be decoded, and an endless source of them.

The survey also brings the files into memory, so that the loader is measured and not the disk.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from feedline.bench.pool import ProcessPool, ProcessState, Send
from feedline.errors import DatasetError, ImageError
from feedline.images.codec_registry import Decoder
from feedline.images.folder import ImageFolder
from feedline.order.batch_spec import Field, Item
from feedline.sources.files import read_file

__all__ = ["ImageSample", "Survey", "SurveyedImage", "survey_images"]


_MIN_IMAGES = 32  # by each process, however slow they are


class SurveyedImage(NamedTuple):
    """Size of an image; `problem` is "" if it can be decoded."""

    sample: int
    file_bytes: int
    height_px: int
    width_px: int
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Sizes of some images.

    Args:
        images: the images that can be decoded, by sample number, at least one.
        skipped: (path, reason) of the others.
    """

    images: list[SurveyedImage]
    skipped: list[tuple[str, str]]

    @property
    def numbers(self) -> list[int]:
        """Sample numbers of the images that can be decoded."""
        return [image.sample for image in self.images]

    @property
    def file_bytes(self) -> float:
        """Mean file size."""
        return mean(image.file_bytes for image in self.images)

    @property
    def median_px(self) -> tuple[int, int]:
        """Median height and median width."""
        return (
            round(median(image.height_px for image in self.images)),
            round(median(image.width_px for image in self.images)),
        )

    def count_smaller(self, side_px: int) -> int:
        """Number of images with a side shorter than this."""
        return sum(min(image.height_px, image.width_px) < side_px for image in self.images)


def survey_images(
    pool: ProcessPool, folder: ImageFolder, *, seconds: float, advance: Callable[[int], None]
) -> Survey:
    """Read and decode a folder's images once, until the end of the folder or of the time.

    Args:
        pool: its processes share the work.
        folder: the images, surveyed in their order.
        seconds: time limit; the first few images are surveyed in any case.
        advance: called with the number of surveyed images.

    Raises:
        DatasetError: none of them can be decoded.
    """
    share, done = len(pool), itertools.count(1)
    jobs = [(folder, range(k, len(folder), share), seconds) for k in range(share)]
    parts = pool.each(_survey_part, jobs, lambda _: advance(next(done)))
    images = sorted(itertools.chain.from_iterable(parts))
    skipped = [(folder.name(image.sample), image.problem) for image in images if image.problem]
    if len(skipped) == len(images):
        name, problem = skipped[0]
        raise DatasetError(
            f"{folder.root}: none of {len(images)} images tried can be decoded. First error: "
            f"{name}: {problem}",
            hint="check that the images were downloaded and unpacked completely",
        )
    return Survey(images=[image for image in images if not image.problem], skipped=skipped)


def _survey_part(
    state: ProcessState, send: Send, folder: ImageFolder, numbers: Sequence[int], seconds: float
) -> list[SurveyedImage]:
    decoder = Decoder()
    images: list[SurveyedImage] = []
    end = time.monotonic() + seconds
    for sample in numbers:
        if len(images) >= _MIN_IMAGES and time.monotonic() > end:
            break
        size = height = width = 0
        problem = ""
        try:
            data = read_file(folder.files.path(sample))
            size = len(data)
            height, width = decoder.open(data)
            decoder.read()
        except ImageError as error:
            problem = error.message
        images.append(SurveyedImage(sample, size, height, width, problem))
        send(sample)
    return images


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
