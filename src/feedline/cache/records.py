"""The records of units that are done: the columns of their samples, and the files they have made.

Guarantees: nothing is unpickled; a record that is damaged or of other images counts as none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.cache.whole_file import write_whole
from feedline.errors import ImageError
from feedline.stores.cache_index import CacheIndex, load_entries
from feedline.stores.cache_layout import Manifest, shard_name

__all__ = [
    "Columns",
    "as_record",
    "kept_name",
    "read_record",
    "record_name",
    "unit_matches",
    "write_record",
    "write_records",
]

Columns = Mapping[str, np.ndarray[Any, Any]]


def record_name(spec: Spec, unit: int) -> str:
    """Where a unit's record lies in the cache's folder: an .npz file of its samples' columns."""
    return f"{spec.unfinished.name}/{unit:06d}.npz"


def read_record(spec: Spec, unit: int) -> dict[str, np.ndarray[Any, Any]]:
    """The record of a unit that is done.

    Raises:
        OSError: there is none.
        ValueError: it is damaged.
    """
    path = Path(spec.root, record_name(spec, unit))
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as record:
            return {name: record[name] for name in record.files}
    except OSError:
        raise
    except Exception as error:  # of zipfile, zlib or numpy's parser
        raise ValueError(f"the record {str(path)!r} is damaged: {error}") from error


def kept_name(name: str) -> bytes:
    """A sample's name as records and the index keep it: what is no text is escaped."""
    return name.encode("utf-8", "backslashreplace")


def write_record(spec: Spec, unit: int, columns: Columns) -> None:
    """Say that a unit is done."""
    write_whole(Path(spec.root, record_name(spec, unit)), as_record(columns))


def as_record(columns: Columns) -> bytes:
    """A record as a file."""
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, **columns)
    return whole.getvalue()


def write_records(spec: Spec, manifest: Manifest) -> None:
    """Write the records of a finished cache's units once more, of its index."""
    index = CacheIndex(spec.root, manifest)
    entries = {
        f"level-{level.name}": load_entries(spec.root, level, manifest.samples)
        for level in manifest.levels
    }
    units = index.keys // manifest.per_shard
    skipped: dict[int, list[Any]] = {}
    for key, name, why in manifest.skipped:
        skipped.setdefault(key // manifest.per_shard, []).append((key, name, why))
    for unit in range(len(manifest.levels[0].shards)):
        rows = slice(*np.searchsorted(units, [unit, unit + 1]).tolist())
        names = [index.name(row).encode() for row in range(rows.start, rows.stop)]
        columns = {
            name: np.array(getattr(index, name)[rows]) for name in ("keys", "sizes", "stamps")
        }
        columns |= {name: np.array(column[rows]) for name, column in entries.items()}
        columns["labels"] = np.array(index.labels[rows])
        columns["names"] = np.frombuffer(b"".join(names), np.uint8)
        columns["name_ends"] = np.cumsum([len(name) for name in names], dtype=np.int64)
        columns["shards"] = np.array([level.shards[unit] for level in manifest.levels], np.int64)
        said = json.dumps(skipped.get(unit, []))
        columns["skipped"] = np.frombuffer(said.encode(), np.uint8)
        write_record(spec, unit, columns)


def unit_matches(source: Source, spec: Spec, unit: Unit) -> bool:
    """Whether a unit is done, of the images as they are now, and all its files are there."""
    try:
        record = read_record(spec, unit.number)
        for level, size in zip(spec.levels, record["shards"].tolist(), strict=True):
            path = Path(spec.root, level.name, shard_name(unit.number))
            if spec.format == "webdataset" and path.stat().st_size != size:
                return False
            if spec.format == "lmdb" and path.exists():
                return False  # it had still to go into the LMDB
        broken = {key: name for key, name, _ in json.loads(bytes(record["skipped"]))}
        numbers = range(unit.start, unit.stop)
        if not spec.skip_broken and set(broken) != spec.left_out.intersection(numbers):
            return False
        ends = record["name_ends"].tolist()
        starts, names = [0, *ends[:-1]], bytes(record["names"])
        called = [names[start:end] for start, end in zip(starts, ends, strict=True)]
        known = {key: kept_name(name) for key, name in broken.items()}
        known |= dict(zip(record["keys"].tolist(), called, strict=True))
        if known != {number: kept_name(source.name(number)) for number in numbers}:
            return False
        return all(
            stamp == source.stamp(key) and np.array_equal(label, source.label(key))
            for key, stamp, label in zip(
                record["keys"].tolist(), record["stamps"].tolist(), record["labels"], strict=True
            )
        )
    except (OSError, ValueError, KeyError, TypeError, ImageError):
        return False
