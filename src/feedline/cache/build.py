"""Build of a cache, addition of a resolution to a finished one, and repair.

Guarantees: continues an earlier build or addition of the same settings, however it was interrupted.
A build rebuilds only shards whose images have changed, and all if the index is damaged. The cache
does not depend on the processes or machines that build it. During an addition or a repair the other
copies stay readable, and files are replaced atomically; originals that have changed since the build
are refused, so a repaired cache has the bytes of the first build. All copies are made from the
originals. A repair can be repeated if it was interrupted; the LMDB of a resolution is written to a
new file that replaces the old one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cache.damage import Verification, verify
from feedline.cache.destination import open_destination
from feedline.cache.job import (
    BuildCallback,
    CacheJob,
    current_fingerprint,
    open_workers,
    remove_unfinished,
)
from feedline.cache.shard import (
    Columns,
    ExistingCopies,
    damaged_shards,
    encode_name,
    record_name,
    shard_matches,
    source_column,
    write_records,
)
from feedline.cache.source import CacheSource, open_cache_source, open_source
from feedline.cache.spec import (
    SETTINGS,
    Estimate,
    Spec,
    continue_settings,
    count_samples,
    estimate,
    existing_levels,
    make_levels,
    samples_per_shard,
    split_into_shards,
)
from feedline.errors import DatasetError, UsageError
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import mode_layout
from feedline.images.rows import ImageSource
from feedline.sources.cache_formats import CACHE_FORMATS, cache_format
from feedline.sources.files import sync_names
from feedline.sources.manifest import (
    MANIFEST,
    CacheIndex,
    Manifest,
    index_damage,
    is_finished,
    read_manifest,
)
from feedline.system import write_through
from feedline.text import ProgressCallback, shell_command

_COMPARED = {
    "labels": "label",
    "sizes": "size in pixels",
    "stamps": "size or modification time",
}
"""Columns of a cache that must not change if a resolution is added or it is repaired."""


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
    exif: bool | None = None,
    mode: str | None = None,
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
            its size, and is stored without loss: JPEG, PNG and WebP files unchanged, others as PNG.
        format: "webdataset": tar shards; "lmdb": one LMDB per size; "folder": one file per image.
        quality: JPEG quality, 1 to 100, with 4:2:0 chroma subsampling. Default: 95, or that of an
            existing cache of these sizes.
        raw: store pixels instead of JPEGs: about 10 times as large, but no decoding.
        workers: number of processes; "auto" for one per usable core; 0: in this process.
        ray: address of a Ray cluster whose CPUs make the copies: "HOST:PORT"; "auto" for
            $RAY_ADDRESS or a cluster of this machine; "local" starts one here. If Ray is already
            connected, that cluster is used. Default: worker processes.
        on_error: "raise", or "skip": broken images are omitted and listed in the manifest.
        exif: rotate images by their orientation, as `ImageFolder(..., exif=True)`. Default: as the
            source does, if it is an ImageFolder or ImageList; otherwise False.
        mode: Pillow's mode of the copies, which the cache keeps: "RGB", "L" or "I;16"; the last
            needs `raw`. Default: that of the source, if it is an ImageFolder or ImageList;
            otherwise "RGB".
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
    decoding = source.options if isinstance(source, ImageSource) else DecodeOptions()
    exif = decoding.exif if exif is None else exif
    mode = decoding.mode if mode is None else mode
    if mode_layout(mode).dtype != "uint8" and not raw:
        message = f"{mode!r} does not fit into JPEGs, which have 8 bits"
        raise UsageError(message, argument="mode", fix={"raw": True})
    levels = make_levels(sizes, quality=quality, raw=raw)
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
            present = existing_levels(destination.root)
            if quality is None and [(each.side, each.quality is None) for each in present] == [
                (each.side, raw) for each in levels
            ]:
                levels = present
            spec = Spec(destination.root, format, levels, exif, on_error == "skip", mode=mode)
            return build(CacheJob(images, spec, pool, destination), progress)


def build(job: CacheJob, progress: BuildCallback) -> Manifest:
    """Build a cache, or continue a build. `progress` is first called after all checks."""
    source, spec, destination = job.source, job.spec, job.destination
    with job.unfinished_work():
        expected = estimate(source, spec)
        finished = read_manifest(spec.root) if is_finished(spec.root) else None
        each = finished.per_shard if finished else samples_per_shard(expected)
        settings = continue_settings(source, spec, each, finished)
        before = settings.where
        if os.path.realpath(before) != os.path.realpath(source.where):
            if finished and current_fingerprint(source, finished) != finished.fingerprint:
                raise UsageError(
                    f"{spec.root!r} is a cache of {before!r}, but {source.where!r} has other "
                    "images",
                    hint=f"use another folder for its cache, or remove {spec.root!r} first",
                )
            _warn(
                job,
                f"{spec.root!r} has copies of the images in {before!r}, and is completed from "
                f"{source.where!r}: those with the same name, label, size and modification time "
                "are not rebuilt",
            )
        shards = split_into_shards(len(source), settings.per_shard)
        # Nothing of a damaged index is reused, as its new digest would hide the damage.
        sound = None if finished is None or index_damage(spec.root, finished) else finished
        damaged: set[int] = set()
        if sound is not None:
            write_records(spec, sound)
            damaged = damaged_shards(CacheIndex(spec.root, sound))
        todo = [
            shard
            for shard in shards
            if shard.number in damaged or not shard_matches(source, spec, shard)
        ]
        if sound is not None and not todo and sound.samples_in_source == len(source):
            remove_unfinished(spec)
            return sound
        job.check_disk_space(expected, todo)
        # From here on the folder is not a cache until it is finished.
        sync_names(spec.root, [spec.unfinished / SETTINGS])
        if damaged and sound is not None:
            _note_damage(job, sound, damaged)
        Path(spec.root, MANIFEST).unlink(missing_ok=True)
        existing = None
        if sound is not None and destination.is_local and not job.pool.is_remote:
            # Without them, shards are rebuilt to equal bytes.
            existing = ExistingCopies(CacheIndex(spec.root, sound))
        job.build_shards(expected, todo, progress, existing)
        return job.finish(shards, settings.per_shard)


def _warn(job: CacheJob, text: str) -> None:
    warnings.warn(text.replace(job.spec.root, job.destination.name), stacklevel=2)


def _note_damage(job: CacheJob, finished: Manifest, damaged: Collection[int]) -> None:
    """Warn of damaged files that are rebuilt, and remove the damaged databases."""
    spec = job.spec
    _warn(
        job,
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
    """Add copies of one more size to a cache; existing copies are unchanged. `source` is that of
    the cache if it has moved, and must hold the same samples. `quality` is by default that of the
    largest copies; the other arguments and the errors are those of `build_cache`.
    """
    destination = open_destination(root)
    with open_workers(workers, ray) as pool, destination.lock_cache() as manifest:
        where = destination.root
        present = manifest.levels[-1].quality
        if quality is not None and present is None:
            raise UsageError(
                f"quality {quality} does not apply: the cache {where!r} holds raw pixels; remove it"
            )
        quality = present if quality is None else quality
        (level,) = make_levels((size,), quality=quality, raw=present is None)
        spec = Spec.of(manifest, where, level)
        if any(level.side == size for level in manifest.levels):
            if not spec.unfinished.exists():
                raise UsageError(
                    f"the cache {where!r} already has copies of {size} px; it has "
                    + ", ".join(map(str, manifest.levels))
                )
            remove_unfinished(spec)  # interrupted after the resolution was complete
            return manifest
        images = open_cache_source(where, manifest, source)
        index = CacheIndex(where, manifest)
        _refuse_changes(images, index)
        job = CacheJob(images, spec, pool, destination)
        with job.unfinished_work():
            expected = estimate(images, spec)
            continue_settings(images, spec, manifest.per_shard)
            shards = split_into_shards(len(images), manifest.per_shard)
            todo = [shard for shard in shards if not shard_matches(images, spec, shard)]
            job.check_disk_space(expected, todo)
            job.build_shards(expected, todo, progress)
            # The originals may have changed while they were read.
            _refuse_changes(images, index, job.read_records(shards, *_COMPARED)[1])
            return job.finish_level(shards, manifest)


@dataclass(frozen=True)
class Repair:
    """Damage that was found, and number of copies written: all of a shard with damaged ones."""

    verification: Verification
    images: int


def repair_cache(
    root: str | os.PathLike[str],
    *,
    source: Any = None,
    workers: int | str = "auto",
    progress: ProgressCallback = lambda stage, done, total: None,
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
    job: CacheJob, manifest: Manifest, found: Verification, progress: ProgressCallback
) -> int:
    """Build damaged shards again, or all if the index is damaged. Return the number of copies."""
    images, spec, where = job.source, job.spec, job.spec.root
    format = cache_format(manifest.format)
    shards = todo = split_into_shards(manifest.samples_in_source, manifest.per_shard)
    existing = index = None
    if not index_damage(where, manifest):
        index = CacheIndex(where, manifest)
        _refuse_changes(images, index)
        rows = {each.sample for each in found.damaged}
        if job.destination.is_local:
            existing = ExistingCopies(index, rows)
        if not format.merged_file:
            damaged = {int(index.keys[row]) // manifest.per_shard for row in rows}
            damaged |= damaged_shards(index)
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
    with job.unfinished_work():
        remove_unfinished(spec)  # of a repair that was killed
        spec.unfinished.mkdir(exist_ok=True)
        try:
            if todo is not shards:
                write_records(spec, manifest)
            # Other processes may read the existing LMDB.
            apart = replace(spec, root=str(spec.unfinished)) if format.merged_file else spec
            parts = replace(job, spec=apart)
            parts.check_disk_space(expected, todo)
            parts.build_shards(
                expected, todo, lambda done: progress("repairing", done.new_images, total), existing
            )
            index = None  # Windows replaces no mapped file
            if apart is not spec:
                for level in spec.levels:
                    path = Path(level.name, format.merged_file)
                    new, replaced = Path(apart.root, path), Path(where, path)
                    replaced.parent.mkdir(exist_ok=True)
                    write_through(new)
                    os.replace(new, replaced)
                    sync_names(where, [replaced])
            job.finish(shards, manifest.per_shard)
        finally:
            remove_unfinished(spec)
    return total * len(spec.levels)


def _refuse_changes(source: CacheSource, index: CacheIndex, built: Columns | None = None) -> None:
    """Raise a DatasetError if a source, or shards `built` from it, differ from a cache's source."""
    if built is None:
        difference = _source_difference(source, index)
    else:
        difference = _rows_difference(built, index)
    if difference:
        sizes = ",".join(level.name for level in index.manifest.levels)
        raise DatasetError(
            f"{source.where!r} has changed since the cache {index.root!r} was built: {difference}",
            hint="update the cache first, with the other options of its build: `feedline cache "
            f"build {shell_command(source.where, index.root)} --sizes {sizes}`",
        )


