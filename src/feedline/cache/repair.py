"""Repair of a damaged cache: damaged copies are made again.

Guarantees: intact copies stay unchanged and readable. Files are replaced atomically. An interrupted
repair can be repeated. A copy of the same original by the same encoder has equal bytes.

Relies on: `verify` for the damage, `build_shards` for the work.
Tar shards and folders are repaired shard by shard. The LMDB of a resolution is written to a new
file that replaces the old one, with the intact copies of the old one. If a column of the index that
all resolutions share is damaged, everything is rebuilt.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cache.build import build
from feedline.cache.build_shards import (
    BuildState,
    BuildWorkers,
    build_shards,
    check_disk_space,
    open_workers,
    unfinished_work,
)
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import current_fingerprint, finish_level
from feedline.cache.shard import ExistingCopies, encode_name, record_name, write_records
from feedline.cache.source import CacheSource, open_cache_source
from feedline.cache.spec import (
    BYTES_BESIDE,
    Estimate,
    ShardRange,
    Spec,
    count_samples,
    split_into_shards,
)
from feedline.cache.verify import Verification, verify
from feedline.errors import DatasetError, ImageError
from feedline.order.batch_spec import Field
from feedline.sources.atomic_write import sync_names
from feedline.sources.cache_formats import cache_format
from feedline.sources.cache_index import CacheIndex, checksum, damaged_columns, load_entries
from feedline.sources.manifest import Level, Manifest, read_manifest
from feedline.sources.store import Pixels
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
            where = destination.root
            manifest = read_manifest(where)
            found = verify(root, workers=workers, progress=lambda *at: progress("checking", *at))
            columns = damaged_columns(where, manifest)
            if found.is_sound and not columns:
                return Repair(found, 0)
            repair = _Repair(
                manifest=manifest,
                source=open_cache_source(where, manifest, source),
                pool=pool,
                destination=destination,
                progress=progress,
            )
            return Repair(found, repair.run(found, set(columns)))


@dataclass(frozen=True, kw_only=True)
class _Repair:
    """Repair of one cache; the builder's lock is held."""

    manifest: Manifest
    source: CacheSource
    pool: BuildWorkers
    destination: Destination
    progress: RepairCallback

    def run(self, found: Verification, columns: Collection[str]) -> int:
        """Rebuild damaged copies and columns of the index. Return the number of written copies."""
        where, levels = self.destination.root, self.manifest.levels
        format = cache_format(self.manifest.format)
        if set(columns) - {f"level-{level.name}" for level in levels}:
            return self._rebuild_all()
        written = 0
        for level in levels:
            rows = {each.sample for each in found.damaged if each.level == level.side}
            has_column = f"level-{level.name}" not in columns
            if rows or not has_column or format.file_damage(where, level):
                written += self._rebuild_level(level, rows, has_column=has_column)
        return written

    def _rebuild_level(self, level: Level, rows: Collection[int], *, has_column: bool) -> int:
        """Rebuild the damaged copies of a resolution.

        Args:
            level: resolution of the manifest.
            rows: samples with damaged copies.
            has_column: True if the resolution's column of the index is intact.
        """
        manifest, where = self.manifest, self.destination.root
        alone, index = replace(manifest, levels=(level,)), CacheIndex(where, manifest)
        shards = todo = split_into_shards(manifest.samples_in_source, manifest.per_shard)
        if has_column and not cache_format(manifest.format).merged_file:
            damaged = {int(index.keys[row]) // manifest.per_shard for row in rows}
            damaged |= set(cache_format(manifest.format).file_damage(where, level))
            todo = [shard for shard in shards if shard.number in damaged]
        existing = None
        if has_column and self.destination.is_local:
            existing = ExistingCopies(where, alone, rows)
        keys = index.keys.tolist()
        if existing is None:  # all samples of the shards are read
            edges = [np.searchsorted(index.keys, (each.start, each.stop)).tolist() for each in todo]
            rows = [row for first, stop in edges for row in range(first, stop)]
        entries = load_entries(where, level, manifest.samples) if has_column else None
        checksums = {
            keys[row]: 0 if entries is None else int(entries[row, 3]) for row in sorted(rows)
        }
        originals = _Originals(self.source, manifest, level, index, checksums)
        spec = Spec(
            where,
            manifest.format,
            (replace(level, shards=()),),
            manifest.exif,
            repairs_level=True,
            mode=manifest.mode,
            skipped_before=frozenset(key for key, _, _ in manifest.skipped),
        )
        shutil.rmtree(spec.unfinished, ignore_errors=True)  # of a repair that was killed
        with unfinished_work(spec):
            try:
                if todo is not shards:
                    write_records(spec, alone)
                # Other processes may read the existing LMDB.
                merges = bool(cache_format(manifest.format).merged_file)
                apart = replace(spec, root=str(spec.unfinished)) if merges else spec
                apart.unfinished.mkdir(exist_ok=True)
                self._build(originals, apart, alone, todo, existing)
                if apart is not spec:
                    _replace_database(apart, spec, shards)
                now = read_manifest(where)
                others = tuple(each for each in now.levels if each.side != level.side)
                finish_level(spec, shards, replace(now, levels=others))
            finally:
                if existing is not None:  # the replaced LMDB is not read again
                    existing.close()
                shutil.rmtree(spec.unfinished, ignore_errors=True)
        return count_samples(todo)

    def _build(
        self,
        originals: CacheSource,
        spec: Spec,
        alone: Manifest,
        todo: Sequence[ShardRange],
        existing: ExistingCopies | None,
    ) -> None:
        (level,), images = alone.levels, max(1, alone.samples_in_source)
        each = max(0.0, level.bytes / images - BYTES_BESIDE)
        expected = Estimate(alone.levels, images, image_bytes=(each,), seconds=0.0)
        check_disk_space(spec, expected, todo, self.pool, self.destination)
        report = self._reporter(todo)
        build_shards(originals, spec, expected, todo, self.pool, self.destination, report, existing)

    def _rebuild_all(self) -> int:
        """Rebuild all copies and the index."""
        manifest, source, where = self.manifest, self.source, self.destination.root
        if current_fingerprint(source, manifest) != manifest.fingerprint:
            raise DatasetError(
                f"the names or labels of the images in {source.where!r} have changed since the "
                f"cache {where!r} was built, and its damaged index does not tell what is missing",
                hint="restore the images, or remove the cache and build it again",
            )
        levels = tuple(replace(level, shards=()) for level in manifest.levels)
        skips = bool(manifest.skipped)
        form = manifest.format, levels, manifest.exif
        spec = Spec(where, *form, skip_broken=skips, mode=manifest.mode)
        shutil.rmtree(spec.unfinished, ignore_errors=True)
        # A damaged file must not be written to.
        if name := cache_format(manifest.format).merged_file:
            for level in levels:
                Path(where, level.name, name).unlink(missing_ok=True)
        shards = split_into_shards(len(source), manifest.per_shard)
        report = self._reporter(shards)
        build(source, spec, self.pool, self.destination, report, keep_manifest=True)
        return count_samples(shards) * len(levels)

    def _reporter(self, todo: Sequence[ShardRange]) -> Callable[[BuildState], None]:
        total = count_samples(todo)
        return lambda state: self.progress("repairing", state.new_images, total)


def _replace_database(built: Spec, spec: Spec, shards: Sequence[ShardRange]) -> None:
    """Replace the LMDB of a resolution by one that was built in another folder."""
    (level,) = spec.levels
    for shard in shards:
        name = record_name(built, shard.number)
        os.replace(Path(built.root, name), Path(spec.root, record_name(spec, shard.number)))
    name = cache_format(spec.format).merged_file
    path = Path(spec.root, level.name, name)
    path.parent.mkdir(exist_ok=True)
    new = Path(built.root, level.name, name)
    write_through(new)
    os.replace(new, path)
    sync_names(spec.root, [path])


_MAX_NAMED = 5


class _Originals(CacheSource):
    """Source for rebuilding some copies of a resolution. Pickled and sent to every worker.

    Args:
        source: current source of the cache.
        manifest: manifest of the cache.
        level: resolution that is rebuilt.
        index: index of the cache.
        checksums: checksums of the copies by the keys of their samples; 0 if unknown.

    Raises:
        DatasetError: originals are missing; names them.
    """

    def __init__(
        self,
        source: CacheSource,
        manifest: Manifest,
        level: Level,
        index: CacheIndex,
        checksums: Mapping[int, int],
    ) -> None:
        self._source, self._manifest, self._level, self._index = source, manifest, level, index
        self._checksums = checksums
        self._left_out = {key: name for key, name, _ in manifest.skipped}
        self.kind, self.where = manifest.source
        self.classes = manifest.classes
        self.label_field = Field("label", *manifest.label)
        self._numbers = self._found(checksums)

    def _found(self, keys: Collection[int]) -> dict[int, int]:
        """Return the samples' current numbers in the source by their keys."""
        names = {key: self.name(key) for key in keys}
        count = len(self._source)
        if all(key < count and self._source_name(key) == name for key, name in names.items()):
            return {key: key for key in keys}
        places = {self._source_name(number): number for number in range(count)}
        missing = [name for name in names.values() if name not in places]
        if missing:
            names_text = ", ".join(map(repr, missing[:_MAX_NAMED]))
            more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
            raise DatasetError(
                f"{self._source.where!r} lacks {len(missing)} of {len(names)} images that the "
                f"repair needs: {names_text}{more}",
                hint="restore them, or pass the folder that holds them now",
                fix={"source": "DIR"},
            )
        return {key: places[name] for key, name in names.items()}

    def _source_name(self, number: int) -> str:
        return encode_name(self._source.name(number)).decode()

    def __len__(self) -> int:
        return self._manifest.samples_in_source

    def prefetch(self, samples: Iterable[int]) -> None:
        """Prefetch the originals of samples."""
        self._source.prefetch([self._numbers[key] for key in samples if key in self._numbers])

    def read(self, sample: int) -> bytes | Pixels:
        """Return an original, encoded or as pixels."""
        if sample not in self._numbers:
            raise ImageError("its copy was damaged during the repair: run the repair again")
        number = self._numbers[sample]
        image = self._source.read(number)
        had, has = self.stamp(sample), self._source.stamp(number)
        if had and has and had != has:  # a moved file may have another stamp: compare its copy
            self._check_unchanged(sample, image)
        return image

    def _check_unchanged(self, sample: int, image: bytes | Pixels) -> None:
        manifest = self._manifest
        form = manifest.format, (self._level,), manifest.exif
        encoder = Spec("", *form, mode=manifest.mode).encoder()
        (copy,) = encoder.make_copies(image).images
        label = np.asarray(self.label(sample), self.label_field.dtype)
        if checksum(copy, sample, label) != self._checksums[sample]:
            raise ImageError(
                f"it has changed in {self._source.where!r} since the cache was built: update the "
                "cache with `feedline cache build`"
            )

    def _row(self, key: int) -> int | None:
        """Return the row of a sample in the cache; None if it was skipped."""
        row = int(np.searchsorted(self._index.keys, key))
        return row if row < len(self._index.keys) and self._index.keys[row] == key else None

    def label(self, sample: int) -> Any:
        """Return the label in the cache."""
        return self._index.labels[self._row(sample)]

    def name(self, sample: int) -> str:
        """Return the name in the cache."""
        row = self._row(sample)
        return self._left_out.get(sample, "") if row is None else self._index.name(row)

    def path(self, sample: int) -> str:
        """Return the path of the original's local file, or ""."""
        return self._source.path(self._numbers[sample]) if sample in self._numbers else ""

    def stamp(self, sample: int) -> int:
        """Return the stamp in the cache."""
        row = self._row(sample)
        return 0 if row is None else int(self._index.stamps[row])
