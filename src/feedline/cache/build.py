"""Building a cache: look, ask whether it fits, make the units, finish.

Guarantees: goes on where an earlier build of the same settings was broken off, whatever broke it
off; makes only those shards anew whose images have changed; one build at a time works in a folder;
what is there before the end is never taken for a cache.

Relies on: `loader`, whose workers make the units: a worker that dies is replaced, and its unit is
made once more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from feedline.cache.build_plan import Estimate, divide, estimate, levels_of, samples_per_shard
from feedline.cache.finish import finish
from feedline.cache.kept import Kept
from feedline.cache.lmdb_writer import LmdbWriter
from feedline.cache.lock import LOCK, only_builder
from feedline.cache.open_source import open_source
from feedline.cache.records import unit_matches, write_records
from feedline.cache.settings import Settings, Spec, Unit
from feedline.cache.source import Source
from feedline.cache.unit import Units
from feedline.errors import ResourceError, UsageError
from feedline.loader import DataLoader
from feedline.loader.checks import worker_count
from feedline.stores.cache_layout import (
    MANIFEST,
    UNFINISHED,
    CacheFormat,
    Level,
    Manifest,
    is_cache,
    read_manifest,
)

__all__ = ["Progress", "build_cache"]

_SPARE = 1.05  # of the disk: the estimate is of a few images


@dataclass(frozen=True)
class Progress:
    """How far a build has come.

    Args:
        estimate: what is to be made.
        images: how many are done, those of an earlier build included.
        made: how many of them this build made.
    """

    estimate: Estimate
    images: int
    made: int


def build_cache(
    source: Any,
    root: str | os.PathLike[str],
    sizes: Sequence[int],
    *,
    format: CacheFormat = "webdataset",
    quality: int = 95,
    raw: bool = False,
    workers: int | str = "auto",
    on_error: str = "raise",
    exif: bool = False,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Manifest:
    """Make smaller copies of all images, which `feedline.ImageFolder(root)` reads.

    Args:
        source: a folder of class folders, tar shards of WebDataset, Parquet files with an image
            column, or a map-style Dataset of (image, label).
        root: the cache's folder; made if it is missing.
        sizes: the shorter sides of the copies in pixels, e.g. (128, 192, 256). An image that is
            smaller keeps its size.
        format: "webdataset": tar shards; "lmdb": one LMDB a size; "folder": a file an image.
        quality: of the JPEGs, 1 to 100; their colours are subsampled (4:2:0), as is usual.
        raw: keep pixels instead of JPEGs: about 10 times as large, and nothing to decode.
        workers: processes; "auto" for the cores that this process may use; 0: in this process.
        on_error: "raise", or "skip": broken images are left out, and listed in the manifest.
        exif: turn images upright by their Exif orientation, as `ImageFolder(..., exif=True)` does.
        progress: called again and again.

    Returns:
        what the cache holds.

    Raises:
        DatasetError: the source holds no images.
        ImageError: one is broken, and on_error is "raise"; names it.
        ResourceError: the disk cannot hold the result.
        UsageError: an argument cannot be used, the folder is not empty and no cache, or another
            build works in it.

    Example:
        >>> feedline.build_cache("train/", "train-cache/", (128, 256))            # doctest: +SKIP
    """
    levels = levels_of(sizes, quality=quality, raw=raw)
    if on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise" or "skip", got {on_error!r}')
    if format not in get_args(CacheFormat):
        raise UsageError(f"format must be webdataset, lmdb or folder, got {format!r}")
    processes = worker_count(workers)
    where = os.path.abspath(os.path.expanduser(os.fspath(root)))
    images = open_source(source)
    _check_folder(where, images)
    spec = Spec(where, format, levels, exif, on_error == "skip")
    os.makedirs(os.path.join(where, UNFINISHED), exist_ok=True)
    with only_builder(where), _tidy(where, levels):
        return _build(images, spec, processes, progress)


def _build(
    source: Source, spec: Spec, workers: int, progress: Callable[[Progress], None]
) -> Manifest:
    expected = estimate(source, spec.levels, exif=spec.exif)
    finished = _finished(source, spec)
    each = finished.per_shard if finished else samples_per_shard(expected)
    settings = Settings.of(source, spec, each).agreed(spec.root)
    units = divide(len(source), settings.per_shard)
    if finished is not None:
        write_records(spec.root, finished)
    todo = [unit for unit in units if not unit_matches(source, spec, unit)]
    if finished is not None and not todo and finished.samples_in_source == len(source):
        shutil.rmtree(os.path.join(spec.root, UNFINISHED))
        return finished
    done = len(source) - sum(unit.stop - unit.start for unit in todo)
    share = 1 - done / len(source)
    _check_room(spec, [round(size * share) for size in expected.level_bytes])
    # From here on the folder is no cache until it is finished.
    Path(spec.root, MANIFEST).unlink(missing_ok=True)
    for level in spec.levels:
        os.makedirs(os.path.join(spec.root, level.name), exist_ok=True)
    progress(Progress(expected, done, 0))
    made = 0
    with contextlib.ExitStack() as opened:
        put: Callable[[int], None] | None = None
        if spec.format == "lmdb":
            sizes = [2 * size for size in expected.level_bytes]
            put = opened.enter_context(LmdbWriter(spec.root, spec.levels, sizes)).put
        kept = None if finished is None else Kept(spec.root, finished)
        for number, images in opened.enter_context(_made(source, spec, todo, workers, kept)):
            if put is not None:
                put(number)
            made += images
            progress(Progress(expected, done + made, made))
    return finish(source, spec, units, settings.per_shard)


def _made(
    source: Source, spec: Spec, todo: Sequence[Unit], workers: int, kept: Kept | None
) -> DataLoader[tuple[int, int]]:
    """Makes the units by worker processes, as they come."""
    return DataLoader(
        Units(source, spec, todo, kept),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=min(workers, len(todo)),
        in_order=False,
    )


def _finished(source: Source, spec: Spec) -> Manifest | None:
    """The manifest of a finished cache of the same settings that is there, if one is.

    Raises:
        UsageError: it is of other settings.
    """
    if not os.path.exists(os.path.join(spec.root, MANIFEST)):
        return None
    found = read_manifest(spec.root)
    had = (found.format, [str(level) for level in found.levels], found.exif)
    wanted = (spec.format, [str(level) for level in spec.levels], spec.exif)
    if had != wanted:
        raise UsageError(
            f"{spec.root!r} is a cache already, {found.format} of {', '.join(had[1])}"
            f"{', upright' * found.exif}, and {spec.format} of {', '.join(wanted[1])}"
            f"{', upright' * spec.exif} was asked for; add a level with `feedline cache add-size`, "
            "or name another folder"
        )
    return found


def _check_folder(root: str, source: Source) -> None:
    inside = os.path.join(root, "").startswith(os.path.join(source.where, ""))
    if source.kind != "dataset" and inside:
        raise UsageError(
            f"the cache {root!r} would lie in its source {source.where!r} and become a part of it; "
            "name a folder elsewhere"
        )
    if os.path.isdir(root) and {*os.listdir(root)} - {LOCK} and not is_cache(root):
        raise UsageError(
            f"{root!r} is not empty, and it is no cache of feedline's; name a new folder, or empty "
            "this one"
        )


def _check_room(spec: Spec, level_bytes: Sequence[int]) -> None:
    needed = sum(level_bytes) * _SPARE
    if spec.format == "lmdb":
        needed += max(level_bytes)  # of what waits to go in
    free = shutil.disk_usage(spec.root).free
    if needed > free:
        sizes = ", ".join(
            f"{level} {size / 1e9:.2f} GB"
            for level, size in zip(spec.levels, level_bytes, strict=True)
        )
        raise ResourceError(
            f"the cache needs about {needed / 1e9:.2f} GB ({sizes}), and {spec.root!r} has "
            f"{free / 1e9:.2f} GB free; choose fewer or smaller sizes, a lower quality, JPEG "
            "instead of raw, or another disk"
        )


@contextlib.contextmanager
def _tidy(root: str, levels: Sequence[Level]) -> Iterator[None]:
    """Leave no half-written files behind, and no folder of a build that has done nothing."""
    try:
        yield
    finally:
        for folder, _, files in os.walk(root):
            for name in files:
                if name.endswith(".partial"):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, name))
        unfinished = Path(root, UNFINISHED)
        if not any(unfinished.glob("*.npz")):
            shutil.rmtree(unfinished, ignore_errors=True)
            for level in levels:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(root, level.name))  # where nothing is in it
