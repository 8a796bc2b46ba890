"""Builds the missing shards of a cache, or of a new resolution.

Guarantees: no partial file is left, however it ends, and finished shards are kept. Missing disk
space is reported before the build.

Relies on: `build_workers` for the processes, `destination` for the storage.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.filesize import decimal

from feedline.cache.atomic_write import PARTIAL, report_disk_errors
from feedline.cache.build_plan import Estimate
from feedline.cache.build_workers import BuildWorkers
from feedline.cache.delivery import make_level_folders
from feedline.cache.destination import Destination
from feedline.cache.settings import ShardRange, Spec
from feedline.cache.shard import ExistingCopies, ShardDataset
from feedline.cache.source import CacheSource
from feedline.cache.writers import LmdbWriter
from feedline.errors import ResourceError
from feedline.sources.cache_layout import INDEX, MANIFEST

__all__ = ["BuildCallback", "BuildState", "build_shards", "check_disk_space", "unfinished_work"]

_MARGIN = 1.05  # of disk space, as the estimate is from a few images


@dataclass(frozen=True)
class BuildState:
    """Progress of a build.

    Args:
        estimate: estimate of the whole build.
        images: number of finished images, including those of an earlier build.
        made: number of images finished by this build.
        processes: number of processes.
    """

    estimate: Estimate
    images: int
    made: int
    processes: int


BuildCallback = Callable[[BuildState], None]


@contextlib.contextmanager
def unfinished_work(spec: Spec) -> Iterator[None]:
    """Context with a folder of unfinished work that removes partial files at the end."""
    try:
        with report_disk_errors(spec.root):
            spec.unfinished.mkdir(exist_ok=True)
            yield
    finally:
        _tidy(spec)


def check_disk_space(
    spec: Spec,
    expected: Estimate,
    todo: Sequence[ShardRange],
    pool: BuildWorkers,
    destination: Destination,
) -> None:
    """Check that the disk can hold the shards to build, or the part that stays on it.

    Raises:
        ResourceError: not enough disk space.
    """
    if not destination.is_local:
        if pool.is_remote:
            return
        todo = todo[: pool.count()]
    share = _images(todo) / expected.images
    needed_by = [round(size * share) for size in expected.level_bytes]
    needed = sum(needed_by) * _MARGIN
    if spec.format == "lmdb":
        needed += max(needed_by)  # of the shards that wait to be added
    free = shutil.disk_usage(spec.root).free
    if needed > free and not destination.is_local:
        raise ResourceError(
            f"{pool.count()} shards of each size, built in parallel before they are uploaded, "
            f"need about {decimal(round(needed))}, but {tempfile.gettempdir()!r} has only "
            f"{decimal(free)} free",
            hint="set $TMPDIR to another folder, or use fewer workers",
        )
    if needed > free:
        sizes = ", ".join(
            f"{level} {decimal(size)}" for level, size in zip(spec.levels, needed_by, strict=True)
        )
        raise ResourceError(
            f"the cache needs about {decimal(round(needed))} ({sizes}), but {spec.root!r} has only "
            f"{decimal(free)} free",
            hint="use fewer or smaller sizes, a lower quality, JPEG instead of raw, or another "
            "disk",
        )


def build_shards(
    source: CacheSource,
    spec: Spec,
    expected: Estimate,
    todo: Sequence[ShardRange],
    pool: BuildWorkers,
    destination: Destination,
    progress: BuildCallback,
    existing: ExistingCopies | None = None,
) -> None:
    """Build shards.

    Args:
        source: source of the images.
        spec: specification of the cache.
        expected: estimate of the build.
        todo: shards to build.
        pool: processes that build them.
        destination: storage of the cache.
        progress: called repeatedly, first before the first shard.
        existing: copies that can be reused.
    """
    done, images = expected.images - _images(todo), 0
    make_level_folders(spec)
    destination.publish()
    progress(BuildState(expected, done, 0, pool.count()))
    shards = ShardDataset(source, spec, todo, destination.delivery(pool.is_remote), existing)
    with contextlib.ExitStack() as opened:
        lmdb = None
        if spec.format == "lmdb":
            sizes = [2 * size for size in expected.level_bytes]
            lmdb = opened.enter_context(LmdbWriter(spec.root, spec.levels, sizes))
        for built in opened.enter_context(pool.build(shards)):
            destination.store_files(built.files)
            if lmdb is not None:
                lmdb.put(built.number)
            images += built.images
            progress(BuildState(expected, done + images, images, pool.count()))


def _images(shards: Sequence[ShardRange]) -> int:
    return sum(shard.stop - shard.start for shard in shards)


def _tidy(spec: Spec) -> None:
    """Remove partial files, and the folders of a build without a finished shard."""
    root = Path(spec.root)
    levels = [root / level.name for level in spec.levels]
    folders = (*levels, root / INDEX, spec.unfinished)
    for partial in chain(root.glob(PARTIAL), *(folder.rglob(PARTIAL) for folder in folders)):
        with contextlib.suppress(OSError):
            partial.unlink()
    if spec.unfinished.is_dir() and not any(spec.unfinished.glob("*.npz")):
        shutil.rmtree(spec.unfinished, ignore_errors=True)
        if spec.adds_level or not (root / MANIFEST).exists():
            for level in levels:
                shutil.rmtree(level, ignore_errors=True)
