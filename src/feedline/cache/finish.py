"""Last step of a build: the shards' records become the index, and the manifest is written.

Guarantees: the manifest is written after everything else is on the disk. Until then the folder is
not a cache, or is the one from before a resolution was added.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from feedline import __version__
from feedline.cache.shard import Columns, encode_name, read_record
from feedline.cache.source import CacheSource
from feedline.cache.spec import ShardRange, Spec
from feedline.sources.cache_formats import cache_format
from feedline.sources.files import write_atomic
from feedline.sources.manifest import COLUMNS, INDEX, MANIFEST, CacheIndex, Level, Manifest
from feedline.system import write_through

__all__ = ["current_fingerprint", "finish", "finish_level"]


Array = np.ndarray[Any, Any]


def finish(
    source: CacheSource, spec: Spec, shards: Sequence[ShardRange], per_shard: int
) -> Manifest:
    """Turn finished shards into a cache. Return its manifest."""
    records, columns = _read_records(spec, shards, "labels", "names", *COLUMNS)
    # Each record counts only its own names.
    before = np.cumsum([0, *(len(record["names"]) for record in records[:-1])])
    counts = [len(record["keys"]) for record in records]
    columns["name_ends"] += np.repeat(before, counts)
    skipped = [tuple(each) for record in records for each in json.loads(bytes(record["skipped"]))]
    label = source.store.label_field
    manifest = Manifest(
        format=spec.format,
        samples=len(columns["keys"]),
        levels=_finished_levels(spec, records),
        classes=None if source.classes is None else tuple(source.classes),
        label=(label.dtype, label.shape),
        exif=spec.exif,
        mode=spec.mode,
        fingerprint=_fingerprint(columns),
        source=(source.kind, source.where),
        skipped=tuple(skipped),
        samples_in_source=len(source),
        per_shard=per_shard,
        digests=_write_index(spec.root, columns),
        feedline=__version__,
    )
    return _complete(spec, manifest)


def finish_level(spec: Spec, shards: Sequence[ShardRange], manifest: Manifest) -> Manifest:
    """Add finished shards of new resolutions to a cache. Return its new manifest."""
    records, columns = _read_records(spec, shards)
    levels = (*manifest.levels, *_finished_levels(spec, records))
    return _complete(
        spec,
        replace(
            manifest,
            levels=tuple(sorted(levels, key=lambda level: level.side)),
            digests={**manifest.digests, **_write_index(spec.root, columns)},
        ),
    )


def _read_records(
    spec: Spec, shards: Sequence[ShardRange], *names: str
) -> tuple[list[dict[str, Array]], dict[str, Array]]:
    """Return the records of all shards, and some of their columns and the levels' joined."""
    records = [read_record(spec, shard.number) for shard in shards]
    names = (*names, *(f"level-{level.name}" for level in spec.levels))
    return records, {name: np.concatenate([record[name] for record in records]) for name in names}


def _finished_levels(spec: Spec, records: Sequence[Columns]) -> tuple[Level, ...]:
    """Return the resolutions with the sizes of their shards."""
    return tuple(
        replace(level, shards=tuple(int(record["shards"][place]) for record in records))
        for place, level in enumerate(spec.levels)
    )


def _write_index(root: str, columns: Mapping[str, Array]) -> dict[str, str]:
    """Write files of the index. Return their digests."""
    folder, digests = Path(root, INDEX), {}
    folder.mkdir(exist_ok=True)
    for name, column in columns.items():
        data = _as_npy(column)
        digests[name] = xxhash.xxh3_64_hexdigest(data)
        write_atomic(folder / f"{name}.npy", data)
    return digests


def _complete(spec: Spec, manifest: Manifest) -> Manifest:
    """Write all files through to the disk, the manifest last."""
    root, index = Path(spec.root), CacheIndex(spec.root, manifest)
    sides = {level.side for level in spec.levels}
    for level in manifest.levels:
        if level.side in sides:
            cache_format(manifest.format).remove_stale(spec.root, manifest, level, index)
    for name in (INDEX, *(level.name for level in spec.levels)):
        for folder, _, files in os.walk(root / name, topdown=False):
            for file in (*files, "."):
                write_through(os.path.join(folder, file))
    write_through(root)
    write_atomic(root / MANIFEST, manifest.as_text().encode())
    write_through(root)  # a folder with neither manifest nor work looks like a foreign one
    # A waiting process may write there at this moment: the next build removes the rest.
    shutil.rmtree(spec.unfinished, ignore_errors=True)
    return manifest


def _as_npy(column: Array) -> bytes:
    whole = io.BytesIO()
    np.save(whole, column, allow_pickle=False)
    return whole.getvalue()


def _fingerprint(columns: Mapping[str, Array]) -> str:
    """Short hash of labels and names."""
    digest = xxhash.xxh3_128(str(columns["labels"].shape).encode())
    for name in ("labels", "names", "name_ends"):
        digest.update(columns[name].tobytes())
    return digest.hexdigest()[:16]


def current_fingerprint(source: CacheSource, manifest: Manifest) -> str:
    """Return the fingerprint that a cache of the source would have now, without skipped images."""
    if (source.store.label_field.dtype, source.store.label_field.shape) != manifest.label:
        return ""
    skipped_before = {key for key, _, _ in manifest.skipped}
    dtype, shape = manifest.label
    keys = [key for key in range(len(source)) if key not in skipped_before]
    names = [encode_name(source.store.key(key)) for key in keys]
    labels = np.array([source.store.label(key) for key in keys], dtype)
    return _fingerprint(
        {
            "labels": labels.reshape(-1, *shape),
            "names": np.frombuffer(b"".join(names), np.uint8),
            "name_ends": np.cumsum([len(name) for name in names], dtype=np.int64),
        }
    )
