"""Build of a cache: estimate, check disk space, build shards, finish.

Guarantees: continues an earlier build of the same settings, however it was interrupted. Rebuilds
only shards whose images have changed, and all if the index is damaged. The cache does not depend on
the processes or machines that build it.

Relies on: `destination` for storage, `build_shards` for the work, `shard` for the records of
finished shards, `finish` for the index.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from feedline.cache.build_shards import (
    BuildCallback,
    BuildWorkers,
    build_shards,
    check_disk_space,
    open_workers,
    unfinished_work,
)
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import current_fingerprint, finish
from feedline.cache.level_encoder import DEFAULT_JPEG_QUALITY
from feedline.cache.shard import ExistingCopies, record_name, shard_matches, write_records
from feedline.cache.source import CacheSource, open_source
from feedline.cache.spec import (
    SETTINGS,
    Spec,
    continue_settings,
    estimate,
    is_same_source,
    keep_qualities,
    make_levels,
    samples_per_shard,
    split_into_shards,
)
from feedline.errors import UsageError
from feedline.images.codec_registry import mode_layout
from feedline.sources.cache_format_base import CACHE_FORMATS
from feedline.sources.cache_formats import cache_format
from feedline.sources.files import sync_names
from feedline.sources.manifest import MANIFEST, Manifest, index_damage, read_manifest

__all__ = ["build", "build_cache"]


def build_cache(
    source: Any,
    root: str | os.PathLike[str],
    sizes: Sequence[int],
    *,
    format: str = "webdataset",
    quality: int | None = None,
    raw: bool = False,
    workers: int | str = "auto",
    ray: str | None = None,
    on_error: str = "raise",
    exif: bool = False,
    mode: str = "RGB",
    progress: BuildCallback = lambda progress: None,
) -> Manifest:
    """Build resized copies of all images, which `feedline.ImageFolder(root)` reads.

    Args:
        source: a folder of class folders, tar shards of WebDataset, Parquet files with an image
            column, or a map-style Dataset of (image, label). A path, or a URL supported by fsspec,
            such as "s3://bucket/train".
        root: folder of the cache, created if missing. Or a URL, "s3://bucket/train-cache"; then the
            format must be webdataset.
        sizes: shorter sides of the copies in pixels, e.g. (128, 192, 256). A smaller image keeps
            its size.
        format: "webdataset": tar shards; "lmdb": one LMDB per size; "folder": one file per image.
        quality: JPEG quality, 1 to 100, with 4:2:0 chroma subsampling. Default: 95, or that of an
            existing cache of these sizes.
        raw: store pixels instead of JPEGs: about 10 times as large, but no decoding.
        workers: number of processes; "auto" for one per usable core; 0: in this process.
        ray: address of a Ray cluster whose CPUs make the copies: "HOST:PORT"; "auto" for
            $RAY_ADDRESS or a cluster of this machine; "local" starts one here. If Ray is already
            connected, that cluster is used. Default: worker processes.
        on_error: "raise", or "skip": broken images are omitted and listed in the manifest.
        exif: rotate images by their Exif orientation, as `ImageFolder(..., exif=True)`.
        mode: Pillow's mode of the copies, which the cache keeps: "RGB", "L" or "I;16"; the last
            needs `raw`.
        progress: called repeatedly.

    Returns:
        Manifest of the cache.

    Raises:
        DatasetError: the source holds no images, or a store is unreachable.
        ImageError: an image is broken, and `on_error` is "raise"; names it.
        ResourceError: not enough disk space.
        UsageError: an argument is invalid, the folder is not empty and not a cache, another build
            is running, or there is no such cluster.
        WorkerError: a shard repeatedly ends the process that builds it.

    Example:
        >>> feedline.build_cache("train/", "train-cache/", (128, 256))            # doctest: +SKIP
        >>> feedline.build_cache("s3://b/train", "s3://b/cache", (128, 256))      # doctest: +SKIP
    """
    if raw and quality is not None:
        raise UsageError(
            f"{quality!r} is a JPEG quality, but raw=True stores pixels", argument="quality"
        )
    if mode_layout(mode).dtype != "uint8" and not raw:
        message = f"{mode!r} does not fit into JPEGs, which have 8 bits"
        raise UsageError(message, argument="mode", fix={"raw": True})
    set_quality = DEFAULT_JPEG_QUALITY if quality is None else quality
    levels = make_levels(sizes, quality=set_quality, raw=raw)
    if on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise" or "skip", got {on_error!r}')
    if format not in CACHE_FORMATS:
        raise UsageError(
            f"must be one of {', '.join(CACHE_FORMATS)}, got {format!r}", argument="format"
        )
    destination = open_destination(root)
    with open_workers(workers, ray) as pool:
        images = open_source(source)
        destination.check_available(images, format)
        with destination.lock():
            if quality is None and not raw:
                levels = keep_qualities(destination.root, levels)
            spec = Spec(destination.root, format, levels, exif, on_error == "skip", mode=mode)
            return build(images, spec, pool, destination, progress)


def build(
    source: CacheSource,
    spec: Spec,
    pool: BuildWorkers,
    destination: Destination,
    progress: BuildCallback,
) -> Manifest:
    """Build a cache at a locked destination, or continue a build; see `build_cache`. `progress` is
    first called after all checks and before any shard is built.
    """
    with unfinished_work(spec):
        expected = estimate(source, spec)
        finished = _find_finished(source, spec, destination)
        if finished is not None:  # may be left by a build that stopped after writing the manifest
            (spec.unfinished / SETTINGS).unlink(missing_ok=True)
        each = finished.per_shard if finished else samples_per_shard(expected)
        settings = continue_settings(source, spec, each)
        if not is_same_source((settings.source, settings.where), source):
            _warn(
                destination,
                f"{spec.root!r} holds an unfinished build of {settings.where!r}, which is "
                f"continued with {source.where!r}: copies of images with the same name, label, "
                "size and modification time are not rebuilt",
            )
        shards = split_into_shards(len(source), settings.per_shard)
        # Nothing of a damaged index is reused, as its new digest would hide the damage.
        sound = None if finished is None or index_damage(spec.root, finished) else finished
        damaged: set[int] = set()
        if sound is not None:
            write_records(spec, sound)
            format = cache_format(sound.format)
            for level in sound.levels:
                damaged |= format.damaged_shards(spec.root, sound, level)
        todo = [
            shard
            for shard in shards
            if shard.number in damaged or not shard_matches(source, spec, shard)
        ]
        if sound is not None and not todo and sound.samples_in_source == len(source):
            shutil.rmtree(spec.unfinished, ignore_errors=True)
            return sound
        check_disk_space(spec, expected, todo, pool, destination)
        # From here on the folder is not a cache until it is finished.
        sync_names(spec.root, [spec.unfinished / "settings.json"])
        if damaged and sound is not None:
            _note_damage(destination, spec, sound, damaged)
        Path(spec.root, MANIFEST).unlink(missing_ok=True)
        existing = None
        if sound is not None and destination.is_local and not pool.is_remote:
            # Without them, shards are rebuilt to equal bytes.
            existing = ExistingCopies(spec.root, sound)
        build_shards(source, spec, expected, todo, pool, destination, progress, existing)
        return finish(source, spec, shards, settings.per_shard)


def _warn(destination: Destination, text: str) -> None:
    warnings.warn(text.replace(destination.root, destination.name), stacklevel=2)


def _note_damage(
    destination: Destination, spec: Spec, finished: Manifest, damaged: Collection[int]
) -> None:
    """Warn of damaged files that are rebuilt, and remove the damaged databases."""
    _warn(
        destination,
        f"the cache {spec.root!r} is damaged: files of {len(damaged)} of its "
        f"{len(finished.levels[0].shards)} shards are missing or have another size, and are "
        f"rebuilt. `feedline cache verify {spec.root}` checks all copies",
    )
    if name := cache_format(spec.format).merged_file:  # a truncated one must not be written to
        for shard in damaged:
            Path(spec.root, record_name(spec, shard)).unlink(missing_ok=True)
        for level in finished.levels:
            if cache_format(finished.format).file_damage(spec.root, level):
                Path(spec.root, level.name, name).unlink(missing_ok=True)


def _check_source(
    source: CacheSource, spec: Spec, finished: Manifest, destination: Destination
) -> None:
    """Check that a cache is not replaced by one of another source; warn if the source has moved."""
    kind, where = finished.source
    if is_same_source(finished.source, source):
        return
    if kind != source.kind or current_fingerprint(source, finished) != finished.fingerprint:
        raise UsageError(
            f"{spec.root!r} is a cache of {where!r} ({kind}), but {source.where!r} ({source.kind}) "
            "has other images",
            hint=f"use another folder for its cache, or remove {spec.root!r} first",
        )
    _warn(
        destination,
        f"{spec.root!r} was built from {where!r}, and {source.where!r} has images of the same "
        "names and labels: the cache is updated from these",
    )


def _find_finished(source: CacheSource, spec: Spec, destination: Destination) -> Manifest | None:
    """Return the manifest of an existing finished cache with the same settings, or None."""
    if not os.path.exists(os.path.join(spec.root, MANIFEST)):
        return None
    manifest = read_manifest(spec.root)
    before, now = (
        f"{each.format} cache of {', '.join(map(str, each.levels))}, {each.mode}"
        + " with exif" * each.exif
        for each in (manifest, spec)
    )
    if before != now:
        raise UsageError(
            f"{spec.root!r} already is a {before}, but a {now} was requested",
            hint="add a size with `feedline cache add-size`, omit the quality to keep the existing "
            "ones, or use another folder",
        )
    _check_source(source, spec, manifest, destination)
    return manifest
