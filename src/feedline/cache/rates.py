"""Images/s of a loader, from original images and from resized copies of a few of them.

Guarantees: a loader with its own workers makes the batches, as in training; several are measured in
turn and the median counts; prefetched batches are not counted. Only a temporary folder is written,
and it is removed.

Relies on: images in the page cache.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeAlias, TypeVar

import numpy as np
from rich.filesize import decimal

from feedline.cache.build import build_cache
from feedline.cache.level_encoder import DEFAULT_JPEG_QUALITY
from feedline.cache.source import CacheSource, open_source
from feedline.errors import DatasetError, ImageError, ResourceError
from feedline.images.crops import Transform, wanted_side
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.sources.manifest import Level

__all__ = [
    "RateCallback",
    "RateKey",
    "SampledImages",
    "loader_rate",
    "measure_copies",
    "measure_rates",
    "sample_images",
    "serving_level",
]

Key = TypeVar("Key")
RateKey: TypeAlias = "tuple[int, Level | None]"
"""Image size of the batches in pixels, and the resolution that is read; None for originals."""

RateCallback: TypeAlias = Callable[[str, int, int], None]
"""Called with the current work as text, the finished parts, and the number of parts."""

_ROUNDS = 3
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
        for _ in range(_BATCHES_AHEAD + 1 if workers else 1):
            next(batches)
        number, started, passed = 0, time.perf_counter(), 0.0
        while passed < seconds:
            number += next(batches)
            passed = time.perf_counter() - started
    return number / passed


def measure_rates(
    readings: Mapping[Key, tuple[ImageFolder, int]],
    *,
    workers: int,
    seconds: float,
    progress: RateCallback,
) -> dict[Key, float]:
    """Return the images/s of images at a size in pixels, measured in turn for this total time."""
    turns = _ROUNDS * len(readings)
    turn_s = max(_MIN_TURN_S, seconds / turns)
    rates: dict[Key, list[float]] = {key: [] for key in readings}
    idle = next(iter(readings.values()))[0]
    # It keeps the fork server alive, which all loaders share.
    server: DataLoader[Any] = DataLoader(
        idle, 1, image_size=8, num_workers=min(1, workers), on_error="skip"
    )
    with server:
        next(iter(server))
        for turn, key in enumerate([*readings] * _ROUNDS):
            progress("measuring", turn, turns)
            images, size = readings[key]
            rate = loader_rate(images, size, workers=workers, seconds=turn_s, on_error="skip")
            rates[key].append(rate)
    return {key: median(measured) for key, measured in rates.items()}


@dataclass(frozen=True)
class SampledImages:
    """Originals of some samples of a source, in the folder "originals" of a temporary one.

    `file_bytes` is their mean size, 0 if the source returns pixels, and `read_s` the mean time to
    read one; `broken` has the reasons by the names of broken images, and is completed by builds.
    """

    root: Path
    names: list[str]
    file_bytes: float
    read_s: float
    broken: dict[str, str]

    def originals(self, crop: Transform) -> ImageFolder:
        """Return the originals as a folder of one class."""
        return ImageFolder(self.root / "originals", crop)

    def build(self, levels: Sequence[Level], crop: Transform, workers: int) -> ImageFolder:
        """Build a cache of the originals with some resolutions of one quality."""
        quality, sides = levels[0].quality, [level.side for level in levels]
        root = self.root / "-".join(map(str, [*sides, quality or "raw"]))
        options: dict[str, Any] = {"raw": True} if quality is None else {"quality": quality}
        manifest = build_cache(
            self.root / "originals", root, sides, workers=workers, on_error="skip", **options
        )
        self.broken.update((self.names[key], problem) for key, _, problem in manifest.skipped)
        return ImageFolder(root, crop)

    def measure(
        self,
        level_sets: Sequence[Sequence[Level]],
        sides: Mapping[int, int],
        crop: Transform,
        *,
        workers: int,
        seconds: float,
        progress: RateCallback,
    ) -> dict[RateKey, float]:
        """Return the images/s of the originals, and of the resolution that serves each image size
        in each of some caches. `sides` has the shorter side in pixels that a size needs.
        """
        readings: dict[RateKey, tuple[ImageFolder, int]] = {
            (size, None): (self.originals(crop), size) for size in sides
        }
        for done, levels in enumerate(level_sets):
            progress("making copies", done, len(level_sets))
            copies = self.build(levels, crop, workers)
            for size, side in sides.items():
                readings.setdefault((size, serving_level(levels, side)), (copies, size))
        rates = measure_rates(readings, workers=workers, seconds=seconds, progress=progress)
        if not self.file_bytes:  # a source of pixels has to be read as well
            for size in sides:
                rates[size, None] = 1 / (1 / rates[size, None] + self.read_s / max(1, workers))
        return rates


def serving_level(levels: Sequence[Level], side: int) -> Level | None:
    """Return the first resolution that is large enough; None for the originals."""
    return next((level for level in levels if level.side >= side), None)


@contextmanager
def sample_images(
    source: CacheSource, images: int, progress: RateCallback
) -> Iterator[SampledImages]:
    """Context with the originals of some evenly spread samples; broken ones are omitted."""
    numbers = source.pick(images)
    parent = tempfile.gettempdir()
    free = shutil.disk_usage(parent).free
    if free < 2 * _MAX_SAMPLE_BYTES:
        raise ResourceError(
            f"measuring copies needs {decimal(2 * _MAX_SAMPLE_BYTES)} in {parent!r}, which has "
            f"only {decimal(free)} free",
            hint="set $TMPDIR to another folder",
        )
    with tempfile.TemporaryDirectory(prefix="feedline-", ignore_cleanup_errors=True) as root:
        folder = Path(root, "originals", "images")
        folder.mkdir(parents=True)
        source.prefetch(numbers)
        names, times, sizes, total = [], [], [], 0
        broken: dict[str, str] = {}
        for done, number in enumerate(numbers):
            progress("reading images", done, len(numbers))
            started = time.perf_counter()
            try:
                image = source.read(number)
            except ImageError as error:
                broken[source.name(number)] = error.message
                continue
            times.append(time.perf_counter() - started)
            names.append(source.name(number))
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
        yield SampledImages(Path(root), names, mean(sizes), mean(times), broken)


def measure_copies(
    source: Any,
    sizes: Collection[int],
    sides: Collection[int],
    *,
    crop: Transform,
    workers: int,
    images: int = 200,
    seconds: float = 10.0,
    progress: RateCallback = lambda stage, done, total: None,
) -> dict[RateKey, float]:
    """Measure images/s from the originals and from JPEG copies of some images.

    Each resolution of `sides` is measured at the image sizes that it serves; the other arguments
    and the errors are those of `plan_cache`.
    """
    levels = [(Level(side=side, quality=DEFAULT_JPEG_QUALITY),) for side in sorted(sides)]
    needed = {size: wanted_side(crop, size) for size in sizes}
    with sample_images(open_source(source), images, progress) as sample:
        return sample.measure(
            levels, needed, crop, workers=workers, seconds=seconds, progress=progress
        )
