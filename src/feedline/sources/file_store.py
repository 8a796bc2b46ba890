"""Image files and their labels as a store: of a folder with classes, or of a table of paths.

Guarantees: no Python object per file; the paths are pickled out of band with protocol 5; an
unreadable file raises an ImageError. Relies on: `path_table` for the paths, `read_file` for the
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.order.batch_spec import Field
from feedline.sources.index import FolderIndex
from feedline.sources.originals import NamedOriginals, Paths
from feedline.sources.path_table import LabelledPaths
from feedline.sources.read_file import read_file

__all__ = ["FileStore", "files_of"]


class FileStore(NamedOriginals[Paths]):
    """Image files; a `SampleStore`.

    Args:
        paths: the samples' paths and labels; whole numbers of shape (n) become int64.
        folders: prefix of a path, in the file system's bytes, an absolute path that ends with a
            separator: one for all samples, or one for each label from 0 on.
    """

    def __init__(self, paths: Paths, folders: Sequence[bytes]) -> None:
        self.paths = paths
        labels = paths.labels
        numbers = labels.ndim == 1 and labels.dtype.kind in "iu"
        self.label_field = Field(
            "label", "int64" if numbers else labels.dtype.name, labels.shape[1:]
        )
        self.folders = folders
        self._by_label = len(folders) > 1

    def read(self, sample: int, side: int) -> bytes:
        """Read the bytes of a sample's file, which is the original."""
        return read_file(self.path(sample))

    def path(self, sample: int) -> bytes:
        """Absolute path of a sample's file.

        Raises:
            IndexError: there is no such sample.
        """
        name = self.paths.name(sample)
        return self.folders[self.paths.labels[sample] if self._by_label else 0] + name

    def name(self, sample: int) -> str:
        """Absolute path of a sample's file for messages, with undecodable bytes escaped."""
        return self.path(sample).decode("utf-8", "backslashreplace")

    def chosen(self, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> FileStore[LabelledPaths]:
        """Select files by index, in the given order."""
        paths, folders = self.paths, self.folders
        if isinstance(paths, FolderIndex):  # whose table names the classes' folders
            folders = [folders[0][: -len(os.path.join(os.fsencode(paths.classes[0]), b""))]]
        return FileStore(paths.chosen(numbers), folders)

    def without_repeats(self) -> FileStore[Any]:
        """Remove repeated files. A folder has none."""
        if isinstance(self.paths, FolderIndex):
            return self
        once = self.paths.without_repeats()
        return self if once is self.paths else FileStore(once, self.folders)


def files_of(root: str, index: FolderIndex) -> FileStore[FolderIndex]:
    """Files of a folder of class folders.

    Args:
        root: absolute path of the folder.
        index: its index.
    """
    folders = [os.fsencode(os.path.join(root, name, "")) for name in index.classes]
    return FileStore(index, folders)
