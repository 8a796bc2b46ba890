"""How fast a loader makes rows of some levels of a cache that is not there, and of the originals.

Guarantees: nothing but a temporary folder is written, which is gone afterwards; when it returns or
breaks off, none of its processes is left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

from feedline.bench.level_rates import ROUNDS, Reading, measure_rates
from feedline.bench.making import make_copies
from feedline.bench.run import Report
from feedline.bench.small_cache import Silent, room_for, small_cache, with_reading
from feedline.cache.open_source import open_source
from feedline.images.crops import Transform, wanted_side
from feedline.images.folder import ImageFolder
from feedline.stores.cache_layout import Level

__all__ = ["level_costs"]

_QUALITY = 95  # what a build takes by default


def level_costs(
    source: Any,
    sizes: Collection[int],
    sides: Collection[int],
    *,
    crop: Transform,
    workers: int,
    images: int = 200,
    seconds: float = 10.0,
    report: Report | None = None,
) -> Mapping[Reading, float]:
    """Measure images/s of the originals and of levels, on some images.

    Args:
        source: what `build_cache` takes.
        sizes: of the rows, in pixels.
        sides: of the levels, in pixels; each is measured at the sizes that it serves.
        crop: which part of an image is shown.
        workers: processes; 0 for this one.
        images: how many are looked at, spread over the source.
        seconds: how long to count images, in all.
        report: is told what is done.

    Returns:
        images/s by the size of the rows and the level, None for the originals.

    Raises:
        DatasetError: there is no source, or not one of its images can be read.
        ResourceError: there is no room for the copies.
        UsageError: the source is a cache itself.
    """
    told = report or Silent()
    opened = open_source(source)
    with ExitStack() as stack:
        root = room_for(stack, min(images, len(opened)), sides)
        numbers = opened.some(images)
        originals = root / "originals" / "images"
        originals.mkdir(parents=True)
        told.begin("copying images", len(numbers))
        making = make_copies(opened, numbers, (), originals, workers=workers, advance=told.advance)
        told.begin("making a cache of them", 1)
        folders: dict[Level | None, ImageFolder] = {None: ImageFolder(originals.parent, crop)}
        folders |= small_cache(originals.parent, root, sides, _QUALITY, crop, workers)
        readings: list[Reading] = [
            (size, level)
            for size in sizes
            for level in folders
            if level is None or level.side >= wanted_side(crop, size)
        ]
        told.begin("measuring levels", ROUNDS * len(readings))
        rates = measure_rates(
            folders, readings, workers=workers, seconds=seconds, advance=told.advance
        )
    return with_reading(rates, making)
