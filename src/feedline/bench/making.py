"""What it takes to make copies of a few hundred images of a source, and those images in a folder.

Guarantees: worker processes make them at the same time and by the same code as a build does; a
broken image is left out, with its reason; large images stop it early, by their bytes or the time.
No image of the source is read twice for it, as reading one may be slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.build_plan import BYTES_BESIDE
from feedline.cache.choice import LevelCost
from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.source import Source
from feedline.errors import DatasetError, ImageError
from feedline.images.decode import DEFAULT_MAX_PIXELS
from feedline.loader import DataLoader
from feedline.stores.cache_layout import Level

__all__ = ["MOST_BYTES", "Making", "make_copies"]

MOST_BYTES = 512 << 20
"""Of originals that are kept while they are measured; these are a hundred of 12 megapixels."""

_MOST_SECONDS = 60.0
_LEAST_IMAGES = 32
_TOGETHER = 8  # images, which are fetched together where they are far away


class Look(NamedTuple):
    """What was found at a sample number; `problem` is "" for an image that copies were made of.

    The rest: its size in pixels, its file's bytes, 0 where there is none; seconds to read it, to
    decode it, and to resize and encode each copy; the bytes of the copies.
    """

    sample: int
    problem: str
    height: int = 0
    width: int = 0
    file_bytes: int = 0
    read_s: float = 0.0
    open_s: float = 0.0
    make_s: Sequence[float] = ()
    image_bytes: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Making:
    """What making copies of some images took.

    Args:
        levels: which copies.
        looks: at the images that copies were made of, at least one, as they lie in the folder.
        skipped: the names of those that are broken, and why.
        processes: how many worked at the same time.
    """

    levels: tuple[Level, ...]
    looks: tuple[Look, ...]
    skipped: tuple[tuple[str, str], ...]
    processes: int

    @property
    def read_s(self) -> float:
        """To read an original: the median, as some wait for a disk and those after them do not."""
        return median(look.read_s for look in self.looks)

    @property
    def open_s(self) -> float:
        """To read and decode an original."""
        return self.read_s + mean(look.open_s for look in self.looks)

    @property
    def original_bytes(self) -> float:
        """The mean size of an original's file; 0 where there are none."""
        return mean(look.file_bytes for look in self.looks)

    @property
    def median_px(self) -> tuple[int, int]:
        """The median height and the median width."""
        heights, widths = zip(*((look.height, look.width) for look in self.looks), strict=True)
        return round(median(heights)), round(median(widths))

    def larger_than(self, side: int) -> float:
        """The share of the images whose shorter side is longer than this."""
        return mean(min(look.height, look.width) > side for look in self.looks)

    def costs(self) -> dict[Level, LevelCost]:
        """What a copy of each level costs."""
        return {
            level: LevelCost(
                image_bytes=mean(look.image_bytes[place] for look in self.looks) + BYTES_BESIDE,
                make_s=mean(look.make_s[place] for look in self.looks),
            )
            for place, level in enumerate(self.levels)
        }


class _Images:
    """Images as a dataset: to read some is to make their copies, and to keep the originals."""

    def __init__(
        self, source: Source, numbers: Sequence[int], levels: Sequence[Level], folder: Path
    ) -> None:
        self._source, self._numbers, self._levels = source, numbers, levels
        self._folder = folder
        self._encoder: LevelEncoder | None = None
        self._warm = False

    def __len__(self) -> int:
        return -(-len(self._numbers) // _TOGETHER)

    def __getitem__(self, at: int) -> list[tuple[int, Look]]:
        """Make the copies of some images: their places among the numbers, and what each took."""
        places = range(len(self._numbers))[at * _TOGETHER : (at + 1) * _TOGETHER]
        self._source.ahead([self._numbers[place] for place in places])
        return [(place, self._look(place)) for place in places]

    def _look(self, place: int) -> Look:
        sample = self._numbers[place]
        try:
            started = time.perf_counter()
            image = self._source.read(sample)
            read_s = time.perf_counter() - started
            if not self._warm:
                self._make(image)  # the first image of a process takes longer
                self._warm = True
            open_s, make_s, image_bytes, size = self._make(image)
        except ImageError as error:
            return Look(sample, str(error))
        path, file_bytes = self._folder / f"{place:06}", 0
        if isinstance(image, np.ndarray):
            header = f"P6 {size[1]} {size[0]} 255\n".encode()
            path.with_suffix(".ppm").write_bytes(header + image.tobytes())
        else:
            path.with_suffix(".jpg").write_bytes(image)  # its bytes tell of which kind it is
            file_bytes = len(image)
        return Look(sample, "", *size, file_bytes, read_s, open_s, make_s, image_bytes)

    def _make(self, image: Any) -> tuple[float, list[float], list[int], tuple[int, int]]:
        if self._encoder is None:
            self._encoder = LevelEncoder((), exif=False, max_pixels=DEFAULT_MAX_PIXELS)
        started = time.perf_counter()
        opened = self._encoder.open(image)
        times = [time.perf_counter()]
        image_bytes = []
        for level in self._levels:
            image_bytes.append(len(self._encoder.copy(opened, level)))
            times.append(time.perf_counter())
        make_s = [after - before for before, after in pairwise(times)]
        height, width = opened.pixels.shape[:2]
        return times[0] - started, make_s, image_bytes, (height, width)


def make_copies(
    source: Source,
    numbers: Sequence[int],
    levels: Sequence[Level],
    folder: Path,
    *,
    workers: int,
    advance: Callable[[int], None],
) -> Making:
    """Make copies of some images, which are not kept, and put the originals into a folder.

    Args:
        source: the images.
        numbers: which of them.
        levels: which copies.
        folder: an empty one, for the originals; these are in the order of their numbers.
        workers: processes; 0 for this one.
        advance: called with how many images were looked at.

    Raises:
        DatasetError: not one of them can be read.
    """
    found: dict[int, Look] = {}
    kept_bytes, until = 0, time.monotonic() + _MOST_SECONDS
    images: DataLoader[list[tuple[int, Look]]] = DataLoader(
        _Images(source, numbers, levels, folder),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=min(workers, len(numbers)),
        in_order=False,
        collate_fn=_as_it_is,
    )
    with images:
        for looks in images:
            found.update(looks)
            advance(len(found))
            kept_bytes += sum(look.file_bytes or look.height * look.width * 3 for _, look in looks)
            late = kept_bytes > MOST_BYTES or time.monotonic() > until
            if late and len(found) >= _LEAST_IMAGES:
                break
    good = {place: look for place, look in sorted(found.items()) if not look.problem}
    skipped = [(source.name(look.sample), look.problem) for look in found.values() if look.problem]
    if not good:
        raise DatasetError(
            f"of {len(found)} images of {source.where!r} not one can be read; the first, "
            f"{': '.join(skipped[0])}"
        )
    for path in folder.iterdir():  # workers were ahead when it was stopped
        if int(path.stem) not in good:
            path.unlink()
    return Making(
        levels=tuple(levels),
        looks=tuple(good.values()),
        skipped=tuple(sorted(skipped)),
        processes=max(1, min(workers, len(numbers))),
    )


def _as_it_is(made: Any) -> Any:
    return made
