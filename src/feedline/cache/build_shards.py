"""Building of shards by worker processes of this machine, or by a Ray cluster.

Guarantees: each shard is built once, even if processes die. Missing disk space is reported before
the build. When a build ends, for any reason, its work ends as well: no partial file is left, and
finished shards are kept.

Relies on: `loader`, whose workers build shards like samples: a worker that dies is replaced, and
its shard is built again. `ray_workers` for clusters, `destination` for the storage.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from rich.filesize import decimal

from feedline.cache.destination import Destination
from feedline.cache.ray_workers import RayWorkers, connect_ray
from feedline.cache.shard import BuiltShard, ExistingCopies, ShardDataset, make_level_folders
from feedline.cache.source import CacheSource
from feedline.cache.spec import Estimate, ShardRange, Spec, count_samples
from feedline.engine.defaults import worker_count
from feedline.errors import FeedlineError, ResourceError, UsageError
from feedline.loader import DataLoader
from feedline.sources.cache_formats import cache_format
from feedline.sources.files import PARTIAL, report_disk_errors
from feedline.sources.manifest import INDEX, MANIFEST

__all__ = [
    "BuildCallback",
    "BuildState",
    "BuildWorkers",
    "build_shards",
    "check_disk_space",
    "open_workers",
    "unfinished_work",
]

_MARGIN = 1.05  # of disk space, as the estimate is from a few images


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


def check_disk_space(
    spec: Spec,
    expected: Estimate,
    todo: Sequence[ShardRange],
    pool: BuildWorkers,
    destination: Destination,
) -> None:
    """Raise ResourceError if the disk is too small for the shards to build.

    With a URL, for those that local workers build at the same time; with Ray, nothing is checked.
    """
    if not destination.is_local:
        if pool.is_remote:
            return
        todo = todo[: pool.count()]
    share = count_samples(todo) / expected.images
    needed_by = [round(size * share) for size in expected.level_bytes]
    needed = sum(needed_by) * _MARGIN
    if cache_format(spec.format).merged_file:
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
    """Build the shards `todo`; `progress` is first called before the first one."""
    done, images = expected.images - count_samples(todo), 0
    make_level_folders(spec)
    destination.publish()
    progress(BuildState(expected, done, 0, pool.count()))
    shards = ShardDataset(source, spec, todo, destination.transfer(pool.is_remote), existing)
    with contextlib.ExitStack() as opened:
        merge = None
        if (format := cache_format(spec.format)).merged_file:
            sizes = [2 * size for size in expected.level_bytes]
            merge = opened.enter_context(format.merger(spec.root, spec.levels, sizes))
        for built in opened.enter_context(pool.build(shards)):
            destination.store_files(built.files)
            if merge is not None:
                merge(built.number)
            images += built.images
            progress(BuildState(expected, done + images, images, pool.count()))


@contextlib.contextmanager
def unfinished_work(spec: Spec) -> Iterator[None]:
    """Context with a folder of unfinished work. At the end partial files are removed, and the
    folders of a build without a finished shard.
    """
    try:
        with report_disk_errors(spec.root):
            spec.unfinished.mkdir(exist_ok=True)
            yield
    finally:
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
