"""Repair of a damaged cache: damaged copies are made again.

Guarantees: intact copies stay unchanged and readable. Files are replaced atomically. An interrupted
repair can be repeated. A copy of the same original by the same encoder has equal bytes.

Relies on: `verify` for the damage, `repair_source` for the originals, `build_shards` for the work.
Tar shards and folders are repaired shard by shard. The LMDB of a resolution is written to a new
file that replaces the old one, with the intact copies of the old one. If a column of the index that
all resolutions share is damaged, everything is rebuilt.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cache.atomic_write import sync_names
from feedline.cache.build import build
from feedline.cache.build_plan import BYTES_BESIDE, Estimate, split_into_shards
from feedline.cache.build_shards import BuildState, build_shards, check_disk_space, unfinished_work
from feedline.cache.build_workers import BuildWorkers, open_workers
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import current_fingerprint, finish_level
from feedline.cache.open_source import open_cache_source
from feedline.cache.records import record_name, write_records
from feedline.cache.repair_source import RepairSource
from feedline.cache.settings import ShardRange, Spec
from feedline.cache.shard import ExistingCopies
from feedline.cache.source import CacheSource
from feedline.cache.verify import Verification, file_damage, verify
from feedline.errors import DatasetError
from feedline.sources.cache_index import CacheIndex, damaged_columns, load_entries
from feedline.sources.cache_layout import LMDB_FILE, Level, Manifest, read_manifest
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


@dataclass(frozen=True)
class _Work:
    """Common arguments of the repairs of all resolutions."""

    manifest: Manifest
    source: CacheSource
    pool: BuildWorkers
    destination: Destination
    report: RepairCallback


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
        source: source of the cache if it has moved.
        workers: number of processes; "auto" for one per usable core.
        progress: called with "checking" or "repairing", the number of images done, and the total.

    Raises:
        DatasetError: there is no cache, or its source is missing, lacks needed images (they are
            named) or has changed.
        ImageError: an original is broken or has changed; names it.
        ResourceError: not enough disk space.
        UsageError: an argument is invalid, or a build is running in the cache.

    Example:
        >>> feedline.repair_cache("train-cache/").verification.damaged            # doctest: +SKIP
    """
    destination = open_destination(root)
    with open_workers(workers, None) as pool:
        destination.check_cache()  # before a lock is created there
        with destination.lock():
            return _repair(root, destination, pool, source, workers, progress)


def _repair(
    root: str | os.PathLike[str],
    destination: Destination,
    pool: BuildWorkers,
    source: Any,
    workers: int | str,
    report: RepairCallback,
) -> Repair:
    where = destination.root
    manifest = read_manifest(where)
    found = verify(root, workers=workers, progress=lambda *at: report("checking", *at))
    columns = damaged_columns(where, manifest)
    if found.is_sound and not columns:
        return Repair(found, 0)
    images = open_cache_source(where, manifest, source)
    work = _Work(manifest, images, pool, destination, report)
    shared = set(columns) - {f"level-{level.name}" for level in manifest.levels}
    if shared:
        return Repair(found, _make_all(work))
    made = 0
    for level in manifest.levels:
        rows = {each.sample for each in found.damaged if each.level == level.side}
        known = f"level-{level.name}" not in columns
        if rows or not known or file_damage(where, manifest, level):
            made += _repair_level(work, level, rows, known=known)
    return Repair(found, made)


