"""Comparison of a source's samples with those of a cache.

Guarantees: the first sample that differs is named, with its present and former value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.cache.records import encode_name, read_record
from feedline.cache.settings import ShardRange, Spec
from feedline.cache.source import CacheSource
from feedline.sources.cache_index import CacheIndex
from feedline.sources.cache_layout import Manifest

__all__ = ["shards_difference", "source_difference"]

_COMPARED = {
    "labels": "label",
    "sizes": "size in pixels",
    "stamps": "file size or modification time",
}


def source_difference(source: CacheSource, manifest: Manifest, index: CacheIndex) -> str:
    """Describe the first difference between a source and the source of a cache; "" if equal.

    Compares names, labels and, if both have one, stamps. No image is read: a Dataset may decode an
    image to return its label, which `shards_difference` compares.
    """
    form = source.label_field.dtype, source.label_field.shape
    if form != manifest.label:
        return f"its labels are {form}, before {manifest.label}"
    classes = None if source.classes is None else tuple(source.classes)
    rows = {key: row for row, key in enumerate(index.keys.tolist())}
    skipped_before = {key: name for key, name, _ in manifest.skipped}
    for key in range(min(len(source), manifest.samples_in_source)):
        row, name = rows.get(key), encode_name(source.name(key)).decode()
        was = encode_name(skipped_before.get(key, "")).decode() if row is None else index.name(row)
        if name != was:
            return f"sample {key} is {name!r}, before {was!r}"
        if row is None:
            continue
        if source.kind != "dataset":
            label, had = np.asarray(source.label(key), form[0]), index.labels[row]
            if label.tobytes() != had.tobytes():  # NaN equals itself
                return f"sample {key}, {name!r}, has the label {label}, before {had}"
        stamp = source.stamp(key)
        if stamp and index.stamps[row] and stamp != index.stamps[row]:
            return f"sample {key}, {name!r}, has another size or modification time"
    if len(source) != manifest.samples_in_source:
        return f"it has {len(source)} samples, before {manifest.samples_in_source}"
    if classes != manifest.classes:
        return f"its classes are {classes}, before {manifest.classes}"
    return ""


def shards_difference(spec: Spec, shards: Sequence[ShardRange], index: CacheIndex) -> str:
    """Describe the first difference between finished shards and a cache; "" if equal."""
    at = 0
    for shard in shards:
        record = read_record(spec, shard.number)
        keys = record["keys"]
        rows = slice(at, at + len(keys))
        at = rows.stop
        for column, what in _COMPARED.items() if len(keys) else ():
            now, was = record[column], np.array(getattr(index, column)[rows])
            # Compared as bytes: NaN equals itself.
            differs = (_bytes(now) != _bytes(was)).any(axis=1)
            if column == "stamps":
                differs &= (now != 0) & (was != 0)
            if differs.any():
                row = int(differs.argmax())
                name = index.name(rows.start + row)
                return f"sample {keys[row]}, {name!r}, has another {what} than before"
    return ""


def _bytes(column: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of each row."""
    return np.frombuffer(column.tobytes(), np.uint8).reshape(len(column), -1)
