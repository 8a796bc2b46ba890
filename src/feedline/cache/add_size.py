"""Addition of a resolution to a finished cache.

Guarantees: copies are made from the originals. The cache's other resolutions stay readable, and the
new one becomes readable when it is complete. An interrupted addition is continued. Originals that
have changed since the build are refused.

Relies on: `destination` for storage, `build_shards` for the work, `shard` for the records of
finished shards, `finish` for the index.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.cache.build_shards import (
    BuildCallback,
    build_shards,
    check_disk_space,
    open_workers,
    unfinished_work,
)
from feedline.cache.destination import open_destination
from feedline.cache.finish import finish_level
from feedline.cache.level_encoder import DEFAULT_JPEG_QUALITY
from feedline.cache.shard import Columns, encode_name, read_record, shard_matches
from feedline.cache.source import CacheSource, open_cache_source
from feedline.cache.spec import (
    ShardRange,
    Spec,
    continue_settings,
    estimate,
    make_levels,
    split_into_shards,
)
from feedline.errors import DatasetError, UsageError
from feedline.sources.manifest import CacheIndex, Level, Manifest

__all__ = ["add_size", "refuse_changes"]


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
        level = _level(where, manifest, size, quality)
        skipped_before = {key: why for key, _, why in manifest.skipped}
        form = manifest.format, (level,), manifest.exif
        spec = Spec(
            where, *form, adds_level=True, skipped_before=skipped_before, mode=manifest.mode
        )
        if any(level.side == size for level in manifest.levels):
            if not spec.unfinished.exists():
                raise UsageError(
                    f"the cache {where!r} already has copies of {size} px; it has "
                    + ", ".join(map(str, manifest.levels))
                )
            shutil.rmtree(spec.unfinished)  # interrupted after the resolution was complete
            return manifest
        images = open_cache_source(where, manifest, source)
        index = CacheIndex(where, manifest)
        refuse_changes(where, manifest, images, index)
        with unfinished_work(spec):
            expected = estimate(images, spec)
            continue_settings(images, spec, manifest.per_shard)
            shards = split_into_shards(len(images), manifest.per_shard)
            todo = [shard for shard in shards if not shard_matches(images, spec, shard)]
            check_disk_space(spec, expected, todo, pool, destination)
            build_shards(images, spec, expected, todo, pool, destination, progress)
            # The originals may have changed while they were read.
            _refuse(where, manifest, images, _shards_difference(spec, shards, index))
            return finish_level(spec, shards, manifest)


def _level(where: str, manifest: Manifest, size: int, quality: int | None) -> Level:
    has = manifest.levels[-1].quality
    if quality is None:
        quality = has
    elif has is None:
        raise UsageError(
            f"quality {quality} does not apply: the cache {where!r} holds raw pixels; remove it"
        )
    quality = DEFAULT_JPEG_QUALITY if quality is None else quality
    return make_levels((size,), quality=quality, raw=has is None)[0]


def refuse_changes(where: str, manifest: Manifest, source: CacheSource, index: CacheIndex) -> None:
    """Raise a DatasetError if a source differs from the source of a cache."""
    _refuse(where, manifest, source, _source_difference(source, manifest, index))


def _refuse(where: str, manifest: Manifest, source: CacheSource, difference: str) -> None:
    """Raise DatasetError if the source has changed."""
    if difference:
        sizes = ",".join(level.name for level in manifest.levels)
        raise DatasetError(
            f"{source.where!r} has changed since the cache {where!r} was built: {difference}",
            hint="update the cache first, with the other options of its build: `feedline cache "
            f"build {shlex.quote(source.where)} {shlex.quote(where)} --sizes {sizes}`",
        )


_COMPARED = {
    "labels": "label",
    "sizes": "size in pixels",
    "stamps": "size or modification time",
}


def _source_difference(source: CacheSource, manifest: Manifest, index: CacheIndex) -> str:
    """Describe the first difference between a source and the source of a cache; "" if equal.

    No image is read: a Dataset may decode an image to return its label, so its labels are compared
    after the build.
    """
    form = source.store.label_field.dtype, source.store.label_field.shape
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
    columns = {"stamps": np.array([source.store.stamp(key) for key in keys], np.uint64)}
    if source.kind != "dataset":
        labels = np.array([source.store.label(key) for key in keys], form[0])
        columns["labels"] = labels.reshape(-1, *form[1])
    return _rows_difference(columns, index, 0)


def _shards_difference(spec: Spec, shards: Sequence[ShardRange], index: CacheIndex) -> str:
    """Describe the first difference between finished shards and a cache; "" if equal."""
    first = 0
    for shard in shards:
        record = read_record(spec, shard.number)
        columns = {name: record[name] for name in _COMPARED}
        if difference := _rows_difference(columns, index, first):
            return difference
        first += len(record["keys"])
    return ""


def _rows_difference(columns: Columns, index: CacheIndex, first: int) -> str:
    """Describe the first difference between columns and the rows of a cache from `first`."""
    for name, column in columns.items():
        if not len(column):
            continue
        before = np.array(getattr(index, name)[first : first + len(column)])
        # Compared as bytes: NaN equals itself.
        differs = (_bytes(column) != _bytes(before)).any(axis=1)
        if name == "stamps":  # 0: unknown
            differs &= (column != 0) & (before != 0)
        if differs.any():
            row = first + int(differs.argmax())
            return (
                f"sample {index.keys[row]}, {index.name(row)!r}, has another {_COMPARED[name]} "
                "than before"
            )
    return ""


def _bytes(column: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of each row."""
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
