"""A folder of class folders, or some files, as what a cache is made of.

Guarantees: the images, labels and order of `feedline.ImageFolder`, or of the dataset that the files
were taken from; a file that changes its size or its time of change has another stamp.

Relies on: `file_store` for paths, labels and bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.cache.source import Stamp, evenly, stamp_of
from feedline.plan.row import Field
from feedline.stores.file_store import FileStore

__all__ = ["FolderSource"]


@dataclass(frozen=True)
class FolderSource:
    """The files of a folder with one sub-folder a class, or any others.

    Args:
        where: the folder.
        files: those in it that are samples.
        classes: the names of the sub-folders by class number; None where they are not known.
        kind: "folder", or "files" where they are only some of what lies in the folder.
    """

    where: str
    files: FileStore[Any]
    classes: Sequence[str] | None
    kind: str = "folder"

    @property
    def label_field(self) -> Field:
        """The dtype and shape of one label."""
        return self.files.label_field

    def __len__(self) -> int:
        return len(self.files)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Nothing: the kernel reads ahead."""

    def read(self, sample: int) -> bytes:
        """The bytes of a file."""
        return self.files.read(sample, 0)

    def label(self, sample: int) -> Any:
        """The class number, or another label."""
        return self.files.label(sample)

    def name(self, sample: int) -> str:
        """The path below the folder."""
        path: str = self.files.paths.path(sample)
        return path

    def path(self, sample: int) -> str:
        """The image's file."""
        return os.fsdecode(self.files.path(sample))

    def stamp(self, sample: int) -> Stamp:
        """Of the file's size and its time of change."""
        try:
            status = os.stat(self.path(sample))
        except OSError:  # reading it says why
            return 0
        return stamp_of(status.st_size, status.st_mtime_ns)
