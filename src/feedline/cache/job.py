"""Steps that all jobs share: worker processes, disk space, shards, index and manifest.

Guarantees: each shard is built once, even if processes die. Missing disk space is reported before
the build. When a job ends, for any reason, its work ends as well: no partial file is left, and
finished shards are kept. The manifest is written after everything else is on the disk. Until then
the folder is not a cache, or is the one from before a resolution was added.

Relies on: `loader`, whose workers build shards like samples: a worker that dies is replaced, and
its shard is built again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xxhash

from feedline import __version__
from feedline.cache.destination import Destination
from feedline.cache.ray_workers import RayWorkers, connect_ray
from feedline.cache.shard import (
    BuiltShard,
    Columns,
    ExistingCopies,
    ShardDataset,
    make_level_folders,
    read_record,
    source_column,
)
from feedline.cache.source import CacheSource
from feedline.cache.spec import BuildSettings, Estimate, ShardRange, Spec, count_samples
from feedline.engine.defaults import worker_count
from feedline.errors import FeedlineError, ResourceError, UsageError
from feedline.loader import DataLoader
from feedline.sources.cache_folder import refuse_link, remove_files, remove_owned
from feedline.sources.cache_formats import cache_format, incomplete_files
from feedline.sources.files import report_disk_errors, write_atomic
from feedline.sources.manifest import (
    BUILD_FILES,
    COLUMNS,
    INDEX,
    MANIFEST,
    CacheIndex,
    Level,
    Manifest,
    is_finished,
    read_manifest,
)
from feedline.system import write_through
from feedline.text import as_bytes

_MARGIN = 1.05  # of disk space, as the estimate is from a few images
_HASHED = ("labels", "names", "name_ends")  # columns of the fingerprint


@dataclass(frozen=True)
class BuildState:
    """Progress of a build: numbers of finished images, including those of an earlier build, of
    those finished by this one, and of processes.
    """

    estimate: Estimate
    images: int
    new_images: int
    processes: int


BuildCallback = Callable[[BuildState], None]


@dataclass(frozen=True)
class _LocalWorkers:
    """Worker processes of this machine; with 0, this process."""

    processes: int
    is_remote = False

    def count(self) -> int:
        """Return the number of shards that are built at a time."""
        return max(1, self.processes)

    @contextmanager
    def build(self, shards: ShardDataset) -> Iterator[Iterable[BuiltShard]]:
        """Build shards, which are returned as they finish."""
        loader: DataLoader[BuiltShard | FeedlineError] = DataLoader(
            shards,  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=_identity,
            num_workers=min(self.processes, len(shards)),
            in_order=False,
        )
        with loader:
            yield map(_raise_error, loader)


BuildWorkers: TypeAlias = "_LocalWorkers | RayWorkers"
"""Processes that build shards."""


def open_workers(workers: int | str, ray: str | None) -> AbstractContextManager[BuildWorkers]:
    """Open worker processes of this machine, or the Ray cluster at an address."""
    if ray is None:
        return nullcontext(_LocalWorkers(worker_count(workers)))
    if workers != "auto":
        raise UsageError(
            f"{workers!r} is a number of local processes, but Ray ({ray!r}) uses all CPUs of the "
            "cluster; remove one of them",
            argument="workers",
        )
    return connect_ray(ray)


def _identity(built: Any) -> Any:
    return built


def _raise_error(built: BuiltShard | FeedlineError) -> BuiltShard:
    if isinstance(built, FeedlineError):
        raise built
    return built


@dataclass(frozen=True)
class CacheJob:
    """A build, an addition of a resolution, or a repair, at a locked destination."""

    source: CacheSource
    spec: Spec
    pool: BuildWorkers
    destination: Destination

    @contextmanager
    def unfinished_work(self) -> Iterator[None]:
        """Context with a folder of unfinished work. At its end partial files are removed, and all
        files of a build without a finished shard.

        Raises a UsageError if it would write to a folder that is a link or is not the cache's.
        """
        spec, root = self.spec, Path(self.spec.root)
        self._check_folders()
        try:
            with report_disk_errors(spec.root):
                spec.unfinished.mkdir(exist_ok=True)
                yield
        finally:
            files = cache_format(spec.format).file_names
            remove_files(incomplete_files(spec.root, spec.format))
            if spec.unfinished.is_dir() and not any(spec.unfinished.glob("*.npz")):
                if spec.adds_level or not (root / MANIFEST).exists():
                    for level in spec.levels:
                        # A full disk may leave a class's folder without a file.
                        folders = files.rpartition("/")[0]
                        remove_owned(root / level.name, files, folders=folders)
                        with contextlib.suppress(OSError):  # others put files there, or it is gone
                            (root / level.name).rmdir()
                remove_unfinished(spec)

    def _check_folders(self) -> None:
        """Raise a UsageError if a folder to write to is a link, or is not recorded as the cache's
        in the manifest or in the settings of an unfinished build.
        """
        spec, recorded = self.spec, {self.spec.unfinished.name}
        if is_finished(spec.root):
            recorded |= {INDEX, *(level.name for level in read_manifest(spec.root).levels)}
        if settings := BuildSettings.read(spec.unfinished):
            recorded |= {INDEX, *(Level.of(level).name for level in settings.levels)}
        for name in (*(level.name for level in spec.levels), INDEX, spec.unfinished.name):
            path = os.path.join(spec.root, name)
            refuse_link(path)
            if os.path.lexists(path) and (name not in recorded or not os.path.isdir(path)):
                raise UsageError(
                    f"{path!r} exists, but is not a folder of the cache; its files would be mixed "
                    "with the cache's",
                    hint="move it to another place, or use another folder for the cache",
                )

    def check_disk_space(self, expected: Estimate, todo: Sequence[ShardRange]) -> None:
        """Raise ResourceError if the disk is too small for the shards to build: with a URL, for
        those that local workers build at the same time; with Ray, nothing is checked.
        """
        spec, parallel, is_local = self.spec, self.pool.count(), self.destination.is_local
        if not is_local:
            if self.pool.is_remote:
                return
            todo = todo[:parallel]
        share = count_samples(todo) / expected.images
        needed_by = [round(size * share) for size in expected.level_bytes]
        needed = sum(needed_by) * _MARGIN
        if cache_format(spec.format).merged_file:
            needed += max(needed_by)  # of the shards that wait to be added
        free = shutil.disk_usage(spec.root).free
        if needed <= free:
            return
        what, place = "the cache needs", spec.root
        hint = "use fewer or smaller sizes, a lower quality, JPEG instead of raw, or another disk"
        if not is_local:
            what = f"{parallel} shards of each size, built before they are uploaded, need"
            place = tempfile.gettempdir()
            hint = "set $TMPDIR to another folder, or use fewer workers"
        each = zip(spec.levels, needed_by, strict=True)
        sizes = ", ".join(f"{level} {as_bytes(size)}" for level, size in each)
        raise ResourceError(
            f"{what} about {as_bytes(needed)} ({sizes}), but {place!r} has only {as_bytes(free)} "
            "free",
            hint=hint,
        )

    def build_shards(
        self,
        expected: Estimate,
        todo: Sequence[ShardRange],
        progress: BuildCallback,
        existing: ExistingCopies | None = None,
    ) -> None:
        """Build shards, and close `existing`; `progress` is first called before the first one."""
        spec, pool, destination = self.spec, self.pool, self.destination
        done, images = expected.images - count_samples(todo), 0
        make_level_folders(spec)
        destination.publish()
        progress(BuildState(expected, done, 0, pool.count()))
        transfer = destination.transfer(pool.is_remote)
        shards = ShardDataset(self.source, spec, todo, transfer, existing)
        with contextlib.ExitStack() as opened:
            merge = None
            if existing is not None:
                opened.callback(existing.close)
            if (format := cache_format(spec.format)).merged_file:
                sizes = [2 * size for size in expected.level_bytes]
                merge = opened.enter_context(format.merger(spec.root, spec.levels, sizes))
            for built in opened.enter_context(pool.build(shards)):
                destination.store_files(built.files)
                if merge is not None:
                    merge(built.number)
                images += built.images
                progress(BuildState(expected, done + images, images, pool.count()))

    def finish(self, shards: Sequence[ShardRange], per_shard: int) -> Manifest:
        """Turn finished shards into a cache. Return its manifest."""
        records, columns = self.read_records(shards, "labels", "names", *COLUMNS)
        # Each record counts only its own names.
        before = np.cumsum([0, *(len(record["names"]) for record in records[:-1])])
        columns["name_ends"] += np.repeat(before, [len(record["keys"]) for record in records])
        skipped = [each for record in records for each in json.loads(bytes(record["skipped"]))]
        source, spec, label = self.source, self.spec, self.source.store.label_field
        return self._complete(
            Manifest(
                format=spec.format,
                samples=len(columns["keys"]),
                levels=self._finished_levels(records),
                classes=None if source.classes is None else tuple(source.classes),
                label=(label.dtype, label.shape),
                exif=spec.exif,
                mode=spec.mode,
                fingerprint=_fingerprint(columns),
                source=(source.kind, source.where),
                skipped=tuple(map(tuple, skipped)),
                samples_in_source=len(source),
                per_shard=per_shard,
                digests=self._write_index(columns),
                feedline=__version__,
            )
        )

    def finish_level(self, shards: Sequence[ShardRange], manifest: Manifest) -> Manifest:
        """Add finished shards of new resolutions to a cache. Return its new manifest."""
        records, columns = self.read_records(shards)
        levels = (*manifest.levels, *self._finished_levels(records))
        return self._complete(
            replace(
                manifest,
                levels=tuple(sorted(levels, key=lambda level: level.side)),
                digests={**manifest.digests, **self._write_index(columns)},
            )
        )

    def read_records(
        self, shards: Sequence[ShardRange], *names: str
    ) -> tuple[list[Columns], dict[str, Any]]:
        """Return the records of all shards, and some of their columns and the levels' joined."""
        records: list[Columns] = [read_record(self.spec, shard.number) for shard in shards]
        names = (*names, *(f"level-{level.name}" for level in self.spec.levels))
        return records, {name: np.concatenate([each[name] for each in records]) for name in names}

    def _finished_levels(self, records: Sequence[Columns]) -> tuple[Level, ...]:
        """Return the resolutions with the sizes of their shards."""
        return tuple(
            replace(level, shards=tuple(int(record["shards"][place]) for record in records))
            for place, level in enumerate(self.spec.levels)
        )

    def _write_index(self, columns: Columns) -> dict[str, str]:
        """Write files of the index. Return their digests."""
        folder, digests = Path(self.spec.root, INDEX), {}
        folder.mkdir(exist_ok=True)
        for name, column in columns.items():
            data = io.BytesIO()
            np.save(data, column, allow_pickle=False)
            digests[name] = xxhash.xxh3_64_hexdigest(data.getbuffer())
            write_atomic(folder / f"{name}.npy", data.getbuffer())
        return digests

    def _complete(self, manifest: Manifest) -> Manifest:
        """Write all files through to the disk, the manifest last."""
        spec, root = self.spec, Path(self.spec.root)
        index, sides = CacheIndex(spec.root, manifest), {level.side for level in spec.levels}
        for level in manifest.levels:
            if level.side in sides:
                cache_format(manifest.format).remove_stale(index, level)
        for name in (INDEX, *(level.name for level in spec.levels)):
            for folder, _, files in os.walk(root / name, topdown=False):
                for file in (*files, "."):
                    write_through(os.path.join(folder, file))
        write_through(root)
        write_atomic(root / MANIFEST, manifest.as_text().encode())
        write_through(root)  # a folder with neither manifest nor work looks like a foreign one
        # A waiting process may write there at this moment: the next build removes the rest.
        remove_unfinished(spec)
        return manifest


def remove_unfinished(spec: Spec) -> None:
    """Remove the files of unfinished work, and its folder unless others put files there."""
    files = cache_format(spec.format).file_names
    remove_owned(spec.unfinished, rf"{BUILD_FILES}|\d+/(?:{files})", folders=r"\d+")
    with contextlib.suppress(OSError):
        spec.unfinished.rmdir()


def _fingerprint(columns: Columns) -> str:
    """Short hash of labels and names."""
    digest = xxhash.xxh3_128(str(columns["labels"].shape).encode())
    for name in _HASHED:
        digest.update(columns[name].tobytes())
    return digest.hexdigest()[:16]


def current_fingerprint(source: CacheSource, manifest: Manifest) -> str:
    """Return the fingerprint that a cache of the source would have now, without skipped images."""
    if (source.store.label_field.dtype, source.store.label_field.shape) != manifest.label:
        return ""
    skipped = {key for key, _, _ in manifest.skipped}
    keys = [key for key in range(len(source)) if key not in skipped]
    return _fingerprint({name: source_column(source, name, keys) for name in _HASHED})
