"""Images/s of a loader: from original images, and from copies of a few of them or in a cache.

Guarantees: a loader with its own workers makes the batches, as in training; prefetched batches are
not counted. To compare originals and copies, they are measured in turn and the median counts; only
a temporary folder is written, and it is removed. A cache is described without a change, and without
a measurement no image is read.

Relies on: images in the page cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from feedline.cache.build import build_cache
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, ImageError, ResourceError
from feedline.images.crops import Transform, wanted_side
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.sources.cache_formats import cache_format
from feedline.sources.manifest import Level, Manifest
from feedline.sources.remote_cache import open_location
from feedline.system import usable_cores
from feedline.text import ProgressCallback, as_bytes
from feedline.throughput.windows import RateMeter

RateKey: TypeAlias = "tuple[int, Level | None]"
"""Image size of the batches in pixels, and the resolution that is read; None for originals."""

_ROUNDS = 3
_INFO_S = 2.0  # for each resolution of a cache
_MIN_TURN_S = 0.15
_BATCHES_AHEAD = 3  # the loader's default
_MIN_BATCH, _MAX_BATCH, _BATCH_PIXELS = 8, 64, 1 << 24
_MAX_SAMPLE_BYTES, _MIN_IMAGES = 512 << 20, 32  # large images end the sample early


def loader_rate(
    images: ImageFolder, image_size: int, *, workers: int, seconds: float, on_error: str = "raise"
) -> float:
    """Return the images/s of random crops, counted for this time after the prefetched batches."""
    batch_size = max(_MIN_BATCH, min(_MAX_BATCH, _BATCH_PIXELS // image_size**2))
    loader: DataLoader[Any] = DataLoader(
        images,
        min(batch_size, len(images)),
        image_size=image_size,
        num_workers=workers,
        prefetch=_BATCHES_AHEAD,
        on_error=on_error,
        rank=0,  # all images, even if the environment sets a rank
        world_size=1,
        seed=0,
    )
    with loader:
        batches = (len(batch) for _ in count() for batch, _ in loader)
        meter = RateMeter(seconds, warmup=_BATCHES_AHEAD + 1 if workers else 1)
        while meter.add(next(batches)):
            pass
    return meter.per_s


def measure_rates(
    readings: Mapping[RateKey, ImageFolder],
    *,
    workers: int,
    seconds: float,
    progress: ProgressCallback,
) -> dict[RateKey, float]:
    """Return the images/s of folders, measured in turn for this total time."""
    turns = _ROUNDS * len(readings)
    turn_s = max(_MIN_TURN_S, seconds / turns)
    rates: dict[RateKey, list[float]] = {key: [] for key in readings}
    idle = next(iter(readings.values()))
    # It keeps the fork server alive, which all loaders share.
    server: DataLoader[Any] = DataLoader(
        idle, 1, image_size=8, num_workers=min(1, workers), on_error="skip"
    )
    with server:
        next(iter(server))
        for turn, key in enumerate([*readings] * _ROUNDS):
            progress("measuring", turn, turns)
            rates[key].append(
                loader_rate(readings[key], key[0], workers=workers, seconds=turn_s, on_error="skip")
            )
    return {key: median(measured) for key, measured in rates.items()}


@dataclass(frozen=True)
class OriginalsSample:
    """Originals of some samples: their names, mean size of a file, 0 if the source returns pixels,
    mean time to read one, and the reasons by the names of broken images.
    """

    names: list[str]
    file_bytes: float
    read_s: float
    broken: dict[str, str]


def measure_copies(
    source: CacheSource,
    level_sets: Sequence[Sequence[Level]],
    sizes: Collection[int],
    *,
    crop: Transform,
    workers: int,
    images: int = 200,
    seconds: float = 10.0,
    progress: ProgressCallback = lambda stage, done, total: None,
) -> tuple[dict[RateKey, float], OriginalsSample]:
    """Measure images/s from memory, of the originals of some samples and of caches of them.

    Each image size is measured from the originals, and from the resolution that serves it in each
    of `level_sets`, the resolutions of a cache. The other arguments and the errors are those of
    `plan_cache`.
    """
    sides = {size: wanted_side(crop, size) for size in sizes}
    with tempfile.TemporaryDirectory(prefix="feedline-", ignore_cleanup_errors=True) as root:
        originals = Path(root, "originals")
        sample = copy_originals(source, originals, images, progress)
        readings: dict[RateKey, ImageFolder] = {}
        readings |= {(size, None): ImageFolder(originals, crop) for size in sides}
        for done, levels in enumerate(level_sets):
            progress("making copies", done, len(level_sets))
            quality, pixels = levels[0].quality, [level.side for level in levels]
            copies = Path(root, "-".join(map(str, [*pixels, quality or "raw"])))
            manifest = build_cache(
                originals,
                copies,
                pixels,
                quality=quality,
                raw=quality is None,
                workers=workers,
                on_error="skip",
            )
            sample.broken.update((sample.names[key], why) for key, _, why in manifest.skipped)
            for size, side in sides.items():
                readings.setdefault((size, serving_level(levels, side)), ImageFolder(copies, crop))
        rates = measure_rates(readings, workers=workers, seconds=seconds, progress=progress)
    if not sample.file_bytes:  # a source of pixels has to be read as well
        for size in sides:
            rates[size, None] = 1 / (1 / rates[size, None] + sample.read_s / max(1, workers))
    return rates, sample


def serving_level(levels: Sequence[Level], side: int) -> Level | None:
    """Return the first resolution that is large enough; None for the originals."""
    return next((level for level in levels if level.side >= side), None)


def copy_originals(
    source: CacheSource, root: Path, images: int, progress: ProgressCallback
) -> OriginalsSample:
    """Write the originals of some evenly spread samples to a folder of one class."""
    numbers, folder = source.store.pick(images), root / "images"
    free = shutil.disk_usage(root.parent).free
    if free < 2 * _MAX_SAMPLE_BYTES:
        raise ResourceError(
            f"measuring copies needs {as_bytes(2 * _MAX_SAMPLE_BYTES)} in "
            f"{tempfile.gettempdir()!r}, which has only {as_bytes(free)} free",
            hint="set $TMPDIR to another folder",
        )
    folder.mkdir(parents=True)
    names, times, sizes, total = [], [], [], 0
    broken: dict[str, str] = {}
    for done, (number, read) in enumerate(source.read_ahead(numbers)):
        progress("reading images", done, len(numbers))
        started = time.perf_counter()
        try:
            image = read()
        except ImageError as error:
            broken[source.store.key(number)] = error.message
            continue
        times.append(time.perf_counter() - started)
        names.append(source.store.key(number))
        sizes.append(len(image) if isinstance(image, bytes) else 0)
        if isinstance(image, np.ndarray):
            image = f"P6 {image.shape[1]} {image.shape[0]} 255\n".encode() + image.tobytes()
        # Readers detect the type by the bytes.
        total += (folder / f"{done:06}.jpg").write_bytes(image)
        if total > _MAX_SAMPLE_BYTES and len(sizes) >= _MIN_IMAGES:
            break
    if not sizes:
        first = "; ".join(f"{name}: {problem}" for name, problem in [*broken.items()][:1])
        raise DatasetError(
            f"none of {len(numbers)} sampled images of {source.where!r} can be read: {first}"
        )
    return OriginalsSample(names, mean(sizes), mean(times), broken)


class LevelInfo(NamedTuple):
    """One resolution of a cache: total size of its files, mean size of an image, and the images/s
    of random crops of a size in pixels on all cores; None if not measured.
    """

    level: Level
    bytes: int
    image_bytes: float
    crop_px: int
    images_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class CacheInfo:
    """Contents of a cache: its resolutions, smallest first."""

    root: str
    manifest: Manifest
    levels: tuple[LevelInfo, ...]


def cache_info(root: str | os.PathLike[str], *, measure: bool = True) -> CacheInfo:
    """Describe a cache. A measurement reads random crops of each resolution for about two seconds,
    on all usable cores.
    """
    location = open_location(root)
    manifest, where = location.manifest(), str(location)
    index = location.index(manifest)
    levels: list[LevelInfo] = []
    for level in manifest.levels:
        lengths = index.entries(level)[:, 2]
        # 7/8 of its side, a multiple of 16, unless the next smaller resolution serves that size.
        crop_px = max(8, level.side * 7 // 8 // 16 * 16)
        if levels and levels[-1].level.side >= crop_px:
            crop_px = level.side
        rate = None
        if measure and manifest.samples:
            images = ImageFolder(root, exif=manifest.exif)
            rate = loader_rate(images, crop_px, workers=usable_cores(), seconds=_INFO_S)
        size = cache_format(manifest.format).disk_bytes(where, level)
        image_bytes = float(lengths.mean()) if len(lengths) else 0.0
        levels.append(LevelInfo(level, size, image_bytes, crop_px, rate))
    return CacheInfo(root=where, manifest=manifest, levels=tuple(levels))
