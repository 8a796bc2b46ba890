"""What is to be built: levels and units, from a look at some of the images.

Guarantees: follows from the source and the settings alone, so a build that was broken off goes on
with the same units, and another machine makes the same shards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.settings import Unit
from feedline.cache.source import Source
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.decode import DEFAULT_MAX_PIXELS
from feedline.stores.cache_layout import Level

__all__ = ["BYTES_BESIDE", "Estimate", "divide", "estimate", "levels_of", "samples_per_shard"]

_LOOKED_AT = 64
_SHARD_BYTES = 256 << 20
_MOST_IN_SHARD = 4096
_LEAST_IN_SHARD = 32
_LEAST_SHARDS = 64
BYTES_BESIDE = 3 * 512 + 2 * 512 + 256
"""Of tar, for each image: three headers, the label and what is known of it, and half a block."""


@dataclass(frozen=True)
class Estimate:
    """What a look at some images says of all.

    Args:
        levels: which copies are made.
        images: how many there are.
        looked_at: how many were made.
        image_bytes: the mean size of an image in each level.
        seconds: to make all of them, on one core.
    """

    levels: tuple[Level, ...]
    images: int
    looked_at: int
    image_bytes: tuple[float, ...]
    seconds: float

    @property
    def level_bytes(self) -> tuple[int, ...]:
        """What each level takes on the disk."""
        return tuple(round(self.images * (size + BYTES_BESIDE)) for size in self.image_bytes)


def levels_of(sizes: Sequence[int], *, quality: int, raw: bool) -> tuple[Level, ...]:
    """The levels that a user asks for, smallest first.

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


def estimate(source: Source, levels: Sequence[Level], *, exif: bool) -> Estimate:
    """Make the copies of some images, spread over all, and measure them.

    Raises:
        DatasetError: not one of them can be read.
    """
    encoder = LevelEncoder(levels, exif=exif, max_pixels=DEFAULT_MAX_PIXELS)
    picked = source.some(_LOOKED_AT)
    source.ahead(picked)
    totals, made, seconds, why = [0] * len(levels), 0, 0.0, ""
    for sample in picked:
        started = time.perf_counter()
        try:
            copies = encoder.copies(source.read(sample))
        except ImageError as error:
            why = f"{source.name(sample)}: {error}"
            continue
        seconds += time.perf_counter() - started
        made += 1
        totals = [total + len(image) for total, image in zip(totals, copies.images, strict=True)]
    if not made:
        raise DatasetError(
            f"of {len(picked)} images of {source.where!r} not one can be read"
            + (f"; the last, {why}" if why else "")
        )
    return Estimate(
        levels=tuple(levels),
        images=len(source),
        looked_at=made,
        image_bytes=tuple(total / made for total in totals),
        seconds=seconds / made * len(source),
    )


def samples_per_shard(expected: Estimate) -> int:
    """How many samples make a shard: about 256 MB, at most 4096 samples, at least 64 shards."""
    largest = max(expected.image_bytes) + BYTES_BESIDE
    by_count = max(_LEAST_IN_SHARD, -(-expected.images // _LEAST_SHARDS))
    return max(1, min(int(_SHARD_BYTES / largest), by_count, _MOST_IN_SHARD))


def divide(images: int, per_shard: int) -> list[Unit]:
    """The units of so many images."""
    starts = range(0, images, per_shard)
    return [Unit(n, start, min(start + per_shard, images)) for n, start in enumerate(starts)]
