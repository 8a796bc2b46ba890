"""Rates of a loader on each level of small caches, and the levels' pixel differences.

Guarantees: a loader with its own workers makes the rows, as in training; all are measured in turn
in several rounds and the median is used; of one quality no level is reported as faster than a
smaller one; only a temporary folder is written and it is removed; no process is left.
Relies on: images in the page cache.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeAlias

import numpy as np

from feedline.bench.copies import space_problem, temporary_folder
from feedline.bench.copy_timings import MAX_ORIGINAL_BYTES, CopyTimings, make_copies
from feedline.bench.loaders import MeasuredFeedline
from feedline.bench.options import BenchmarkOptions
from feedline.bench.run import ProgressListener
from feedline.bench.survey import ImageSample
from feedline.cache.build import build_cache
from feedline.cache.open_source import open_source
from feedline.errors import ResourceError
from feedline.images.crops import Transform, wanted_side
from feedline.images.folder import ImageFolder
from feedline.order.batch_spec import Item
from feedline.order.seeds import mix
from feedline.sources.cache_layout import Level
from feedline.sources.cache_store import CacheStore

__all__ = [
    "ROUNDS",
    "NoProgress",
    "Reading",
    "include_dataset_time",
    "level_costs",
    "level_of",
    "make_scratch_folder",
    "measure_differences",
    "measure_rates",
    "small_cache",
    "smooth_rates",
]


Reading: TypeAlias = "tuple[int, Level | None]"
"""Size of the rows in pixels, and the level they are read from; None is the originals."""

ROUNDS = 3

_MIN_TURN_S = 0.15
_MIN_BATCH, _MAX_BATCH, _BATCH_PIXELS = 8, 64, 1 << 24
_COMPARED = 64
_COMPARE_S = 5.0


def level_of(folder: ImageFolder, side: int) -> ImageFolder:
    """Return a view of a cache that reads one level at every size of the rows."""
    assert isinstance(folder.store, CacheStore), "levels are of caches"
    one, store = copy.copy(folder), copy.copy(folder.store)
    levels = tuple(level for level in store.manifest.levels if level.side == side)
    store.manifest = replace(store.manifest, levels=levels)
    one.store = store
    return one


def measure_rates(
    folders: Mapping[Level | None, ImageFolder],
    readings: Sequence[Reading],
    *,
    workers: int,
    seconds: float,
    advance: Callable[[int, str], None],
) -> dict[Reading, float]:
    """Images/s of a loader for each reading.

    Args:
        folders: the images of each level, and the originals.
        readings: which sizes of rows of which of them.
        workers: processes; 0 loads in this one.
        seconds: total time of counting images, without starting the loaders.
        advance: called with the number of finished turns and a description of the next.
    """
    turn_s = max(_MIN_TURN_S, seconds / (ROUNDS * len(readings)))
    found: dict[Reading, list[float]] = {reading: [] for reading in readings}
    over = 0
    # An idle loader keeps the fork server alive, which all others then share.
    with _loader(folders, readings[0], workers):
        for number in range(ROUNDS):
            for reading in readings:
                size, level = reading
                files = f"{size} px of {level or 'the originals'}"
                advance(over, f"round {number + 1} of {ROUNDS}: {files}")
                over += 1
                with _loader(folders, reading, workers) as loader:
                    found[reading].append(loader.turn(turn_s).images_per_s)
    return smooth_rates({reading: median(rates) for reading, rates in found.items()})


def smooth_rates(rates: Mapping[Reading, float]) -> dict[Reading, float]:
    """Make rates fall monotonically with the level's side, at one size of rows and one quality.

    A larger level has more bytes to read and decode, so a higher rate is noise: neighbours that
    rise are replaced by their mean (the pool-adjacent-violators algorithm).
    """
    series: dict[tuple[int, int | None], list[Level]] = {}
    for size, level in rates:
        if level is not None:
            series.setdefault((size, level.quality), []).append(level)
    found = dict(rates)
    for (size, _), levels in series.items():
        levels.sort(key=lambda level: level.side)
        pools: list[list[float]] = []
        for level in levels:
            pools.append([rates[size, level]])
            while len(pools) > 1 and mean(pools[-1]) > mean(pools[-2]):
                last = pools.pop()
                pools[-1] += last
        even = [mean(pool) for pool in pools for _ in pool]
        found |= {(size, level): rate for level, rate in zip(levels, even, strict=True)}
    return found


def _loader(
    folders: Mapping[Level | None, ImageFolder], reading: Reading, workers: int
) -> MeasuredFeedline:
    size, level = reading
    folder = folders[level]
    settings = BenchmarkOptions(
        folder=Path(folder.root),
        size_px=size,
        batch_size=max(_MIN_BATCH, min(_MAX_BATCH, _BATCH_PIXELS // size**2)),
        workers=workers,
    )
    return MeasuredFeedline("", ImageSample(folder, range(len(folder))), settings, workers)


def measure_differences(
    folders: Mapping[Level | None, ImageFolder], readings: Sequence[Reading]
) -> dict[tuple[int, Level], float]:
    """Measure how far rows of a level are from those of the originals, with equal random crops.

    Returns:
        the mean absolute difference of the pixels, in grey levels, for each reading of a level.
    """
    found: dict[tuple[int, Level], list[float]] = {
        (size, level): [] for size, level in readings if level is not None
    }
    until = time.monotonic() + _COMPARE_S
    for sample in range(min(_COMPARED, len(folders[None]))):
        originals = {size: _row(folders[None], sample, size) for size, _ in readings}
        for (size, level), differences in found.items():
            difference = np.abs(_row(folders[level], sample, size) - originals[size])
            differences.append(float(difference.mean()))
        if time.monotonic() > until:
            break
    return {reading: mean(differences) for reading, differences in found.items()}


def _row(
    folder: ImageFolder, sample: int, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    pixels, label = np.zeros((size, size, 3), np.uint8), np.zeros((), np.int64)
    folder.load(Item(sample, size, mix(sample), 1.0), (pixels, label))
    return pixels.astype(np.int16)


_QUALITY = 95  # default of a build


def level_costs(
    source: Any,
    sizes: Collection[int],
    sides: Collection[int],
    *,
    crop: Transform,
    workers: int,
    images: int = 200,
    seconds: float = 10.0,
    report: ProgressListener | None = None,
) -> Mapping[Reading, float]:
    """Measure images/s of the originals and of levels, on some images.

    Args:
        source: any source that `build_cache` accepts.
        sizes: of the rows, in pixels.
        sides: shorter sides of the levels, in pixels; each is measured at the sizes it serves.
        crop: part of an image that is shown.
        workers: processes; 0 loads in this one.
        images: number of images measured, spread over the source.
        seconds: total time of counting images.
        report: receives the progress.

    Returns:
        images/s by the size of the rows and the level, None for the originals.

    Raises:
        DatasetError: the source is missing, or none of its images can be read.
        ResourceError: there is no space for the copies.
        UsageError: the source is itself a cache.
    """
    progress = report or NoProgress()
    opened = open_source(source)
    with ExitStack() as stack:
        root = make_scratch_folder(stack, min(images, len(opened)), sides)
        numbers = opened.pick(images)
        originals = root / "originals" / "images"
        originals.mkdir(parents=True)
        progress.begin("copying images", len(numbers))
        timings = make_copies(
            opened, numbers, (), originals, workers=workers, advance=progress.advance
        )
        progress.begin("making a cache of them", 1)
        folders: dict[Level | None, ImageFolder] = {None: ImageFolder(originals.parent, crop)}
        folders |= small_cache(originals.parent, root, sides, _QUALITY, crop, workers)
        readings: list[Reading] = [
            (size, level)
            for size in sizes
            for level in folders
            if level is None or level.side >= wanted_side(crop, size)
        ]
        progress.begin("measuring levels", ROUNDS * len(readings))
        rates = measure_rates(
            folders, readings, workers=workers, seconds=seconds, advance=progress.advance
        )
    return include_dataset_time(rates, timings)


_ORIGINAL_BYTES, _RAW_BYTES_PER_PIXEL = 2 << 20, 6  # upper estimates, for an aspect of 3:2


class NoProgress:
    """`ProgressListener` that ignores everything."""

    def begin(self, what: str, total: int) -> None:
        """Ignore the new work."""

    def advance(self, done: int, what: str = "") -> None:
        """Ignore the progress."""


def make_scratch_folder(stack: ExitStack, images: int, sides: Collection[int]) -> Path:
    """Create a temporary folder with enough space, removed with the stack.

    Raises:
        ResourceError: there is not enough space.
    """
    parent = Path(tempfile.gettempdir())
    needed = min(images * _ORIGINAL_BYTES, MAX_ORIGINAL_BYTES)
    needed += images * sum(side**2 for side in sides) * _RAW_BYTES_PER_PIXEL
    if why := space_problem(parent, needed):
        raise ResourceError(
            f"copies of {images} images cannot be measured: {why}",
            hint="measure fewer images, or set TMPDIR to another folder",
        )
    return stack.enter_context(temporary_folder())


def small_cache(
    originals: Path,
    root: Path,
    sides: Collection[int],
    quality: int | None,
    crop: Transform,
    workers: int,
) -> dict[Level | None, ImageFolder]:
    """Build a cache of the measured images. Returns a folder for each of its levels.

    Args:
        originals: folder of the class folder of the images.
        root: folder in which the cache is built.
        sides: shorter sides of the levels, in pixels.
        quality: of the JPEGs; None: raw pixels.
        crop: part of an image that is shown.
        workers: processes; 0 works in this one.
    """
    path = root / f"quality-{quality}"
    raw = quality is None
    build_cache(originals, path, sorted(sides), quality=quality, raw=raw, workers=workers)
    folder = ImageFolder(path, crop)
    return {Level(side=side, quality=quality): level_of(folder, side) for side in sides}


def include_dataset_time(
    rates: Mapping[Reading, float], timings: CopyTimings
) -> dict[Reading, float]:
    """Add a Dataset's time per image to the originals' rates; files are timed already."""
    if timings.original_bytes:
        return dict(rates)
    each_s = timings.read_s / timings.processes
    return {
        (size, level): rate if level else 1 / (1 / rate + each_s)
        for (size, level), rate in rates.items()
    }
