"""A level more for a cache that is finished.

Guarantees: it is made of the originals; the cache serves its other levels all the while, and the
new one once it is whole; work that was broken off is gone on with; originals that are no longer
those of the cache are refused.

Relies on: `destination` for where it is built, `unit_maker` and `makers` for the work, `records`
for what is done, `finish` for the end.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from feedline.cache.build_plan import divide, estimate, levels_of
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import finish_addition
from feedline.cache.makers import Makers, open_makers
from feedline.cache.open_source import source_of_cache
from feedline.cache.records import unit_matches
from feedline.cache.samples import difference_made, first_difference
from feedline.cache.settings import Settings, Spec
from feedline.cache.source import Source
from feedline.cache.unit_maker import Report, check_room, make_units, unfinished_work
from feedline.errors import DatasetError, UsageError
from feedline.stores.cache_index import CacheIndex
from feedline.stores.cache_layout import Level, Manifest, read_manifest

__all__ = ["add_size"]


def add_size(
    root: str | os.PathLike[str],
    size: int,
    *,
    source: Any = None,
    quality: int | None = None,
    workers: int | str = "auto",
    ray: str | None = None,
    progress: Report = lambda progress: None,
) -> Manifest:
    """Add copies of one more size to a cache; the others stay as they are.

    Args:
        root: the cache's folder, or its URL.
        size: the shorter side of the new copies in pixels.
        source: what the cache was made of, where that has moved; it must hold the same samples.
        quality: of the JPEGs, 1 to 100; None: as the largest copies have it.
        workers: processes; "auto" for the cores that this process may use.
        ray: the address of a Ray cluster whose CPUs make the copies, as for `build_cache`.
        progress: called again and again.

    Returns:
        what the cache now holds.

    Raises:
        DatasetError: there is no cache, its source is gone or no longer what it was made of, or a
            store is out of reach.
        ImageError: an original is broken; names it.
        ResourceError: the disk cannot hold the result.
        UsageError: an argument cannot be used, the cache has this size, or a build works in it.
    """
    destination = open_destination(root)
    with open_makers(workers, ray) as makers:
        destination.check_cache()  # before a lock is put there
        with destination.opened():
            return _add(destination, makers, size, source, quality, progress)


def _add(
    destination: Destination,
    makers: Makers,
    size: int,
    source: Any,
    quality: int | None,
    progress: Report,
) -> Manifest:
    where = destination.root
    manifest = read_manifest(where)
    level = _level(where, manifest, size, quality)
    left_out = frozenset(key for key, _, _ in manifest.skipped)
    form = manifest.format, (level,), manifest.exif
    spec = Spec(where, *form, adds=True, left_out=left_out)
    if any(level.side == size for level in manifest.levels):
        if not spec.unfinished.exists():
            raise UsageError(
                f"the cache {where!r} has copies of {size} px already; it holds "
                + ", ".join(map(str, manifest.levels))
            )
        shutil.rmtree(spec.unfinished)  # stopped when the level was complete
        return manifest
    images = source_of_cache(where, manifest, source)
    index = CacheIndex(where, manifest)
    _refuse(where, manifest, images, first_difference(images, manifest, index))
    with unfinished_work(spec):
        expected = estimate(images, spec.levels, exif=spec.exif)
        Settings.of(images, spec, manifest.per_shard).agreed(spec)
        units = divide(len(images), manifest.per_shard)
        todo = [unit for unit in units if not unit_matches(images, spec, unit)]
        check_room(spec, expected, todo, makers, destination)
        make_units(images, spec, expected, todo, makers, destination, progress)
        # They may have changed while they were read.
        _refuse(where, manifest, images, difference_made(spec, units, index))
        return finish_addition(spec, units, manifest)


def _level(where: str, manifest: Manifest, size: int, quality: int | None) -> Level:
    has = manifest.levels[-1].quality
    if quality is None:
        quality = has
    elif has is None:
        raise UsageError(
            f"quality {quality} was asked for, and the cache {where!r} holds raw pixels, which "
            "have none; leave it out"
        )
    return levels_of((size,), quality=95 if quality is None else quality, raw=has is None)[0]


def _refuse(where: str, manifest: Manifest, source: Source, difference: str) -> None:
    """Refuse a source that differs."""
    if difference:
        sizes = ",".join(level.name for level in manifest.levels)
        raise DatasetError(
            f"{source.where!r} is no longer what the cache {where!r} was made of: {difference}. "
            "Bring the cache up to date first, which makes only what has changed: `feedline cache "
            f"build {source.where} {where} --sizes {sizes}` with the other options as they were"
        )
