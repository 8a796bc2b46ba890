"""Plan of a build: resolutions and shards, from a sample of the images.

Guarantees: depends only on the source and the settings, so a continued build, or one on another
machine, has the same shards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.settings import ShardRange
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.codecs import DEFAULT_MAX_PIXELS
from feedline.sources.cache_layout import Level

__all__ = [
    "BYTES_BESIDE",
    "Estimate",
    "estimate",
    "make_levels",
    "samples_per_shard",
    "split_into_shards",
]

_SAMPLE_IMAGES = 64
_SHARD_BYTES = 256 << 20
_MAX_SHARD_SAMPLES = 4096
_MIN_SHARD_SAMPLES = 32
_MIN_SHARDS = 64
BYTES_BESIDE = 3 * 512 + 2 * 512 + 256
"""Tar overhead of an image: three headers, label and metadata, and half a block."""


@dataclass(frozen=True)
class Estimate:
    """Estimate of a build from a sample of the images.

    Args:
        levels: resolutions of the copies.
        images: number of images.
        looked_at: number of images in the sample.
        image_bytes: mean size of a copy in each resolution.
        seconds: time to make all copies on one core.
    """

    levels: tuple[Level, ...]
    images: int
    looked_at: int
    image_bytes: tuple[float, ...]
    seconds: float

    @property
    def level_bytes(self) -> tuple[int, ...]:
        """Disk space of each resolution."""
        return tuple(round(self.images * (size + BYTES_BESIDE)) for size in self.image_bytes)


def make_levels(sizes: Sequence[int], *, quality: int, raw: bool) -> tuple[Level, ...]:
    """Return the resolutions for given sizes, smallest first.

    Raises:
        UsageError: a size or the quality is out of range.
    """
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 8192:
            raise UsageError(f"must be from 8 to 8192 pixels, got {size!r}", argument="sizes")
    if not sizes:
        raise UsageError("must be one or more, such as 128,192,256", argument="sizes")
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise UsageError(f"must be from 1 to 100, got {quality!r}", argument="quality")
    return tuple(Level(side=size, quality=None if raw else quality) for size in sorted(set(sizes)))


def estimate(source: CacheSource, levels: Sequence[Level], *, exif: bool) -> Estimate:
    """Make and measure the copies of some evenly spread images.

    Raises:
        DatasetError: none of them can be read.
    """
    encoder = LevelEncoder(levels, exif=exif, max_pixels=DEFAULT_MAX_PIXELS)
    picked = source.pick(_SAMPLE_IMAGES)
    source.prefetch(picked)
    totals, made, seconds, why = [0] * len(levels), 0, 0.0, ""
    for sample in picked:
        started = time.perf_counter()
        try:
            copies = encoder.make_copies(source.read(sample))
        except ImageError as error:
            why = f"{source.name(sample)}: {error.message}"
            continue
        seconds += time.perf_counter() - started
        made += 1
        totals = [total + len(image) for total, image in zip(totals, copies.images, strict=True)]
    if not made:
        raise DatasetError(
            f"none of {len(picked)} sampled images of {source.where!r} can be read"
            + (f"; the last one: {why}" if why else "")
        )
    return Estimate(
        levels=tuple(levels),
        images=len(source),
        looked_at=made,
        image_bytes=tuple(total / made for total in totals),
        seconds=seconds / made * len(source),
    )


def samples_per_shard(expected: Estimate) -> int:
    """Return the samples of a shard: about 256 MB, at most 4096 samples, at least 64 shards."""
    largest = max(expected.image_bytes) + BYTES_BESIDE
    by_count = max(_MIN_SHARD_SAMPLES, -(-expected.images // _MIN_SHARDS))
    return max(1, min(int(_SHARD_BYTES / largest), by_count, _MAX_SHARD_SAMPLES))


def split_into_shards(images: int, per_shard: int) -> list[ShardRange]:
    """Divide the samples into shards."""
    starts = range(0, images, per_shard)
    return [ShardRange(n, start, min(start + per_shard, images)) for n, start in enumerate(starts)]
