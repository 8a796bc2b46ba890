"""What a cache is made of: images, labels and names, wherever they come from.

Guarantees: nothing of the source is changed; what is no source is said with the kinds there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from feedline.errors import DatasetError, UsageError
from feedline.plan.row import Field
from feedline.stores.cache_layout import MANIFEST
from feedline.stores.file_store import FileStore
from feedline.stores.index import FolderIndex, scan_folder
from feedline.stores.store import Pixels

__all__ = ["FolderSource", "Source", "open_source"]

Stamp = int


class Source(Protocol):
    """Numbered images with their labels and names. Pickled once and sent to every worker."""

    @property
    def kind(self) -> str:
        """In a word, for the manifest."""
        ...

    @property
    def where(self) -> str:
        """Its path, or what it is called."""
        ...

    @property
    def classes(self) -> Sequence[str] | None:
        """The names of the classes by number; None where there are none."""
        ...

    @property
    def label_field(self) -> Field:
        """The dtype and shape of one label, under the name "label"."""
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def read(self, sample: int) -> bytes | Pixels:
        """An image, encoded or as uint8 (height, width, 3), RGB.

        Raises:
            ImageError: it cannot be read; the message does not name it.
        """
        ...

    def label(self, sample: int) -> Any:
        """A number, or an array of numbers, that fits `label_field`."""
        ...

    def name(self, sample: int) -> str:
        """What the sample is called, wherever the source lies: unlike any other's name."""
        ...

    def stamp(self, sample: int) -> Stamp:
        """64 bits that change when the sample does; 0 where that cannot be seen."""
        ...


@dataclass(frozen=True)
class FolderSource:
    """A folder with one sub-folder a class."""

    where: str
    index: FolderIndex
    kind = "folder"
    label_field = Field("label", "int64", ())

    @property
    def classes(self) -> list[str]:
        """The names of the sub-folders."""
        return self.index.classes

    @functools.cached_property
    def _files(self) -> FileStore[FolderIndex]:
        folders = [os.fsencode(os.path.join(self.where, name, "")) for name in self.classes]
        return FileStore(self.index, folders)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, sample: int) -> bytes:
        """The bytes of a file."""
        return self._files.read(sample, 0)

    def label(self, sample: int) -> Any:
        """The class number."""
        return self.index.labels[sample]

    def name(self, sample: int) -> str:
        """The path below the folder."""
        relative = self.index.name(sample).decode("utf-8", "backslashreplace")
        return f"{self.classes[self.index.labels[sample]]}/{relative}"

    def stamp(self, sample: int) -> Stamp:
        """Of the file's size and its time of change."""
        try:
            status = os.stat(self._files.path(sample))
        except OSError:  # reading it says why
            return 0
        return stamp_of(status.st_size, status.st_mtime_ns)


def stamp_of(*numbers: int) -> Stamp:
    """A stamp of some numbers."""
    return xxhash.xxh3_64_intdigest(
        b"".join(n.to_bytes(16, "little", signed=True) for n in numbers)
    )


def open_source(given: Any) -> Source:
    """A source of what a user names: a path, or a map-style Dataset of (image, label).

    Raises:
        DatasetError: the path holds nothing that is known.
        UsageError: it is neither.
    """
    if isinstance(given, (str, os.PathLike)):
        where = os.path.abspath(os.path.expanduser(os.fspath(given)))
        return _at(where)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        raise NotImplementedError
    raise UsageError(
        "a cache is made of a path (a folder of class folders, tar shards of WebDataset, Parquet "
        f"files) or of a map-style Dataset of (image, label), got {type(given).__name__}"
    )


def _at(where: str) -> Source:
    if os.path.exists(os.path.join(where, MANIFEST)):
        raise UsageError(
            f"{where!r} is a cache itself: a copy of a copy loses quality. Name what it was made "
            "of; `feedline cache info` says that"
        )
    endings = _endings(where)
    if ".tar" in endings:
        raise NotImplementedError
    if ".parquet" in endings:
        raise NotImplementedError
    return FolderSource(where, scan_folder(where))


def _endings(where: str) -> set[str]:
    """The endings of the files in a folder, or of a file."""
    try:
        names = os.listdir(where) if os.path.isdir(where) else [where]
    except OSError as error:
        raise DatasetError(f"{where!r} cannot be listed: {error.strerror or error}") from error
    return {os.path.splitext(name)[1].lower() for name in names}
