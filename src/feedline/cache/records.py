"""Records of finished shards: the columns of their samples, and the sizes of their files.

Guarantees: nothing is unpickled; a damaged record, or one of other images, counts as missing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.cache.atomic_write import write_atomic
from feedline.cache.settings import ShardRange, Spec
from feedline.cache.source import CacheSource
from feedline.errors import ImageError
from feedline.sources.cache_index import CacheIndex, load_entries
from feedline.sources.cache_layout import Manifest, shard_name

__all__ = [
    "Columns",
    "encode_name",
    "encode_record",
    "read_record",
    "record_name",
    "shard_matches",
    "write_record",
    "write_records",
]

Columns = Mapping[str, np.ndarray[Any, Any]]


def record_name(spec: Spec, shard: int) -> str:
    """Relative path of a shard's record, an .npz file with the columns of its samples."""
    return f"{spec.unfinished.name}/{shard:06d}.npz"


def read_record(spec: Spec, shard: int) -> dict[str, np.ndarray[Any, Any]]:
    """Read the record of a finished shard.

    Raises:
        OSError: there is no record.
        ValueError: it is damaged.
    """
    path = Path(spec.root, record_name(spec, shard))
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as record:
            return {name: record[name] for name in record.files}
    except OSError:
        raise
    except Exception as error:  # of zipfile, zlib or numpy's parser
        raise ValueError(f"the record {str(path)!r} is damaged: {error}") from error


def encode_name(name: str) -> bytes:
    """Encode a sample's name for records and the index; invalid text is escaped."""
    return name.encode("utf-8", "backslashreplace")


def write_record(spec: Spec, shard: int, columns: Columns) -> None:
    """Write the record of a finished shard."""
    write_atomic(Path(spec.root, record_name(spec, shard)), encode_record(columns))


def encode_record(columns: Columns) -> bytes:
    """Encode a record as a file."""
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, **columns)
    return whole.getvalue()


def write_records(spec: Spec, manifest: Manifest) -> None:
    """Write the records of a finished cache's shards again, from its index."""
    index = CacheIndex(spec.root, manifest)
    entries = {
        f"level-{level.name}": load_entries(spec.root, level, manifest.samples)
        for level in manifest.levels
    }
    shards = index.keys // manifest.per_shard
    skipped: dict[int, list[Any]] = {}
    for key, name, why in manifest.skipped:
        skipped.setdefault(key // manifest.per_shard, []).append((key, name, why))
    for shard in range(len(manifest.levels[0].shards)):
        rows = slice(*np.searchsorted(shards, [shard, shard + 1]).tolist())
        names = [index.name(row).encode() for row in range(rows.start, rows.stop)]
        columns = {
            name: np.array(getattr(index, name)[rows]) for name in ("keys", "sizes", "stamps")
        }
        columns |= {name: np.array(column[rows]) for name, column in entries.items()}
        columns["labels"] = np.array(index.labels[rows])
        columns["names"] = np.frombuffer(b"".join(names), np.uint8)
        columns["name_ends"] = np.cumsum([len(name) for name in names], dtype=np.int64)
        columns["shards"] = np.array([level.shards[shard] for level in manifest.levels], np.int64)
        text = json.dumps(skipped.get(shard, []))
        columns["skipped"] = np.frombuffer(text.encode(), np.uint8)
        write_record(spec, shard, columns)


def shard_matches(source: CacheSource, spec: Spec, shard: ShardRange) -> bool:
    """Return True if a shard is finished, its images are unchanged and its files exist."""
    try:
        record = read_record(spec, shard.number)
        for level, size in zip(spec.levels, record["shards"].tolist(), strict=True):
            path = Path(spec.root, level.name, shard_name(shard.number))
            if spec.format == "webdataset" and path.stat().st_size != size:
                return False
            if spec.format == "lmdb" and path.exists():
                return False  # not yet added to the LMDB
        broken = {key: name for key, name, _ in json.loads(bytes(record["skipped"]))}
        numbers = range(shard.start, shard.stop)
        if not spec.skip_broken and set(broken) != spec.skipped_before.intersection(numbers):
            return False
        ends = record["name_ends"].tolist()
        starts, names = [0, *ends[:-1]], bytes(record["names"])
        encoded = [names[start:end] for start, end in zip(starts, ends, strict=True)]
        known = {key: encode_name(name) for key, name in broken.items()}
        known |= dict(zip(record["keys"].tolist(), encoded, strict=True))
        if known != {number: encode_name(source.name(number)) for number in numbers}:
            return False
        return all(
            stamp == source.stamp(key) and np.array_equal(label, source.label(key))
            for key, stamp, label in zip(
                record["keys"].tolist(), record["stamps"].tolist(), record["labels"], strict=True
            )
        )
    except (OSError, ValueError, KeyError, TypeError, ImageError):
        return False
