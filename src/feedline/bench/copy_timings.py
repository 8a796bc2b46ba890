"""Time and bytes of making resized copies of some images, and those images in a folder.

Guarantees: worker processes make them in parallel by the code of a build; a broken image is left
out with the reason; large images end it early, by their bytes or the time. No image of the source
is read twice, as reading may be slow.
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
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, ImageError
from feedline.images.codecs import DEFAULT_MAX_PIXELS
from feedline.loader import DataLoader
from feedline.sources.cache_layout import Level

__all__ = ["MAX_ORIGINAL_BYTES", "CopyTimings", "make_copies"]

MAX_ORIGINAL_BYTES = 512 << 20
"""Limit of the originals kept while they are measured: about 100 images of 12 megapixels."""

_MAX_SECONDS = 60.0
_MIN_IMAGES = 32
_FETCHED_TOGETHER = 8  # images, fetched in parallel from remote sources


class CopyTiming(NamedTuple):
    """Times and bytes of one image; `problem` is "" unless the image is broken.

    `height` and `width` in pixels; `file_bytes` is 0 if it has no file; seconds to read it, to
    decode it, and to resize and encode each copy; bytes of each copy.
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
class CopyTimings:
    """Times and bytes of making copies of some images.

    Args:
        levels: levels of the copies.
        images: the copied images, at least one, in the order of the folder.
        skipped: (name, reason) of broken images.
        processes: number of processes that worked in parallel.
    """

    levels: tuple[Level, ...]
    images: tuple[CopyTiming, ...]
    skipped: tuple[tuple[str, str], ...]
    processes: int

    @property
    def read_s(self) -> float:
        """Seconds to read an original: the median, as only some reads wait for the disk."""
        return median(image.read_s for image in self.images)

    @property
    def open_s(self) -> float:
        """Seconds to read and decode an original, mean."""
        return self.read_s + mean(image.open_s for image in self.images)

    @property
    def original_bytes(self) -> float:
        """Mean file size of the originals; 0 if they have no files."""
        return mean(image.file_bytes for image in self.images)

    @property
    def median_px(self) -> tuple[int, int]:
        """Median height and median width."""
        heights, widths = zip(*((image.height, image.width) for image in self.images), strict=True)
        return round(median(heights)), round(median(widths))

    def share_larger(self, side: int) -> float:
        """Share of the images whose shorter side is longer than `side`."""
        return mean(min(image.height, image.width) > side for image in self.images)

    def costs(self) -> dict[Level, LevelCost]:
        """Bytes and seconds of one copy, for each level."""
        return {
            level: LevelCost(
                image_bytes=mean(image.image_bytes[k] for image in self.images) + BYTES_BESIDE,
                make_s=mean(image.make_s[k] for image in self.images),
            )
            for k, level in enumerate(self.levels)
        }


class _CopyDataset:
    """Dataset whose items are the timings of making copies; also saves the originals."""

    def __init__(
        self, source: CacheSource, numbers: Sequence[int], levels: Sequence[Level], folder: Path
    ) -> None:
        self._source, self._numbers, self._levels = source, numbers, levels
        self._folder = folder
        self._encoder: LevelEncoder | None = None
        self._warmed_up = False

    def __len__(self) -> int:
        return -(-len(self._numbers) // _FETCHED_TOGETHER)

    def __getitem__(self, index: int) -> list[tuple[int, CopyTiming]]:
        """Make the copies of some images. Returns their places in the numbers, and timings."""
        places = range(len(self._numbers))[
            index * _FETCHED_TOGETHER : (index + 1) * _FETCHED_TOGETHER
        ]
        self._source.prefetch([self._numbers[place] for place in places])
        return [(place, self._time_copies(place)) for place in places]

    def _time_copies(self, place: int) -> CopyTiming:
        sample = self._numbers[place]
        try:
            started = time.perf_counter()
            image = self._source.read(sample)
            read_s = time.perf_counter() - started
            if not self._warmed_up:
                self._make(image)  # the first image of a process takes longer
                self._warmed_up = True
            open_s, make_s, image_bytes, size = self._make(image)
        except ImageError as error:
            return CopyTiming(sample, error.message)
        path, file_bytes = self._folder / f"{place:06}", 0
        if isinstance(image, np.ndarray):
            header = f"P6 {size[1]} {size[0]} 255\n".encode()
            path.with_suffix(".ppm").write_bytes(header + image.tobytes())
        else:
            path.with_suffix(".jpg").write_bytes(image)  # readers detect the type by the bytes
            file_bytes = len(image)
        return CopyTiming(sample, "", *size, file_bytes, read_s, open_s, make_s, image_bytes)

    def _make(self, image: Any) -> tuple[float, list[float], list[int], tuple[int, int]]:
        if self._encoder is None:
            self._encoder = LevelEncoder((), exif=False, max_pixels=DEFAULT_MAX_PIXELS)
        started = time.perf_counter()
        opened = self._encoder.open(image)
        times = [time.perf_counter()]
        image_bytes = []
        for level in self._levels:
            image_bytes.append(len(self._encoder.make_copy(opened, level)))
            times.append(time.perf_counter())
        make_s = [after - before for before, after in pairwise(times)]
        height, width = opened.pixels.shape[:2]
        return times[0] - started, make_s, image_bytes, (height, width)


def make_copies(
    source: CacheSource,
    numbers: Sequence[int],
    levels: Sequence[Level],
    folder: Path,
    *,
    workers: int,
    advance: Callable[[int], None],
) -> CopyTimings:
    """Make and discard copies of some images, and save the originals to a folder.

    Args:
        source: the images.
        numbers: the images to copy.
        levels: levels of the copies.
        folder: an empty folder for the originals; named in the order of `numbers`.
        workers: processes; 0 works in this one.
        advance: called with the number of finished images.

    Raises:
        DatasetError: none of them can be read.
    """
    found: dict[int, CopyTiming] = {}
    saved_bytes, until = 0, time.monotonic() + _MAX_SECONDS
    loader: DataLoader[list[tuple[int, CopyTiming]]] = DataLoader(
        _CopyDataset(source, numbers, levels, folder),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=min(workers, len(numbers)),
        in_order=False,
        collate_fn=_identity,
    )
    with loader:
        for timings in loader:
            found.update(timings)
            advance(len(found))
            saved_bytes += sum(t.file_bytes or t.height * t.width * 3 for _, t in timings)
            late = saved_bytes > MAX_ORIGINAL_BYTES or time.monotonic() > until
            if late and len(found) >= _MIN_IMAGES:
                break
    good = {place: timing for place, timing in sorted(found.items()) if not timing.problem}
    skipped = [(source.name(t.sample), t.problem) for t in found.values() if t.problem]
    if not good:
        raise DatasetError(
            f"{source.where!r}: none of {len(found)} images tried can be read. First error: "
            f"{': '.join(skipped[0])}"
        )
    for path in folder.iterdir():  # workers were ahead when the loop ended
        if int(path.stem) not in good:
            path.unlink()
    return CopyTimings(
        levels=tuple(levels),
        images=tuple(good.values()),
        skipped=tuple(sorted(skipped)),
        processes=max(1, min(workers, len(numbers))),
    )


def _identity(timings: Any) -> Any:
    return timings
