"""A folder of class folders below a URL as what a cache is made of.

Guarantees: the images, labels, names and order of the same folder on a disk; an object that changes
has another stamp, where its store says so; images are fetched some time before they are read.

Relies on: stores that list the folders in a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from feedline.cache.fetch_ahead import FetchAhead
from feedline.cache.source import Stamp, evenly, stamp_of
from feedline.errors import ImageError
from feedline.plan.row import Field
from feedline.remote.folder import RemoteFile, RemoteFolder
from feedline.stores.index import (
    IMAGE_EXTENSIONS,
    check_classes,
    folder_index,
    without_images,
)
from feedline.stores.read_file import check_size

__all__ = ["FarFolderSource"]

Listed = dict[str, RemoteFile]


class FarFolderSource:
    """A folder with one sub-folder a class.

    Args:
        there: the folder.

    Raises:
        DatasetError: it cannot be listed, has no class folders or has empty ones.
    """

    kind = "folder"
    label_field = Field("label", "int64", ())

    def __init__(self, there: RemoteFolder) -> None:
        self.where = str(there)
        self._there = there
        _, folders, files = next(there.walk(), ("", [], []))
        self.classes = sorted(folders)
        check_classes(self.where, self.classes, next(filter(_is_image, sorted(files)), ""))
        status: list[np.ndarray[Any, Any]] = []
        self._index = folder_index(self.classes, self._scanned(status))
        self._status = np.concatenate(status)
        self._ahead = FetchAhead(self._read)

    def _scanned(
        self, status: list[np.ndarray[Any, Any]]
    ) -> Iterator[Sequence[tuple[str, list[str]]]]:
        """The images of each class, as `folder_index` takes them; adds their sizes and versions.

        A class at a time becomes arrays: a list of all objects would take gigabytes.
        """
        listings = self._there.each(self._there.files, self.classes)
        for name, listed in zip(self.classes, listings, strict=True):
            ordered = _in_order(name, listed)
            if not ordered:
                other = min(listed, default="").rpartition("/")[2]
                raise without_images(self.where, [name], len(self.classes), IMAGE_EXTENSIONS, other)
            found = [listed[f"{name}/{prefix}{each}"] for prefix, some in ordered for each in some]
            status.append(np.array(found, np.int64))
            yield ordered

    def __len__(self) -> int:
        return len(self._index)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Fetch images before they are read."""
        self._ahead.plan(samples)

    def read(self, sample: int) -> bytes:
        """The bytes of an object."""
        return self._ahead.result(sample)

    def _read(self, sample: int) -> bytes:
        check_size(int(self._status[sample, 0]))
        try:
            return self._there.read(self.name(sample))
        except FileNotFoundError:
            raise ImageError("it is missing: removed since the folder was listed?") from None

    def label(self, sample: int) -> Any:
        """The class number."""
        return self._index.labels[sample]

    def name(self, sample: int) -> str:
        """The path below the folder."""
        return self._index.path(sample)

    def path(self, sample: int) -> str:
        """Nothing: it is no file of this machine."""
        return ""

    def stamp(self, sample: int) -> Stamp:
        """Of the object's size and version when it was listed."""
        size, version = self._status[sample].tolist()
        return stamp_of(size, version) if version else 0


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def _in_order(class_name: str, listed: Listed) -> list[tuple[str, list[str]]]:
    """The images of a class, folder by folder, as a folder on a disk is scanned."""
    folders: dict[str, list[str]] = {}
    for path in listed:
        folder, _, name = path[len(class_name) + 1 :].rpartition("/")
        if _is_image(name):
            folders.setdefault(folder, []).append(name)
    return [
        (f"{folder}/" if folder else "", sorted(names)) for folder, names in sorted(folders.items())
    ]
