"""A folder of class folders as what a cache is made of.

Guarantees: the images, labels and order of `feedline.ImageFolder`; a file that changes its size or
its time of change has another stamp.

Relies on: `index` for which files, `file_store` for their bytes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from feedline.cache.source import Stamp, evenly, stamp_of
from feedline.plan.row import Field
from feedline.stores.file_store import FileStore, files_of
from feedline.stores.index import FolderIndex

__all__ = ["FolderSource"]


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
        return files_of(self.where, self.index)

    def __len__(self) -> int:
        return len(self.index)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Nothing: the kernel reads ahead."""

    def read(self, sample: int) -> bytes:
        """The bytes of a file."""
        return self._files.read(sample, 0)

    def label(self, sample: int) -> Any:
        """The class number."""
        return self.index.labels[sample]

    def name(self, sample: int) -> str:
        """The path below the folder."""
        return self.index.path(sample)

    def path(self, sample: int) -> str:
        """The image's file."""
        return os.fsdecode(self._files.path(sample))

    def stamp(self, sample: int) -> Stamp:
        """Of the file's size and its time of change."""
        try:
            status = os.stat(self.path(sample))
        except OSError:  # reading it says why
            return 0
        return stamp_of(status.st_size, status.st_mtime_ns)
