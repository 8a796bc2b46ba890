"""Where the images of tar shards of WebDataset lie, and their labels, in a few numpy arrays.

Guarantees: only headers and labels are read, and nothing is extracted; no Python object per sample
is kept; a shard that is cut off, or damaged in its headers, is an error and never a smaller shard.

Relies on: `source_files` for how many shards are read at a time; `shard_samples` for what lies in
one of them.
"""

from __future__ import annotations

import functools
import json
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline.cache.source_files import SourceFiles
from feedline.errors import DatasetError
from feedline.stores.path_table import LabelledPaths
from feedline.stores.shard_samples import ShardMember, content_of, shard_samples

__all__ = ["ShardIndex", "index_shards"]

_IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff")
_WHOLE = re.compile(rb"\s*[+-]?\d{1,18}\s*")


@dataclass(frozen=True, eq=False)
class ShardIndex(LabelledPaths):
    """The samples of some shards: as paths, their keys.

    Args:
        shards: the paths of the shards, relative to a folder.
        status: int64 (shards, 2), their sizes in bytes, and what changes when they do.
        entries: int64 (n, 3), the shard of each image, its first byte and its length.
        classes: the names of the classes by number; None where they are not known.
    """

    shards: list[str]
    status: np.ndarray[Any, np.dtype[np.int64]]
    entries: np.ndarray[Any, np.dtype[np.int64]]
    classes: list[str] | None


class _Sample(NamedTuple):
    """A sample of a shard; the class name is None where it has none."""

    key: str
    image: ShardMember
    label: int
    class_name: str | None


class _Part(NamedTuple):
    """What one shard adds: its size and version, and its samples."""

    status: tuple[int, int]
    samples: list[_Sample]


def index_shards(files: SourceFiles, shards: Sequence[str]) -> ShardIndex:
    """Look through shards.

    Raises:
        DatasetError: there are no samples, one lacks an image or a label or comes twice, or a shard
            is damaged, compressed or cannot be read; names shard and key.
    """
    names, starts = bytearray(), array("q", [0])
    entries, labels, status = array("q"), array("q"), []
    class_names: dict[int, str | None] = {}
    for number, part in enumerate(files.each(functools.partial(_part, files), shards)):
        status.append(part.status)
        for sample in part.samples:
            names += os.fsencode(sample.key) + b"\0"
            starts.append(len(names))
            entries.extend((number, sample.image.first, sample.image.length))
            labels.append(sample.label)
            if class_names.setdefault(sample.label, sample.class_name) != sample.class_name:
                class_names[sample.label] = None
    if not labels:
        raise DatasetError(
            f"the tar files of {files.path('')!r} hold no samples: {', '.join(shards[:5])}"
        )
    return ShardIndex(
        blob=np.frombuffer(bytes(names), np.uint8),
        starts=np.array(starts, np.int64),
        labels=np.array(labels, np.int64),
        shards=list(shards),
        status=np.array(status, np.int64),
        entries=np.array(entries, np.int64).reshape(-1, 3),
        classes=_classes(class_names),
    )


def _classes(names: dict[int, str | None]) -> list[str] | None:
    known = [name for _, name in sorted(names.items()) if name is not None]
    return known if len(known) == len(names) == max(names) + 1 and min(names) == 0 else None


def _part(files: SourceFiles, shard: str) -> _Part:
    """What one shard adds."""
    status = files.status(shard)
    with files.opened(shard) as file:
        return _Part(status, list(_samples(file, files.path(shard), status[0])))


def _samples(file: BinaryIO, path: str, size: int) -> Iterator[_Sample]:
    """The samples of an open shard."""
    for key, found in shard_samples(file, path, size):
        yield _sample(file, path, key, found)


def _sample(file: BinaryIO, path: str, key: str, found: Mapping[str, ShardMember]) -> _Sample:
    image = next((found[ending] for ending in _IMAGES if ending in found), None)
    has = ", ".join(f".{ending}" for ending in found)
    if image is None:
        raise DatasetError(
            f"the shard {path!r} has no image for the key {key!r}, only {has}. The name of "
            f"an image ends in .{', .'.join(_IMAGES)}"
        )
    about = _json(content_of(file, found["json"])) if "json" in found else {}
    label = about.get("label", about.get("cls"))
    if "cls" in found:
        text = content_of(file, found["cls"])
        label = int(text) if _WHOLE.fullmatch(text) else text
    if type(label) is not int or not -(2**63) <= label < 2**63:
        raise DatasetError(
            f"the shard {path!r} has no label for the key {key!r}, only {has}. A label is a whole "
            'number: the text of a .cls, or "label" or "cls" in a .json'
            + (f"; found {repr(label)[:40]}" if label is not None else "")
        )
    name = about.get("class")
    return _Sample(key, image, label, name if isinstance(name, str) else None)


def _json(text: bytes) -> dict[str, Any]:
    """An object in JSON; an empty one for anything else."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}