def _source_difference(source: CacheSource, index: CacheIndex) -> str:
    """Describe the first difference between a source and the source of a cache; "" if equal.

    No image is read: a Dataset may decode an image to return its label, so its labels are compared
    after the build.
    """
    manifest, label = index.manifest, source.store.label_field
    form = label.dtype, label.shape
    if form != manifest.label:
        return f"its labels are {form}, before {manifest.label}"
    if len(source) != manifest.samples_in_source:
        return f"it has {len(source)} samples, before {manifest.samples_in_source}"
    classes = None if source.classes is None else tuple(source.classes)
    if classes != manifest.classes:
        return f"its classes are {classes}, before {manifest.classes}"
    for key, name, _ in manifest.skipped:
        if source.store.key(key) != name:
            return f"sample {key} is {source.store.key(key)!r}, before {name!r}"
    keys = index.keys.tolist()
    for row, key in enumerate(keys):
        name = encode_name(source.store.key(key)).decode()
        if name != index.name(row):
            return f"sample {key} is {name!r}, before {index.name(row)!r}"
    names = ("stamps",) if source.kind == "dataset" else ("stamps", "labels")
    return _rows_difference({name: source_column(source, name, keys) for name in names}, index)


def _rows_difference(columns: Columns, index: CacheIndex) -> str:
    """Describe the first difference between columns and those of a cache; "" if equal."""
    for name in _COMPARED:
        column = columns.get(name)
        if column is None or not len(column):
            continue
        before = np.array(getattr(index, name))
        form = len(column), -1
        now, then = (
            np.ascontiguousarray(each).view(np.uint8).reshape(form) for each in (column, before)
        )
        differs = (now != then).any(axis=1)  # as bytes: NaN equals itself
        if name == "stamps":  # 0: unknown
            differs &= (column != 0) & (before != 0)
        if differs.any():
            row = int(differs.argmax())
            return (
                f"sample {index.keys[row]}, {index.name(row)!r}, has another {_COMPARED[name]} "
                "than before"
            )
    return ""
