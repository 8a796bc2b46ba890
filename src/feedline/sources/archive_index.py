"""Index of the images in a zip or tar file, in a few numpy arrays.

Guarantees: the samples and class indices that `scan_folder` finds in the unpacked archive; nothing
is extracted; an archive is scanned once, its index is cached in a file, whole or not at all, and
used while the archive is unchanged (see `kept_index`).

Relies on: `zip_members` and `tar_members` for the archive formats, `kept_index` for the cache.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from feedline.errors import DatasetError
from feedline.sources.archive_names import FolderNames
from feedline.sources.index import (
    FolderIndex,
    check_classes,
    folder_index,
    warn_left_out,
    without_images,
)
from feedline.sources.kept_index import keep, kept, seen
from feedline.sources.path_table import starts_of
from feedline.sources.read_file import without_waiting
from feedline.sources.tar_members import tar_members
from feedline.sources.zip_members import zip_members

__all__ = ["TAR", "ArchiveIndex", "archive_index"]

TAR = -1
"""Method of a file in a tar file, which has no checksum."""

_VERSION = 2
_COLUMNS = 5

Entry = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class ArchiveIndex(FolderIndex):
    """Images of an archive; paths are relative to the class's folder in it.

    Args:
        entries: int64 (n, 5): first byte and length in the archive, size of the file, method (TAR,
            or the zip file's) and checksum.
        status: the archive's size in bytes, and its modification time in ns.
    """

    entries: np.ndarray[Any, np.dtype[np.int64]]
    status: tuple[int, int]


def archive_index(path: str, inside: str, endings: tuple[str, ...]) -> ArchiveIndex:
    """Index of an archive: the cached one, or by scanning it.

    Args:
        path: absolute path of a .zip or .tar file.
        inside: folder in it that contains the classes; "" for the archive itself.
        endings: file extensions of images, in lower case.

    Raises:
        DatasetError: it is not such an archive, damaged or truncated; a name in it leads out of it;
            a file is encrypted, or compressed with an unsupported method; there are no classes, or
            ones without images.
    """
    key = json.dumps([_VERSION, inside, endings])
    try:
        with open(path, "rb", opener=without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise DatasetError(f"the archive {path!r} is not a file")
            now = seen(file, about)
            status = now.size, now.changed_ns
            before = kept(path, key, now)
            if before is not None:
                values, columns = before
                return ArchiveIndex(
                    **columns,
                    starts=starts_of(columns["blob"]),
                    classes=values["classes"],
                    status=status,
                )
            found = _scanned(file, path, inside, endings, status)
    except OSError as error:
        raise DatasetError(f"the archive {path!r} cannot be read: {error.strerror}") from error
    columns = {"blob": found.blob, "labels": found.labels, "entries": found.entries}
    keep(path, key, now, columns, classes=found.classes)
    return found


def _scanned(
    file: BinaryIO, path: str, inside: str, endings: tuple[str, ...], status: tuple[int, int]
) -> ArchiveIndex:
    called = f"the archive {path!r}"
    names = FolderNames(called, inside, endings)
    places: dict[str, int] = {}
    entries = array("q")
    for name, entry in _members(file, path, status[0], called, names):
        # Of a name that comes twice the later file counts, as when the archive is unpacked.
        places[names.below(name)] = len(entries) // _COLUMNS
        entries.extend(entry)
    where = os.path.join(path, inside) if inside else path
    check_classes(where, sorted(names.classes), names.image)
    ordered = sorted(places, key=_in_order)
    of_class = {
        name: [(folder and f"{folder}/", [_in_order(each)[2] for each in group])
               for folder, group in itertools.groupby(some, lambda each: _in_order(each)[1])]
        for name, some in itertools.groupby(ordered, lambda each: _in_order(each)[0])
    }  # fmt: skip
    classes = sorted(names.classes)
    empty = [name for name in classes if name not in of_class]
    if empty:
        raise without_images(where, empty, len(classes), endings, "")
    folders = [folder for folder, _ in of_class[classes[0]]]
    if len(classes) == 1 and all(folders):
        some = ", ".join(sorted({folder.partition("/")[0] for folder in folders})[:5])
        raise DatasetError(
            f"{where!r} contains one folder, {classes[0]!r}, with sub-folders ({some})",
            hint=f"if those are the classes, use {os.path.join(where, classes[0])!r}",
        )
    warn_left_out(where, names.left_out)
    index = folder_index(classes, (of_class[name] for name in classes))
    table = np.array(entries, np.int64).reshape(-1, _COLUMNS)
    return ArchiveIndex(
        blob=index.blob,
        starts=index.starts,
        labels=index.labels,
        classes=classes,
        entries=table[[places[name] for name in ordered]],
        status=status,
    )


def _in_order(name: str) -> tuple[str, str, str]:
    """Sort key of a file: its class, its folder below that, and its own name."""
    kind, _, below = name.partition("/")
    folder, _, own = below.rpartition("/")
    return kind, folder, own


def _members(
    file: BinaryIO, path: str, size: int, called: str, names: FolderNames
) -> Iterator[tuple[str, Entry]]:
    if path.lower().endswith(".zip"):
        for packed in zip_members(file, size, called, names.wanted):
            yield packed.name, packed[1:]
        return
    for found in tar_members(file, size, called, names.wanted):
        if found.link:
            raise DatasetError(
                f"{called} contains {found.name!r} as a link to another file",
                hint="pack it again with tar's options --dereference --hard-dereference",
            )
        yield found.name, (found.first, found.length, found.length, TAR, 0)
