"""Local folders of class folders, lists of files and other stores as the source of a cache.

Guarantees: the same images, labels and order as `feedline.ImageFolder`, or as the dataset of the
files. A file has another stamp if its size or modification time changes.

Relies on: `file_store` for paths, labels and bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.cache.source import Stamp, make_stamp, spread_evenly
from feedline.errors import UsageError
from feedline.order.batch_spec import Field
from feedline.sources.file_store import FileStore
from feedline.sources.store import Pixels, SampleStore

__all__ = ["FolderSource", "StoreSource"]


@dataclass(frozen=True)
class FolderSource:
    """Files of a folder with one sub-folder per class, or any other files.

    Args:
        where: the folder.
        files: samples of the folder.
        classes: names of the sub-folders by class number; None if unknown.
        kind: "folder", or "files" if they are only some files of the folder.
    """

    where: str
    files: FileStore[Any]
    classes: Sequence[str] | None
    kind: str = "folder"

    @property
    def label_field(self) -> Field:
        """Dtype and shape of a label."""
        return self.files.label_field

    def __len__(self) -> int:
        return len(self.files)

    def pick(self, count: int) -> list[int]:
        """Return evenly spread samples."""
        return spread_evenly(len(self), count)

    def prefetch(self, samples: Iterable[int]) -> None:
        """Do nothing, as the kernel reads ahead."""

    def read(self, sample: int) -> bytes:
        """Return the bytes of a file."""
        return self.files.read(sample, 0)

    def label(self, sample: int) -> Any:
        """Return the class number, or another label."""
        return self.files.label(sample)

    def name(self, sample: int) -> str:
        """Return the relative path."""
        path: str = self.files.paths.path(sample)
        return path

    def path(self, sample: int) -> str:
        """Return the path of the image's file."""
        return os.fsdecode(self.files.path(sample))

    def stamp(self, sample: int) -> Stamp:
        """Return a stamp of the file's size and modification time."""
        try:
            status = os.stat(self.path(sample))
        except OSError:  # reading it reports the error
            return 0
        return make_stamp(status.st_size, status.st_mtime_ns)


class StoreSource:
    """Samples of a store, encoded as they are. All stamps are 0, as changes are not detected.

    Args:
        where: description of the store.
        store: store of originals.
        classes: class names by number; None if there are none.

    Raises:
        UsageError: two samples have the same name.
    """

    kind = "dataset"

    def __init__(self, where: str, store: SampleStore, classes: Sequence[str] | None) -> None:
        self.where = where
        self.classes = classes
        self._store = store
        names = set(map(store.name, range(len(store))))
        if len(names) < len(store):
            raise UsageError(
                f"{where}: {len(store)} samples have {len(names)} names, but a cache stores each "
                "name once",
                hint="remove repeated samples",
            )

    @property
    def label_field(self) -> Field:
        """Dtype and shape of a label."""
        return self._store.label_field

    def __len__(self) -> int:
        return len(self._store)

    def pick(self, count: int) -> list[int]:
        """Return evenly spread samples."""
        return spread_evenly(len(self), count)

    def prefetch(self, samples: Iterable[int]) -> None:
        """Do nothing, as the kernel reads ahead."""

    def read(self, sample: int) -> bytes | Pixels:
        """Return the bytes of an image."""
        return self._store.read(sample, 0)

    def label(self, sample: int) -> Any:
        """Return the label of a sample."""
        return self._store.label(sample)

    def name(self, sample: int) -> str:
        """Return the sample's name in the store."""
        return self._store.name(sample)

    def path(self, sample: int) -> str:
        """Return "": no file holds the sample alone."""
        return ""

    def stamp(self, sample: int) -> Stamp:
        """Return 0: changes are not detected."""
        return 0
