"""Addition of a resolution to a finished cache.

Guarantees: copies are made from the originals. The cache's other resolutions stay readable, and the
new one becomes readable when it is complete. An interrupted addition is continued. Originals that
have changed since the build are refused.

Relies on: `destination` for storage, `build_shards` and `build_workers` for the work, `records` for
finished shards, `finish` for the index.
"""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

from feedline.cache.build_plan import estimate, make_levels, split_into_shards
from feedline.cache.build_shards import (
    BuildCallback,
    build_shards,
    check_disk_space,
    unfinished_work,
)
from feedline.cache.build_workers import BuildWorkers, open_workers
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import finish_level
from feedline.cache.open_source import open_cache_source
from feedline.cache.records import shard_matches
from feedline.cache.settings import BuildSettings, Spec
from feedline.cache.source import CacheSource
from feedline.cache.source_changes import shards_difference, source_difference
from feedline.errors import DatasetError, UsageError
from feedline.sources.cache_index import CacheIndex
from feedline.sources.cache_layout import Level, Manifest, read_manifest

__all__ = ["add_size"]


def add_size(
    root: str | os.PathLike[str],
    size: int,
    *,
    source: Any = None,
    quality: int | None = None,
    workers: int | str = "auto",
    ray: str | None = None,
    progress: BuildCallback = lambda progress: None,
) -> Manifest:
    """Add copies of one more size to a cache; existing copies are unchanged.

    Args:
        root: folder or URL of the cache.
        size: shorter side of the new copies in pixels.
        source: source of the cache if it has moved; must hold the same samples.
        quality: JPEG quality, 1 to 100. Default: that of the largest copies.
        workers: number of processes; "auto" for one per usable core.
        ray: address of a Ray cluster that makes the copies, see `build_cache`.
        progress: called repeatedly.

    Returns:
        Manifest of the cache.

    Raises:
        DatasetError: there is no cache, its source is missing or has changed, or a store is
            unreachable.
        ImageError: an original is broken; names it.
        ResourceError: not enough disk space.
        UsageError: an argument is invalid, the cache has this size, or another build is running.
    """
    destination = open_destination(root)
    with open_workers(workers, ray) as pool:
        destination.check_cache()  # before a lock is created there
        with destination.lock():
            return _add(destination, pool, size, source, quality, progress)


def _add(
    destination: Destination,
    pool: BuildWorkers,
    size: int,
    source: Any,
    quality: int | None,
    progress: BuildCallback,
) -> Manifest:
    where = destination.root
    manifest = read_manifest(where)
    level = _level(where, manifest, size, quality)
    skipped_before = frozenset(key for key, _, _ in manifest.skipped)
    form = manifest.format, (level,), manifest.exif
    spec = Spec(where, *form, adds_level=True, skipped_before=skipped_before)
    if any(level.side == size for level in manifest.levels):
        if not spec.unfinished.exists():
            raise UsageError(
                f"the cache {where!r} already has copies of {size} px; it has "
                + ", ".join(map(str, manifest.levels))
            )
        shutil.rmtree(spec.unfinished)  # interrupted after the resolution was complete
        return manifest
    images = open_cache_source(where, manifest, source)
    index = CacheIndex(where, manifest)
    _refuse(where, manifest, images, source_difference(images, manifest, index))
    with unfinished_work(spec):
        expected = estimate(images, spec.levels, exif=spec.exif)
        BuildSettings.of(images, spec, manifest.per_shard).reconcile(spec)
        shards = split_into_shards(len(images), manifest.per_shard)
        todo = [shard for shard in shards if not shard_matches(images, spec, shard)]
        check_disk_space(spec, expected, todo, pool, destination)
        build_shards(images, spec, expected, todo, pool, destination, progress)
        # The originals may have changed while they were read.
        _refuse(where, manifest, images, shards_difference(spec, shards, index))
        return finish_level(spec, shards, manifest)


def _level(where: str, manifest: Manifest, size: int, quality: int | None) -> Level:
    has = manifest.levels[-1].quality
    if quality is None:
        quality = has
    elif has is None:
        raise UsageError(
            f"quality {quality} does not apply: the cache {where!r} holds raw pixels; remove it"
        )
    return make_levels((size,), quality=95 if quality is None else quality, raw=has is None)[0]


def _refuse(where: str, manifest: Manifest, source: CacheSource, difference: str) -> None:
    """Raise DatasetError if the source has changed."""
    if difference:
        sizes = ",".join(level.name for level in manifest.levels)
        raise DatasetError(
            f"{source.where!r} has changed since the cache {where!r} was built: {difference}",
            hint="update the cache first, with the other options of its build: `feedline cache "
            f"build {shlex.quote(source.where)} {shlex.quote(where)} --sizes {sizes}`",
        )
