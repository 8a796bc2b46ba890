"""Whether the samples of a source are still those of a cache.

Guarantees: the first sample that differs is named, with what it is now and what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.cache.records import kept_name, read_record
from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.stores.cache_index import CacheIndex
from feedline.stores.cache_layout import Manifest

__all__ = ["difference_made", "first_difference"]

_COMPARED = {
    "labels": "label",
    "sizes": "size in pixels",
    "stamps": "file size or time of change",
}


def first_difference(source: Source, manifest: Manifest, index: CacheIndex) -> str:
    """How a source differs from what a cache was made of, "" where it does not.

    Names, labels and, where both have one, stamps are compared. No image is read: a Dataset may
    have to make an image to tell its label, which `difference_made` compares.
    """
    form = source.label_field.dtype, source.label_field.shape
    if form != manifest.label:
        return f"its labels are {form} and were {manifest.label}"
    classes = None if source.classes is None else tuple(source.classes)
    rows = {key: row for row, key in enumerate(index.keys.tolist())}
    left_out = {key: name for key, name, _ in manifest.skipped}
    for key in range(min(len(source), manifest.samples_in_source)):
        row, name = rows.get(key), kept_name(source.name(key)).decode()
        was = kept_name(left_out.get(key, "")).decode() if row is None else index.name(row)
        if name != was:
            return f"sample {key} is {name!r} and was {was!r}"
        if row is None:
            continue
        if source.kind != "dataset":
            label, had = np.asarray(source.label(key), form[0]), index.labels[row]
            if label.tobytes() != had.tobytes():  # NaN is like itself
                return f"sample {key}, {name!r}, has the label {label} and had {had}"
        stamp = source.stamp(key)
        if stamp and index.stamps[row] and stamp != index.stamps[row]:
            return f"sample {key}, {name!r}, was changed: its size or its time of change differs"
    if len(source) != manifest.samples_in_source:
        return f"it has {len(source)} samples and had {manifest.samples_in_source}"
    if classes != manifest.classes:
        return f"its classes are {classes} and were {manifest.classes}"
    return ""


def difference_made(spec: Spec, units: Sequence[Unit], index: CacheIndex) -> str:
    """How samples that units have been made of differ from a cache's; "" where they do not."""
    at = 0
    for unit in units:
        record = read_record(spec, unit.number)
        keys = record["keys"]
        rows = slice(at, at + len(keys))
        at = rows.stop
        for column, what in _COMPARED.items() if len(keys) else ():
            now, was = record[column], np.array(getattr(index, column)[rows])
            # By their bytes: NaN is like itself.
            differs = (_bytes(now) != _bytes(was)).any(axis=1)
            if column == "stamps":
                differs &= (now != 0) & (was != 0)
            if differs.any():
                row = int(differs.argmax())
                name = index.name(rows.start + row)
                return f"sample {keys[row]}, {name!r}, has another {what} than it had"
    return ""


def _bytes(column: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of each row."""
    return np.frombuffer(column.tobytes(), np.uint8).reshape(len(column), -1)
