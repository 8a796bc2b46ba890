"""Where the images of tar shards of WebDataset lie, and their labels, in a few numpy arrays.

Guarantees: only headers and labels are read, and nothing is extracted; no Python object per sample
is kept; a shard that is cut off, or damaged in its headers, is an error and never a smaller shard.

Relies on: `source_files` for how many shards are read at a time; `tar_members` for what lies in
one of them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline.cache.source_files import SourceFiles
from feedline.errors import DatasetError
from feedline.stores.path_table import LabelledPaths
from feedline.stores.tar_members import tar_members

__all__ = ["ShardIndex", "index_shards"]

# As webdataset tells a key from the ending: at the first dot of the last part of the name.
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_ABOUT_THE_SHARD = re.compile(r"__[^/]*__($|/)")
_IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff")
_WHOLE = re.compile(rb"\s*[+-]?\d{1,18}\s*")
_MOST_BYTES = 1 << 20  # of a label


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


class _Member(NamedTuple):
    """A file in a shard: `first` is its first byte."""

    key: str
    ending: str
    first: int
    length: int


class _Sample(NamedTuple):
    """A sample of a shard; the class name is None where it has none."""

    key: str
    image: _Member
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
    """The samples of an open shard: files in a row that have the same key."""
    seen: set[str] = set()
    for key, members in itertools.groupby(_members(file, path, size), lambda member: member.key):
        if key in seen:
            raise DatasetError(
                f"the shard {path!r} has the key {key!r} twice, with other keys between: the files "
                "of a sample must follow one another, and a key be of one sample"
            )
        seen.add(key)
        yield _sample(file, path, key, members)


def _sample(file: BinaryIO, path: str, key: str, members: Iterable[_Member]) -> _Sample:
    found: dict[str, _Member] = {}
    for member in members:
        if member.ending in found:
            raise DatasetError(f"the shard {path!r} has {f'{key}.{member.ending}'!r} twice")
        found[member.ending] = member
    image = next((found[ending] for ending in _IMAGES if ending in found), None)
    has = ", ".join(f".{ending}" for ending in found)
    if image is None:
        raise DatasetError(
            f"the shard {path!r} has no image for the key {key!r}, only {has}. The name of "
            f"an image ends in .{', .'.join(_IMAGES)}"
        )
    about = _json(_content(file, found["json"])) if "json" in found else {}
    label = about.get("label", about.get("cls"))
    if "cls" in found:
        text = _content(file, found["cls"])
        label = int(text) if _WHOLE.fullmatch(text) else text
    if type(label) is not int or not -(2**63) <= label < 2**63:
        raise DatasetError(
            f"the shard {path!r} has no label for the key {key!r}, only {has}. A label is a whole "
            'number: the text of a .cls, or "label" or "cls" in a .json'
            + (f"; found {repr(label)[:40]}" if label is not None else "")
        )
    name = about.get("class")
    return _Sample(key, image, label, name if isinstance(name, str) else None)


def _content(file: BinaryIO, member: _Member) -> bytes:
    """A small file of a shard; of a large one the beginning."""
    file.seek(member.first)
    return file.read(min(member.length, _MOST_BYTES))


def _json(text: bytes) -> dict[str, Any]:
    """An object in JSON; an empty one for anything else."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _members(file: BinaryIO, path: str, size: int) -> Iterator[_Member]:
    """The files of a shard that belong to samples, in its order."""
    for found in tar_members(file, size, f"the shard {path!r}", _is_of_a_sample):
        parts = _NAME.fullmatch(found.name)
        if parts is not None and not found.link:
            yield _Member(parts[1], parts[2].lower(), found.first, found.length)


def _is_of_a_sample(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not _ABOUT_THE_SHARD.match(name)
