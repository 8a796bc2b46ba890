"""Cost of one image in one process: reading, decoding, cropping and resizing.

Guarantees: reading, resizing and all of `ImageFolder.load` are timed; the rest of the latter is
decoding. The fastest of an image's repetitions is used, as the others were disturbed; the figures
are means over the images, so they add up. A missing figure comes with its reason.

Relies on: `machine` to drop files from memory, and to check that. Folders and inodes stay in
memory, and maybe the disk's own caches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from feedline.images.codec_registry import Decoder
from feedline.images.folder import ImageFolder
from feedline.images.resize import fill
from feedline.machine import can_drop_pages, drop_pages, stays_in_memory
from feedline.order.batch_spec import Item
from feedline.order.seeds import mix
from feedline.sources.files import read_file

__all__ = ["StageCosts", "measure_stages"]

_REPEATS = 3
_PROBES = 4
_MIN_IMAGES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCosts:
    """Mean cost of one image in one process.

    Args:
        images: number of measured images.
        read_ms: reading the file from memory.
        read_cold_ms: reading it from the disk; None if not measured.
        cold_not_measured: the reason if it was not measured, or "".
        decode_ms: decoding as many pixels as the crop needs, and drawing the crop.
        resize_ms: resizing the crop into its row, mirrored or not.
    """

    images: int
    read_ms: float
    read_cold_ms: float | None
    cold_not_measured: str
    decode_ms: float
    resize_ms: float

    @property
    def total_ms(self) -> float:
        """Total cost, with the file in memory."""
        return self.read_ms + self.decode_ms + self.resize_ms


def measure_stages(
    folder: ImageFolder, numbers: Sequence[int], size: int, seconds: float
) -> StageCosts:
    """Time the stages of images in this process.

    Args:
        folder: the images, with the transform.
        numbers: sample numbers of images that can be decoded.
        size: of the row, in pixels.
        seconds: approximate time limit; at least a few images are measured.
    """
    decoder = Decoder()
    row = np.zeros((size, size, 3), np.uint8), np.zeros((), np.int64)
    spans: list[list[float]] = []
    end = time.monotonic() + seconds
    for sample in numbers:
        if len(spans) >= _MIN_IMAGES and time.monotonic() > end:
            break
        item = Item(sample, size, mix(sample), 1.0)
        runs = [_time_stages(folder, item, row, decoder) for _ in range(_REPEATS)]
        spans.append([min(times) for times in zip(*runs, strict=True)])
    read_ms, resize_ms, load_ms = (mean(times) for times in zip(*spans, strict=True))
    cold_ms, why_not = _read_cold_ms(folder, numbers[: len(spans)])
    return StageCosts(
        images=len(spans),
        read_ms=read_ms,
        read_cold_ms=cold_ms,
        cold_not_measured=why_not,
        decode_ms=max(0.0, load_ms - read_ms - resize_ms),
        resize_ms=resize_ms,
    )


def _time_stages(
    folder: ImageFolder, item: Item, row: tuple[np.ndarray[Any, Any], ...], decoder: Decoder
) -> tuple[float, float, float]:
    """Milliseconds to read one image, to resize it, and for everything."""
    start = time.perf_counter()
    data = read_file(folder.files.path(item.sample))
    was_read = time.perf_counter()
    height, width = decoder.open(data)
    placement = folder.transform.place(height, width, item)
    part = decoder.read(part=placement.part)
    decoded = time.perf_counter()
    fill(row[0], part, placement)
    resized = time.perf_counter()
    folder.load(item, row)
    loaded = time.perf_counter()
    return (was_read - start) * 1e3, (resized - decoded) * 1e3, (loaded - resized) * 1e3


def _read_cold_ms(folder: ImageFolder, numbers: Sequence[int]) -> tuple[float | None, str]:
    """Milliseconds to read a file from the disk, or None and the reason it is unknown."""
    if not can_drop_pages():
        return None, f"{sys.platform} cannot drop files from memory"
    if len(numbers) < 2:
        return None, "at least two images are needed"
    paths = [folder.files.path(sample) for sample in numbers]
    # Checking if a file is in memory starts to fetch it: the checked files are not timed.
    probes = min(_PROBES, len(paths) // 2)
    in_memory = 0
    for path in paths[:probes]:
        drop_pages(path)
        in_memory += stays_in_memory(path) is not False
    if in_memory >= probes / 2:  # a busy machine finds a few files of a disk in memory
        return None, "the files stay in memory (a RAM disk, or in use by another program)"
    timed = paths[probes:]
    for path in timed:
        drop_pages(path)
    start = time.perf_counter()
    for path in timed:
        read_file(path)
    return (time.perf_counter() - start) / len(timed) * 1e3, ""
