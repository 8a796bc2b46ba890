"""Repair of a damaged cache: the copies that a check finds damaged are made again.

Guarantees: copies that are not damaged stay as they are, and serve all the while; files are
replaced whole; a repair that was interrupted can be repeated. A copy made of the same original by
the same encoder has the bytes that it had.

Relies on: `verify` for what is damaged, `originals` for what it is made of, `unit_maker` for the
work. Tar shards and folders are repaired shard by shard. The LMDB of a level is written anew, into
another file that then replaces it, with the undamaged copies taken from the old one. If a column of
the index that all levels share is damaged, everything is made again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cache.build import build
from feedline.cache.build_plan import BYTES_BESIDE, Estimate, divide
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import fingerprint_now, finish_addition
from feedline.cache.kept import Kept
from feedline.cache.makers import Makers, open_makers
from feedline.cache.open_source import source_of_cache
from feedline.cache.originals import Originals
from feedline.cache.records import record_name, write_records
from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.cache.unit_maker import Progress, check_room, make_units, unfinished_work
from feedline.cache.verify import Verification, file_damage, verify
from feedline.cache.whole_file import names_to_disk
from feedline.errors import DatasetError
from feedline.stores.cache_index import CacheIndex, damaged_columns, load_entries
from feedline.stores.cache_layout import LMDB_FILE, Level, Manifest, read_manifest
from feedline.system import write_through

__all__ = ["Repair", "repair_cache"]

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Repair:
    """A repair that was done.

    Args:
        found: the damage, as `verify` found it.
        images: number of copies written; more than are damaged, as shards are written whole.
    """

    found: Verification
    images: int


@dataclass(frozen=True)
class _Work:
    """What every level's repair needs."""

    manifest: Manifest
    source: Source
    makers: Makers
    destination: Destination
    report: Report


def repair_cache(
    root: str | os.PathLike[str],
    *,
    source: Any = None,
    workers: int | str = "auto",
    progress: Report = lambda stage, done, total: None,
) -> Repair:
    """Make again what is damaged in a cache: copies, shards, databases and the index.

    All copies are checked first. An interrupted repair can be repeated.

    Args:
        root: the cache's folder, or its URL.
        source: what the cache was made of, if that has moved.
        workers: processes; "auto" for the cores that this process may use.
        progress: called with "checking" or "repairing", the number of images done, and of all.

    Raises:
        DatasetError: there is no cache, or its source is gone, lacks images that are needed (they
            are named) or is no longer what the cache was made of.
        ImageError: an original is broken, or was changed since; names it.
        ResourceError: the disk cannot hold the result.
        UsageError: an argument cannot be used, or a build works in the cache.

    Example:
        >>> feedline.repair_cache("train-cache/").found.damaged                   # doctest: +SKIP
    """
    destination = open_destination(root)
    with open_makers(workers, None) as makers:
        destination.check_cache()  # before a lock is put there
        with destination.opened():
            return _repair(root, destination, makers, source, workers, progress)


