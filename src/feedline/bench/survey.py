"""A first look at the images: which can be decoded, and how large they are.

It also brings the files into memory, so that what follows measures the loader and not the disk.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

from feedline.bench.pool import Keep, Pool, Tell
from feedline.errors import DatasetError, ImageError
from feedline.images.decode import Decoder
from feedline.images.folder import ImageFolder
from feedline.stores.read_file import read_file

__all__ = ["Survey", "survey"]

_LEAST_IMAGES = 32  # by each process, however slow they are


class Look(NamedTuple):
    """What was found at a sample number; `problem` is "" for an image that can be decoded."""

    sample: int
    file_bytes: int
    height_px: int
    width_px: int
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What a look at some images found.

    Args:
        looks: the images that can be decoded, by sample number, at least one.
        skipped: (path, reason) of those that cannot.
    """

    looks: list[Look]
    skipped: list[tuple[str, str]]

    @property
    def numbers(self) -> list[int]:
        """The sample numbers of the images that can be decoded."""
        return [look.sample for look in self.looks]

    @property
    def file_bytes(self) -> float:
        """The mean size of their files."""
        return mean(look.file_bytes for look in self.looks)

    @property
    def median_px(self) -> tuple[int, int]:
        """The median height and the median width."""
        return (
            round(median(look.height_px for look in self.looks)),
            round(median(look.width_px for look in self.looks)),
        )

    def smaller_than(self, side_px: int) -> int:
        """How many have a side shorter than this."""
        return sum(min(look.height_px, look.width_px) < side_px for look in self.looks)


def survey(
    pool: Pool, folder: ImageFolder, *, seconds: float, advance: Callable[[int], None]
) -> Survey:
    """Read and decode a folder's images once, until all were looked at or the time is over.

    Args:
        pool: does it, all processes at once.
        folder: the images; the first ones are looked at first.
        seconds: after this no further image is begun, except the first few.
        advance: called with how many were looked at.

    Raises:
        DatasetError: not one of them can be decoded.
    """
    share, done = len(pool), itertools.count(1)
    jobs = [(folder, range(k, len(folder), share), seconds) for k in range(share)]
    made = pool.each(_look, jobs, lambda _: advance(next(done)))
    looked = sorted(itertools.chain.from_iterable(made))
    skipped = [(folder.name(look.sample), look.problem) for look in looked if look.problem]
    if len(skipped) == len(looked):
        name, problem = skipped[0]
        raise DatasetError(
            f"{folder.root}: not one of {len(looked)} images that were tried can be decoded; the "
            f"first: {name}: {problem}. Look whether the images were downloaded and unpacked whole"
        )
    return Survey(looks=[look for look in looked if not look.problem], skipped=skipped)


def _look(
    keep: Keep, tell: Tell, folder: ImageFolder, numbers: Sequence[int], seconds: float
) -> list[Look]:
    decoder = Decoder()
    looks: list[Look] = []
    end = time.monotonic() + seconds
    for sample in numbers:
        if len(looks) >= _LEAST_IMAGES and time.monotonic() > end:
            break
        size = height = width = 0
        problem = ""
        try:
            data = read_file(folder.files.path(sample))
            size = len(data)
            height, width = decoder.open(data)
            decoder.read()
        except ImageError as error:
            problem = str(error)
        looks.append(Look(sample, size, height, width, problem))
        tell(sample)
    return looks
