"""The last step of a build: the units' records become the index, and the manifest is written.

Guarantees: the manifest comes when all else is on the disk; until then the folder is no cache.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from feedline import __version__
from feedline.cache.records import read_record
from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.cache.stale import remove_stale
from feedline.cache.writers import write_whole
from feedline.stores.cache_index import COLUMNS
from feedline.stores.cache_layout import INDEX, MANIFEST, UNFINISHED, Manifest

__all__ = ["finish"]

Array = np.ndarray[Any, Any]


def finish(source: Source, spec: Spec, units: Sequence[Unit], per_shard: int) -> Manifest:
    """Make a cache of what the units have made: its manifest."""
    root = Path(spec.root)
    records = [read_record(spec.root, unit.number) for unit in units]
    columns = {
        name: np.concatenate([record[name] for record in records])
        for name in ("labels", "names", *COLUMNS, *(f"level-{level.name}" for level in spec.levels))
    }
    # Each record counts the bytes of its own names.
    before = np.cumsum([0, *(len(record["names"]) for record in records[:-1])])
    counts = [len(record["keys"]) for record in records]
    columns["name_ends"] += np.repeat(before, counts)
    skipped = [tuple(said) for record in records for said in json.loads(bytes(record["skipped"]))]
    (root / INDEX).mkdir(exist_ok=True)
    digests = {}
    for name, column in columns.items():
        data = _as_npy(column)
        digests[name] = xxhash.xxh3_64_hexdigest(data)
        write_whole(root / INDEX / f"{name}.npy", data)
    levels = tuple(
        replace(level, shards=tuple(int(record["shards"][place]) for record in records))
        for place, level in enumerate(spec.levels)
    )
    label = source.label_field
    manifest = Manifest(
        format=spec.format,
        samples=len(columns["keys"]),
        levels=levels,
        classes=None if source.classes is None else tuple(source.classes),
        label=(label.dtype, label.shape),
        exif=spec.exif,
        fingerprint=_fingerprint(columns),
        source=(source.kind, source.where),
        skipped=tuple(skipped),
        samples_in_source=len(source),
        per_shard=per_shard,
        digests=digests,
        feedline=__version__,
    )
    remove_stale(spec.root, manifest)
    _to_disk(root)
    write_whole(root / MANIFEST, manifest.as_text().encode())
    shutil.rmtree(root / UNFINISHED)
    return manifest


def _as_npy(column: Array) -> bytes:
    whole = io.BytesIO()
    np.save(whole, column, allow_pickle=False)
    return whole.getvalue()


def _fingerprint(columns: dict[str, Array]) -> str:
    """A short hash of the names, their order and the labels."""
    digest = xxhash.xxh3_128(str(columns["labels"].shape).encode())
    for name in ("labels", "names", "name_ends"):
        digest.update(columns[name].tobytes())
    return digest.hexdigest()[:16]


def _to_disk(root: Path) -> None:
    """Have everything below a folder written through, files before folders."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in (*files, "."):
            if name.endswith(".partial"):
                continue
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