def _repair(
    root: str | os.PathLike[str],
    destination: Destination,
    makers: Makers,
    source: Any,
    workers: int | str,
    report: Report,
) -> Repair:
    where = destination.root
    manifest = read_manifest(where)
    found = verify(root, workers=workers, progress=lambda *at: report("checking", *at))
    columns = damaged_columns(where, manifest)
    if found.sound and not columns:
        return Repair(found, 0)
    images = source_of_cache(where, manifest, source)
    work = _Work(manifest, images, makers, destination, report)
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
    """Make the damaged copies of a level again; return how many were written.

    Args:
        work: what is repaired.
        level: as the manifest has it.
        rows: the samples whose copies are damaged.
        known: the level's column of the index is sound.
    """
    manifest, destination, where = work.manifest, work.destination, work.destination.root
    alone, index = replace(manifest, levels=(level,)), CacheIndex(where, manifest)
    units = todo = divide(manifest.samples_in_source, manifest.per_shard)
    if known and manifest.format != "lmdb":
        damaged = {int(index.keys[row]) // manifest.per_shard for row in rows}
        damaged |= set(file_damage(where, manifest, level))
        todo = [unit for unit in units if unit.number in damaged]
    kept = Kept(where, alone, rows) if known and destination.keeps else None
    originals = Originals(
        work.source,
        manifest,
        level,
        index,
        _checksums(where, alone, index, known, rows if kept else _rows_of(todo, index)),
    )
    left_out = frozenset(key for key, _, _ in manifest.skipped)
    form = manifest.format, (replace(level, shards=()),), manifest.exif
    spec = Spec(where, *form, repairs=True, left_out=left_out)
    shutil.rmtree(spec.unfinished, ignore_errors=True)  # of a repair that was killed
    with unfinished_work(spec):
        try:
            if todo is not units:
                write_records(spec, alone)
            # Others may read the LMDB that is there.
            apart = replace(spec, root=str(spec.unfinished)) if manifest.format == "lmdb" else spec
            apart.unfinished.mkdir(exist_ok=True)
            expected = _expected(alone)
            check_room(apart, expected, todo, work.makers, destination)
            report = _reporter(work.report, todo)
            make_units(originals, apart, expected, todo, work.makers, destination, report, kept)
            if apart is not spec:
                _put_in_place(apart, spec, units)
            now = read_manifest(where)
            others = tuple(each for each in now.levels if each.side != level.side)
            finish_addition(spec, units, replace(now, levels=others))
        finally:
            if kept is not None:  # what was read of an LMDB that was replaced is not read again
                kept.close()
            shutil.rmtree(spec.unfinished, ignore_errors=True)
    return _images(todo)


def _rows_of(units: Sequence[Unit], index: CacheIndex) -> list[int]:
    """The samples of some units."""
    edges = [np.searchsorted(index.keys, [unit.start, unit.stop]).tolist() for unit in units]
    return [row for first, last in edges for row in range(first, last)]


def _checksums(
    where: str, alone: Manifest, index: CacheIndex, known: bool, rows: Collection[int]
) -> dict[int, int]:
    """The checksums of some copies of a level by their keys; 0 if the index does not know them."""
    entries = load_entries(where, alone.levels[0], alone.samples) if known else None
    return {
        int(index.keys[row]): 0 if entries is None else int(entries[row, 3]) for row in sorted(rows)
    }


def _put_in_place(made: Spec, spec: Spec, units: Sequence[Unit]) -> None:
    """Replace the LMDB of a level by one that was made in another folder."""
    (level,) = spec.levels
    for unit in units:
        os.replace(Path(made.root, record_name(made, unit.number)), _record(spec, unit))
    path = Path(spec.root, level.name, LMDB_FILE)
    path.parent.mkdir(exist_ok=True)
    new = Path(made.root, level.name, LMDB_FILE)
    write_through(new)
    os.replace(new, path)
    names_to_disk(spec.root, [path])


def _record(spec: Spec, unit: Unit) -> Path:
    return Path(spec.root, record_name(spec, unit.number))


def _make_all(work: _Work) -> int:
    """Make all copies and the index again; return how many copies were written."""
    manifest, destination, source = work.manifest, work.destination, work.source
    if fingerprint_now(source, manifest) != manifest.fingerprint:
        raise DatasetError(
            f"{source.where!r} no longer has the names and labels of the images that the cache "
            f"{destination.root!r} was made of, and the cache's index, which tells what is "
            "missing, is damaged: bring the images back, or remove the cache and build it again"
        )
    levels = tuple(replace(level, shards=()) for level in manifest.levels)
    skips = bool(manifest.skipped)
    spec = Spec(destination.root, manifest.format, levels, manifest.exif, skip_broken=skips)
    shutil.rmtree(spec.unfinished, ignore_errors=True)
    if manifest.format == "lmdb":  # a damaged one must not be written to
        for level in levels:
            Path(destination.root, level.name, LMDB_FILE).unlink(missing_ok=True)
    units = divide(len(source), manifest.per_shard)
    report = _reporter(work.report, units)
    build(source, spec, work.makers, destination, report, keep_manifest=True)
    return _images(units) * len(levels)


def _expected(alone: Manifest) -> Estimate:
    """What a level takes, which is known of one that was made."""
    (level,), images = alone.levels, max(1, alone.samples_in_source)
    each = max(0.0, level.bytes / images - BYTES_BESIDE)
    return Estimate(alone.levels, images, looked_at=0, image_bytes=(each,), seconds=0.0)


def _reporter(report: Report, todo: Sequence[Unit]) -> Callable[[Progress], None]:
    total = _images(todo)
    return lambda progress: report("repairing", progress.made, total)


def _images(units: Sequence[Unit]) -> int:
    return sum(unit.stop - unit.start for unit in units)
