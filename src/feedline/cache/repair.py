"""Repair of a damaged cache: shards with damaged copies are built again from the originals.

Guarantees: intact copies stay unchanged and readable. Files are replaced atomically. An interrupted
repair can be repeated. Originals that have changed since the build are refused, so the repaired
cache has the bytes of the first build.

Relies on: `verify` for the damage, `build_shards` for the work.
The LMDB of a resolution is written to a new file that replaces the old one. If the index is
damaged, everything is built again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.cache.build import refuse_changes
from feedline.cache.destination import open_destination
from feedline.cache.job import CacheJob, current_fingerprint, open_workers
from feedline.cache.shard import ExistingCopies, record_name, write_records
from feedline.cache.source import open_cache_source
from feedline.cache.spec import Estimate, Spec, count_samples, split_into_shards
from feedline.cache.verify import Verification, verify
from feedline.errors import DatasetError
from feedline.sources.cache_formats import cache_format
from feedline.sources.files import sync_names
from feedline.sources.manifest import CacheIndex, Manifest, index_damage
from feedline.system import write_through

__all__ = ["Repair", "repair_cache"]

RepairCallback = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Repair:
    """Result of a repair.

    Args:
        verification: the damage that was found.
        images: number of copies written; more than were damaged, as shards are written whole.
    """

    verification: Verification
    images: int


def repair_cache(
    root: str | os.PathLike[str],
    *,
    source: Any = None,
    workers: int | str = "auto",
    progress: RepairCallback = lambda stage, done, total: None,
) -> Repair:
    """Rebuild damaged copies, shards, databases and index files of a cache.

    All copies are checked first. An interrupted repair can be repeated.

    Args:
        root: folder or URL of the cache.
        source: source of the cache if it has moved; must hold the same samples.
        workers: number of processes; "auto" for one per usable core.
        progress: called with "checking" or "repairing", the number of images done, and the total.

    Raises:
        DatasetError: there is no cache, or its source is missing or has changed.
        ImageError: an original is broken; names it.
        ResourceError: not enough disk space.
        UsageError: an argument is invalid, or a build is running in the cache.

    Example:
        >>> feedline.repair_cache("train-cache/").verification.damaged            # doctest: +SKIP
    """
    destination = open_destination(root)
    with open_workers(workers, None) as pool, destination.lock_cache() as manifest:
        found = verify(root, workers=workers, progress=lambda *at: progress("checking", *at))
        if found.is_sound and not index_damage(destination.root, manifest):
            return Repair(found, 0)
        images = open_cache_source(destination.root, manifest, source)
        spec = Spec.of(manifest, destination.root)
        job = CacheJob(images, spec, pool, destination)
        return Repair(found, _rebuild(job, manifest, found, progress))


def _rebuild(
    job: CacheJob, manifest: Manifest, found: Verification, progress: RepairCallback
) -> int:
    """Build damaged shards again, or all if the index is damaged. Return the number of copies."""
    images, spec, where = job.source, job.spec, job.spec.root
    format = cache_format(manifest.format)
    shards = todo = split_into_shards(manifest.samples_in_source, manifest.per_shard)
    existing = None
    if not index_damage(where, manifest):
        index = CacheIndex(where, manifest)
        refuse_changes(where, manifest, images, index)
        rows = {each.sample for each in found.damaged}
        if job.destination.is_local:
            existing = ExistingCopies(where, manifest, rows)
        if not format.merged_file:
            damaged = {int(index.keys[row]) // manifest.per_shard for row in rows}
            for level in manifest.levels:
                damaged |= format.damaged_shards(where, manifest, level)
            todo = [shard for shard in shards if shard.number in damaged]
    elif current_fingerprint(images, manifest) != manifest.fingerprint:
        raise DatasetError(
            f"the names or labels of the images in {images.where!r} have changed since the cache "
            f"{where!r} was built, and its damaged index does not tell what is missing",
            hint="restore the images, or remove the cache and build it again",
        )
    total, count = count_samples(todo), max(1, manifest.samples_in_source)
    sizes = tuple(each.bytes / count for each in manifest.levels)
    expected = Estimate(spec.levels, count, copy_bytes=sizes, seconds=0.0)
    shutil.rmtree(spec.unfinished, ignore_errors=True)  # of a repair that was killed
    with job.unfinished_work():
        try:
            if todo is not shards:
                write_records(spec, manifest)
            # Other processes may read the existing LMDB.
            apart = replace(spec, root=str(spec.unfinished)) if format.merged_file else spec
            apart.unfinished.mkdir(exist_ok=True)
            parts = replace(job, spec=apart)
            parts.check_disk_space(expected, todo)
            parts.build_shards(
                expected, todo, lambda done: progress("repairing", done.new_images, total), existing
            )
            if apart is not spec:
                for shard in shards:
                    name = record_name(spec, shard.number)
                    os.replace(Path(apart.root, name), Path(where, name))
                for level in spec.levels:
                    _replace_database(apart.root, where, level.name, format.merged_file)
            job.finish(shards, manifest.per_shard)
        finally:
            if existing is not None:  # the replaced LMDB is not read again
                existing.close()
            shutil.rmtree(spec.unfinished, ignore_errors=True)
    return total * len(spec.levels)


def _replace_database(built: str, root: str, level: str, name: str) -> None:
    """Replace the LMDB of a resolution by one that was built in another folder."""
    new, path = Path(built, level, name), Path(root, level, name)
    path.parent.mkdir(exist_ok=True)
    write_through(new)
    os.replace(new, path)
    sync_names(root, [path])