def _repair_level(work: _Work, level: Level, rows: Collection[int], *, known: bool) -> int:
    """Rebuild the damaged copies of a resolution. Return the number of written copies.

    Args:
        work: common arguments.
        level: resolution of the manifest.
        rows: samples with damaged copies.
        known: True if the resolution's column of the index is intact.
    """
    manifest, destination, where = work.manifest, work.destination, work.destination.root
    alone, index = replace(manifest, levels=(level,)), CacheIndex(where, manifest)
    shards = todo = split_into_shards(manifest.samples_in_source, manifest.per_shard)
    if known and manifest.format != "lmdb":
        damaged = {int(index.keys[row]) // manifest.per_shard for row in rows}
        damaged |= set(file_damage(where, manifest, level))
        todo = [shard for shard in shards if shard.number in damaged]
    existing = ExistingCopies(where, alone, rows) if known and destination.is_local else None
    originals = RepairSource(
        work.source,
        manifest,
        level,
        index,
        _checksums(where, alone, index, known, rows if existing else _rows_of(todo, index)),
    )
    skipped_before = frozenset(key for key, _, _ in manifest.skipped)
    form = manifest.format, (replace(level, shards=()),), manifest.exif
    spec = Spec(where, *form, repairs_level=True, skipped_before=skipped_before)
    shutil.rmtree(spec.unfinished, ignore_errors=True)  # of a repair that was killed
    with unfinished_work(spec):
        try:
            if todo is not shards:
                write_records(spec, alone)
            # Other processes may read the existing LMDB.
            apart = replace(spec, root=str(spec.unfinished)) if manifest.format == "lmdb" else spec
            apart.unfinished.mkdir(exist_ok=True)
            expected = _estimate(alone)
            check_disk_space(apart, expected, todo, work.pool, destination)
            report = _reporter(work.report, todo)
            build_shards(originals, apart, expected, todo, work.pool, destination, report, existing)
            if apart is not spec:
                _put_in_place(apart, spec, shards)
            now = read_manifest(where)
            others = tuple(each for each in now.levels if each.side != level.side)
            finish_level(spec, shards, replace(now, levels=others))
        finally:
            if existing is not None:  # the replaced LMDB is not read again
                existing.close()
            shutil.rmtree(spec.unfinished, ignore_errors=True)
    return _images(todo)


def _rows_of(shards: Sequence[ShardRange], index: CacheIndex) -> list[int]:
    """Return the samples of some shards."""
    edges = [np.searchsorted(index.keys, [shard.start, shard.stop]).tolist() for shard in shards]
    return [row for first, last in edges for row in range(first, last)]


def _checksums(
    where: str, alone: Manifest, index: CacheIndex, known: bool, rows: Collection[int]
) -> dict[int, int]:
    """Return checksums of copies by their keys; 0 if the index does not have them."""
    entries = load_entries(where, alone.levels[0], alone.samples) if known else None
    return {
        int(index.keys[row]): 0 if entries is None else int(entries[row, 3]) for row in sorted(rows)
    }


def _put_in_place(made: Spec, spec: Spec, shards: Sequence[ShardRange]) -> None:
    """Replace the LMDB of a resolution by one that was built in another folder."""
    (level,) = spec.levels
    for shard in shards:
        os.replace(Path(made.root, record_name(made, shard.number)), _record(spec, shard))
    path = Path(spec.root, level.name, LMDB_FILE)
    path.parent.mkdir(exist_ok=True)
    new = Path(made.root, level.name, LMDB_FILE)
    write_through(new)
    os.replace(new, path)
    sync_names(spec.root, [path])


def _record(spec: Spec, shard: ShardRange) -> Path:
    return Path(spec.root, record_name(spec, shard.number))


def _make_all(work: _Work) -> int:
    """Rebuild all copies and the index. Return the number of written copies."""
    manifest, destination, source = work.manifest, work.destination, work.source
    if current_fingerprint(source, manifest) != manifest.fingerprint:
        raise DatasetError(
            f"the names or labels of the images in {source.where!r} have changed since the cache "
            f"{destination.root!r} was built, and its damaged index does not tell what is missing",
            hint="restore the images, or remove the cache and build it again",
        )
    levels = tuple(replace(level, shards=()) for level in manifest.levels)
    skips = bool(manifest.skipped)
    spec = Spec(destination.root, manifest.format, levels, manifest.exif, skip_broken=skips)
    shutil.rmtree(spec.unfinished, ignore_errors=True)
    if manifest.format == "lmdb":  # a damaged one must not be written to
        for level in levels:
            Path(destination.root, level.name, LMDB_FILE).unlink(missing_ok=True)
    shards = split_into_shards(len(source), manifest.per_shard)
    report = _reporter(work.report, shards)
    build(source, spec, work.pool, destination, report, keep_manifest=True)
    return _images(shards) * len(levels)


def _estimate(alone: Manifest) -> Estimate:
    """Return the size of a finished resolution as an estimate."""
    (level,), images = alone.levels, max(1, alone.samples_in_source)
    each = max(0.0, level.bytes / images - BYTES_BESIDE)
    return Estimate(alone.levels, images, looked_at=0, image_bytes=(each,), seconds=0.0)


def _reporter(report: RepairCallback, todo: Sequence[ShardRange]) -> Callable[[BuildState], None]:
    total = _images(todo)
    return lambda progress: report("repairing", progress.made, total)


def _images(shards: Sequence[ShardRange]) -> int:
    return sum(shard.stop - shard.start for shard in shards)
