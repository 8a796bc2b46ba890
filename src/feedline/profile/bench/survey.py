"""Survey of the images: sizes, and files that cannot be decoded.

The survey also brings the files into memory, so that the loader is measured and not the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

from feedline.errors import DatasetError, ImageError
from feedline.images.codec_registry import Decoder
from feedline.images.folder import ImageFolder
from feedline.sources.files import read_file

__all__ = ["Survey", "SurveyedImage", "survey_images"]


_MIN_IMAGES = 32  # however slow they are


class SurveyedImage(NamedTuple):
    """Size of an image that can be decoded."""

    sample: int
    file_bytes: int
    height_px: int
    width_px: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Sizes of some images.

    Args:
        images: the images that can be decoded, by sample number; at least one.
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


def survey_images(folder: ImageFolder, *, seconds: float, advance: Callable[[int], None]) -> Survey:
    """Read and decode a folder's images once, until the end of the folder or of the time.

    Args:
        folder: the images, surveyed in their order.
        seconds: time limit; the first few images are surveyed in any case.
        advance: called with the number of surveyed images.

    Raises:
        DatasetError: none of them can be decoded.
    """
    decoder = Decoder()
    images: list[SurveyedImage] = []
    skipped: list[tuple[str, str]] = []
    end = time.monotonic() + seconds
    for sample in range(len(folder)):
        if sample >= _MIN_IMAGES and time.monotonic() > end:
            break
        try:
            data = read_file(folder.files.path(sample))
            height, width = decoder.open(data)
            decoder.read()
        except ImageError as error:
            skipped.append((folder.name(sample), error.message))
        else:
            images.append(SurveyedImage(sample, len(data), height, width))
        advance(sample + 1)
    if not images:
        name, problem = skipped[0]
        raise DatasetError(
            f"{folder.root}: none of {len(skipped)} images tried can be decoded. First error: "
            f"{name}: {problem}",
            hint="check that the images were downloaded and unpacked completely",
        )
    return Survey(images=images, skipped=skipped)
