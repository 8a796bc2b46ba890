"""The last step of a build: the units' records become the index, and the manifest is written.

Guarantees: the manifest comes when all else is on the disk; until then the folder is no cache, or
the one that it was before a level was added.
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
from feedline.cache.records import Columns, kept_name, read_record
from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.cache.stale import remove_stale
from feedline.cache.whole_file import write_whole
from feedline.stores.cache_index import COLUMNS
from feedline.stores.cache_layout import INDEX, MANIFEST, Level, Manifest
from feedline.system import write_through

__all__ = ["fingerprint_now", "finish", "finish_addition"]

Array = np.ndarray[Any, Any]


def finish(source: Source, spec: Spec, units: Sequence[Unit], per_shard: int) -> Manifest:
    """Make a cache of what the units have made: its manifest."""
    records = [read_record(spec, unit.number) for unit in units]
    columns = {
        name: np.concatenate([record[name] for record in records])
        for name in ("labels", "names", *COLUMNS, *(f"level-{level.name}" for level in spec.levels))
    }
    # Each record counts the bytes of its own names.
    before = np.cumsum([0, *(len(record["names"]) for record in records[:-1])])
    counts = [len(record["keys"]) for record in records]
    columns["name_ends"] += np.repeat(before, counts)
    skipped = [tuple(said) for record in records for said in json.loads(bytes(record["skipped"]))]
    label = source.label_field
    manifest = Manifest(
        format=spec.format,
        samples=len(columns["keys"]),
        levels=_levels_made(spec, records),
        classes=None if source.classes is None else tuple(source.classes),
        label=(label.dtype, label.shape),
        exif=spec.exif,
        fingerprint=_fingerprint(columns),
        source=(source.kind, source.where),
        skipped=tuple(skipped),
        samples_in_source=len(source),
        per_shard=per_shard,
        digests=_write_index(spec.root, columns),
        feedline=__version__,
    )
    return _complete(spec, manifest)


def finish_addition(spec: Spec, units: Sequence[Unit], manifest: Manifest) -> Manifest:
    """Make the levels that the units have made a part of a finished cache: its new manifest."""
    records = [read_record(spec, unit.number) for unit in units]
    columns = {
        name: np.concatenate([record[name] for record in records])
        for name in (f"level-{level.name}" for level in spec.levels)
    }
    levels = (*manifest.levels, *_levels_made(spec, records))
    return _complete(
        spec,
        replace(
            manifest,
            levels=tuple(sorted(levels, key=lambda level: level.side)),
            digests={**manifest.digests, **_write_index(spec.root, columns)},
        ),
    )


def _levels_made(spec: Spec, records: Sequence[Columns]) -> tuple[Level, ...]:
    """The levels with the sizes of their shards."""
    return tuple(
        replace(level, shards=tuple(int(record["shards"][place]) for record in records))
        for place, level in enumerate(spec.levels)
    )


def _write_index(root: str, columns: Mapping[str, Array]) -> dict[str, str]:
    """Write files of the index: their digests."""
    folder, digests = Path(root, INDEX), {}
    folder.mkdir(exist_ok=True)
    for name, column in columns.items():
        data = _as_npy(column)
        digests[name] = xxhash.xxh3_64_hexdigest(data)
        write_whole(folder / f"{name}.npy", data)
    return digests


def _complete(spec: Spec, manifest: Manifest) -> Manifest:
    """Bring all to the disk, and the manifest last."""
    root = Path(spec.root)
    if not spec.repairs:
        remove_stale(spec.root, manifest, [level.side for level in spec.levels])
    for name in (INDEX, *(level.name for level in spec.levels)):
        for folder, _, files in os.walk(root / name, topdown=False):
            for file in (*files, "."):
                write_through(os.path.join(folder, file))
    write_through(root)
    write_whole(root / MANIFEST, manifest.as_text().encode())
    write_through(root)  # a folder with neither of the two is taken for somebody else's
    # One who waits for it may write there at this moment: the next build removes what is left.
    shutil.rmtree(spec.unfinished, ignore_errors=True)
    return manifest


def _as_npy(column: Array) -> bytes:
    whole = io.BytesIO()
    np.save(whole, column, allow_pickle=False)
    return whole.getvalue()


def _fingerprint(columns: Mapping[str, Array]) -> str:
    """A short hash of the columns "labels", "names" and "name_ends"."""
    digest = xxhash.xxh3_128(str(columns["labels"].shape).encode())
    for name in ("labels", "names", "name_ends"):
        digest.update(columns[name].tobytes())
    return digest.hexdigest()[:16]


def fingerprint_now(source: Source, manifest: Manifest) -> str:
    """The fingerprint that a cache of a source would have now, with the same images left out."""
    if (source.label_field.dtype, source.label_field.shape) != manifest.label:
        return ""
    left_out = {key for key, _, _ in manifest.skipped}
    dtype, shape = manifest.label
    keys = [key for key in range(len(source)) if key not in left_out]
    names = [kept_name(source.name(key)) for key in keys]
    labels = np.array([source.label(key) for key in keys], dtype)
    return _fingerprint(
        {
            "labels": labels.reshape(-1, *shape),
            "names": np.frombuffer(b"".join(names), np.uint8),
            "name_ends": np.cumsum([len(name) for name in names], dtype=np.int64),
        }
    )
