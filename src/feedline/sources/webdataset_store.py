"""Images in WebDataset tar shards as a store: read directly from the shards.

Guarantees: nothing is extracted; a change of a shard since its scan is detected; a pickle carries
no descriptor; several threads may read at once.

Relies on: `webdataset_index` for the positions, `open_files` to read.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from feedline.errors import ImageError
from feedline.order.batch_spec import Field
from feedline.sources.open_files import OpenFiles
from feedline.sources.originals import NamedOriginals
from feedline.sources.path_table import LabelledPaths, printable
from feedline.sources.read_file import check_size
from feedline.sources.webdataset_index import Shards

__all__ = ["WebDatasetStore"]


class WebDatasetStore(NamedOriginals[LabelledPaths]):
    """Images of shards; a `SampleStore`.

    Args:
        found: index of the shards.
        labels: labels of all samples, (n, ...).
    """

    def __init__(self, found: Shards, labels: np.ndarray[Any, Any]) -> None:
        self.paths = LabelledPaths(found.blob, found.starts, labels)
        self.label_field = Field("label", labels.dtype.name, labels.shape[1:])
        self.folder, self._shards = found.folder, found.shards
        self._status, self._entries = found.status, found.entries
        self._files = OpenFiles("shard", "ImageList")

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    def read(self, sample: int, side: int) -> bytes:
        """Read the bytes of a sample's image, which is the original."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample index {sample} is out of range for {len(self)} samples")
        shard, first, length = self._entries[sample].tolist()
        check_size(length)
        size, changed = self._status[shard].tolist()
        path = os.path.join(self.folder, self._shards[shard])
        data = self._files.read(path, (size, changed), first, length)
        if len(data) < length:
            raise ImageError(
                f"its shard ends {length - len(data)} bytes before the end of the image"
            )
        return data

    def name(self, sample: int) -> str:
        """Path of a sample's shard, and the name of its image in it."""
        return printable(os.fsencode(self.folder) + self.paths.name(sample)).decode()

    def __repr__(self) -> str:
        return f"tar shards in {self.folder!r}"
