"""Tar shards of WebDataset as the source of a cache.

Guarantees: the samples of the `webdataset` package, in the order of the shards' names. Each image
is one read from its shard, or one request for a remote shard. No file descriptor is kept. The index
reads only headers and labels, and keeps no Python object per sample. A truncated shard, or one with
damaged headers, is an error and never a smaller shard.

Relies on: shards that are not written to meanwhile; `shard_samples` for their contents.
"""

from __future__ import annotations

import functools
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline.cache.source import Stamp, make_stamp, spread_evenly
from feedline.cache.source_files import ImagePrefetcher, SourceFiles
from feedline.errors import DatasetError
from feedline.order.batch_spec import Field
from feedline.sources.path_table import LabelledPaths
from feedline.sources.shard_samples import ShardMember, content_of, shard_samples

__all__ = ["ShardIndex", "WebDatasetSource", "index_shards"]


class WebDatasetSource:
    """Samples of tar shards: an image, and a label in a .cls or a .json.

    Args:
        where: path given by the user.
        files: folder of the shards.
        shards: relative paths.

    Raises:
        DatasetError: the shards are invalid; names shard and key.
    """

    kind = "webdataset"
    label_field = Field("label", "int64", ())

    def __init__(self, where: str, files: SourceFiles, shards: Sequence[str]) -> None:
        self.where = where
        self._files = files
        self._index = index_shards(files, shards)
        self._ahead = ImagePrefetcher(self._read)

    @property
    def classes(self) -> list[str] | None:
        """The "class" of each label's .json, if all samples of all labels agree."""
        return self._index.classes

    def __len__(self) -> int:
        return len(self._index)

    def pick(self, count: int) -> list[int]:
        """Return evenly spread samples."""
        return spread_evenly(len(self), count)

    def prefetch(self, samples: Iterable[int]) -> None:
        """Prefetch remote images."""
        if self._files.is_remote:
            self._ahead.plan(samples)

    def read(self, sample: int) -> bytes:
        """Return the bytes of an image."""
        return self._ahead.result(sample)

    def _read(self, sample: int) -> bytes:
        shard, first, length = self._index.entries[sample].tolist()
        return self._files.part(self._index.shards[shard], first, length)

    def label(self, sample: int) -> Any:
        """Return the class number."""
        return self._index.labels[sample]

    def name(self, sample: int) -> str:
        """Return the shard's path and the key in it."""
        shard = self._index.shards[int(self._index.entries[sample, 0])]
        name = os.fsencode(shard) + b"/" + self._index.name(sample)
        return name.decode("utf-8", "backslashreplace")

    def path(self, sample: int) -> str:
        """Return the path of the local shard, or ""."""
        shard = self._index.shards[int(self._index.entries[sample, 0])]
        return "" if self._files.is_remote else self._files.path(shard)

    def stamp(self, sample: int) -> Stamp:
        """Return a stamp of the shard's size, modification time and the image's position."""
        shard, first, length = self._index.entries[sample].tolist()
        return make_stamp(*self._index.status[shard].tolist(), first, length)


_IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff")
_WHOLE = re.compile(rb"\s*[+-]?\d{1,18}\s*")


@dataclass(frozen=True, eq=False)
class ShardIndex(LabelledPaths):
    """Samples of some shards; their paths are their keys.

    Args:
        shards: relative paths of the shards.
        status: int64 (shards, 2), size in bytes and version of each shard.
        entries: int64 (n, 3), shard, first byte and length of each image.
        classes: class names by number; None if unknown.
    """

    shards: list[str]
    status: np.ndarray[Any, np.dtype[np.int64]]
    entries: np.ndarray[Any, np.dtype[np.int64]]
    classes: list[str] | None


class _ShardSample(NamedTuple):
    """A sample of a shard; `class_name` may be None."""

    key: str
    image: ShardMember
    label: int
    class_name: str | None


class _ShardContents(NamedTuple):
    """Contents of one shard: its size and version, and its samples."""

    status: tuple[int, int]
    samples: list[_ShardSample]


def index_shards(files: SourceFiles, shards: Sequence[str]) -> ShardIndex:
    """Index shards.

    Raises:
        DatasetError: there are no samples, one lacks an image or a label or is repeated, or a shard
            is damaged, compressed or cannot be read; names shard and key.
    """
    names, starts = bytearray(), array("q", [0])
    entries, labels, status = array("q"), array("q"), []
    class_names: dict[int, str | None] = {}
    for number, part in enumerate(files.each(functools.partial(_read_shard, files), shards)):
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


def _read_shard(files: SourceFiles, shard: str) -> _ShardContents:
    """Index one shard."""
    status = files.status(shard)
    with files.open(shard) as file:
        return _ShardContents(status, list(_read_samples(file, files.path(shard), status[0])))


def _read_samples(file: BinaryIO, path: str, size: int) -> Iterator[_ShardSample]:
    """Yield the samples of an open shard."""
    for key, found in shard_samples(file, path, size):
        yield _read_sample(file, path, key, found)


def _read_sample(
    file: BinaryIO, path: str, key: str, found: Mapping[str, ShardMember]
) -> _ShardSample:
    image = next((found[ending] for ending in _IMAGES if ending in found), None)
    has = ", ".join(f".{ending}" for ending in found)
    if image is None:
        raise DatasetError(
            f"the shard {path!r} has no image for the key {key!r}, only {has}; images end in "
            f".{', .'.join(_IMAGES)}"
        )
    about = _json(content_of(file, found["json"])) if "json" in found else {}
    label = about.get("label", about.get("cls"))
    if "cls" in found:
        text = content_of(file, found["cls"])
        label = int(text) if _WHOLE.fullmatch(text) else text
    if type(label) is not int or not -(2**63) <= label < 2**63:
        raise DatasetError(
            f"the shard {path!r} has no label for the key {key!r}, only {has}; a label is a whole "
            'number: the text of a .cls, or "label" or "cls" in a .json'
            + (f"; got {repr(label)[:40]}" if label is not None else "")
        )
    name = about.get("class")
    return _ShardSample(key, image, label, name if isinstance(name, str) else None)


def _json(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; anything else gives an empty one."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}
