"""Index of the images in WebDataset tar shards, with their labels as written.

Guarantees: only headers and labels are read; a shard is scanned once, its index is cached in a
file, and used while the shard is unchanged (see `kept_index`).

Relies on: `shard_samples` for a shard's samples, `kept_index` for the cache.
"""

from __future__ import annotations

import json
import os
import stat
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from feedline.errors import DatasetError
from feedline.sources.archive_names import check_name
from feedline.sources.kept_index import keep, kept, seen
from feedline.sources.label_places import LabelPlace, label_at
from feedline.sources.path_table import common_folder, starts_of
from feedline.sources.read_file import without_waiting
from feedline.sources.shard_samples import shard_samples
from feedline.system import slashed

__all__ = ["Shards", "look_through"]

_VERSION = 2


@dataclass(frozen=True, eq=False)
class Shards:
    """Samples of some shards, in their order.

    Args:
        folder: common folder of all shards, an absolute path that ends with a separator.
        shards: their paths below it.
        status: int64 (shards, 2), their sizes in bytes and modification times in ns.
        blob: uint8, for each sample the path of its shard below the folder, and the name of its
            image in it, each ended by a zero byte.
        starts: int64 (n + 1), start of each of these, and the blob's length.
        entries: int64 (n, 3), shard of each image, its first byte and its length.
        labels: as written: texts, or values of JSON; 0 if none are requested.
        left_out: names of samples without an image or a label, and the reasons.
    """

    folder: str
    shards: list[str]
    status: np.ndarray[Any, np.dtype[np.int64]]
    blob: np.ndarray[Any, np.dtype[np.uint8]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    entries: np.ndarray[Any, np.dtype[np.int64]]
    labels: list[Any]
    left_out: list[tuple[str, str]]


class _Shard(NamedTuple):
    """Index of one shard: names ended by zero bytes, (n, 2) positions, labels, incomplete
    samples.
    """

    names: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]
    labels: list[Any]
    left_out: list[list[str]]


def look_through(
    paths: Sequence[str], image: tuple[str, ...], label: tuple[LabelPlace, ...]
) -> Shards:
    """Index of shards.

    Args:
        paths: absolute paths.
        image: file extensions of images, in order of preference.
        label: possible positions of labels; none: no labels are read.

    Raises:
        DatasetError: a shard is damaged, compressed, unreadable or has no samples; a key occurs
            twice in it, or leads out of it; names shard and key.
    """
    folder = common_folder(paths)
    names = [slashed(path[len(folder) :]) for path in paths]
    status: list[tuple[int, int]] = []
    blobs: list[bytes] = []
    entries: list[np.ndarray[Any, Any]] = []
    labels: list[Any] = []
    left_out: list[tuple[str, str]] = []
    for number, (path, name) in enumerate(zip(paths, names, strict=True)):
        about, found = _looked_at(path, image, label)
        status.append(about)
        prefix = os.fsencode(name) + b"/"
        own = found.names.tobytes()
        if own:
            blobs.append(prefix + own[:-1].replace(b"\0", b"\0" + prefix) + b"\0")
        shard = np.full((len(found.places), 1), number, np.int64)
        entries.append(np.concatenate([shard, found.places], axis=1))
        labels += found.labels
        left_out += [(f"{path}/{key}", why) for key, why in found.left_out]
    blob = np.frombuffer(b"".join(blobs), np.uint8)
    return Shards(
        folder=folder,
        shards=names,
        status=np.array(status, np.int64),
        blob=blob,
        starts=starts_of(blob),
        entries=np.concatenate(entries),
        labels=labels,
        left_out=left_out,
    )


def _looked_at(
    path: str, image: tuple[str, ...], label: tuple[LabelPlace, ...]
) -> tuple[tuple[int, int], _Shard]:
    """Size and modification time of a shard, and its index, cached or new."""
    key = json.dumps(["webdataset", _VERSION, image, label])
    try:
        with open(path, "rb", opener=without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise DatasetError(f"the shard {path!r} is not a file")
            now = seen(file, about)
            status = now.size, now.changed_ns
            before = kept(path, key, now)
            if before is not None:
                values, columns = before
                found = _Shard(
                    columns["names"], columns["places"], values["labels"], values["left_out"]
                )
                return status, found
            found = _scanned(file, path, about.st_size, image, label)
    except OSError as error:
        raise DatasetError(f"the shard {path!r} cannot be read: {error.strerror}") from error
    columns = {"names": found.names, "places": found.places}
    keep(path, key, now, columns, labels=found.labels, left_out=found.left_out)
    return status, found


def _scanned(
    file: BinaryIO,
    path: str,
    size: int,
    image: tuple[str, ...],
    label: tuple[LabelPlace, ...],
) -> _Shard:
    names, places = bytearray(), array("q")
    labels: list[Any] = []
    left_out: list[list[str]] = []
    for key, found in shard_samples(file, path, size):
        check_name(f"the shard {path!r}", key, "the samples")
        member = next((found[ending] for ending in image if ending in found), None)
        if member is None:
            has = ", ".join(f".{ending}" for ending in found)
            left_out.append([key, f"it has no image: there is only {has}"])
            continue
        value, why = label_at(label, file, found)
        if why:
            left_out.append([key, why])
            continue
        names += os.fsencode(member.name) + b"\0"
        places.extend((member.first, member.length))
        labels.append(value)
    if not labels and not left_out:
        raise DatasetError(
            f"the shard {path!r} contains no samples; its writer may have been interrupted",
            hint="remove it, or write it again",
        )
    return _Shard(
        np.frombuffer(bytes(names), np.uint8),
        np.array(places, np.int64).reshape(-1, 2),
        labels,
        left_out,
    )
