"""Small caches of some images of a source, made to be measured and in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from feedline.bench.copies import no_room
from feedline.bench.level_rates import Reading, level_of
from feedline.bench.making import MOST_BYTES, Making
from feedline.bench.scratch import temporary_folder
from feedline.cache.build import build_cache
from feedline.errors import ResourceError
from feedline.images.crops import Transform
from feedline.images.folder import ImageFolder
from feedline.stores.cache_layout import Level

__all__ = ["Silent", "room_for", "small_cache", "with_reading"]

_ORIGINAL_BYTES, _RAW_BYTES_PER_PIXEL = 2 << 20, 6  # at most, about, of a picture of 3 : 2


class Silent:
    """A `Report` that says nothing."""

    def begin(self, what: str, total: int) -> None:
        """Nothing is shown."""

    def advance(self, done: int, what: str = "") -> None:
        """Nothing is shown."""


def room_for(stack: ExitStack, images: int, sides: Collection[int]) -> Path:
    """A temporary folder with room for what is measured, which goes with the stack.

    Raises:
        ResourceError: there is none.
    """
    parent = Path(tempfile.gettempdir())
    needed = min(images * _ORIGINAL_BYTES, MOST_BYTES)
    needed += images * sum(side**2 for side in sides) * _RAW_BYTES_PER_PIXEL
    if why := no_room(parent, needed):
        raise ResourceError(
            f"copies of {images} images cannot be measured: {why}; look at fewer images, or let "
            "the variable TMPDIR name another folder"
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
    """A cache of the images that are measured, by its levels.

    Args:
        originals: the folder of their class folder.
        root: below which the cache is built.
        sides: of its levels, in pixels.
        quality: of the JPEGs; None: raw pixels.
        crop: which part of an image is shown.
        workers: processes; 0 for this one.
    """
    where = root / f"quality-{quality}"
    raw = quality is None
    build_cache(originals, where, sorted(sides), quality=quality, raw=raw, workers=workers)
    folder = ImageFolder(where, crop)
    return {Level(side=side, quality=quality): level_of(folder, side) for side in sides}


def with_reading(rates: Mapping[Reading, float], making: Making) -> dict[Reading, float]:
    """Rates of the originals of a Dataset with what it takes to give an image."""
    if making.original_bytes:
        return dict(rates)
    each_s = making.read_s / making.processes
    return {
        (size, level): rate if level else 1 / (1 / rate + each_s)
        for (size, level), rate in rates.items()
    }
