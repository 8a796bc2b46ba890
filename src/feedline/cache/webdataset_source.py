"""Tar shards of WebDataset as what a cache is made of.

Guarantees: the samples of the `webdataset` package, in the order of the shards' names; an image is
one read from its shard, whatever its place; no descriptor is kept.

Relies on: `shard_index` for where images lie; shards that are not written to meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from feedline.cache.shard_index import index_shards
from feedline.cache.source import Stamp, stamp_of
from feedline.plan.row import Field
from feedline.stores.read_file import read_part

__all__ = ["WebDatasetSource"]


class WebDatasetSource:
    """The samples of tar shards: an image, and a label in a .cls or a .json.

    Args:
        where: what the user named.
        folder: what the shards' paths are relative to.
        shards: the paths.

    Raises:
        DatasetError: the shards are not as they should be; names shard and key.
    """

    kind = "webdataset"
    label_field = Field("label", "int64", ())

    def __init__(self, where: str, folder: str, shards: Sequence[str]) -> None:
        self.where = where
        self._folder = folder
        self._index = index_shards(folder, shards)

    @property
    def classes(self) -> list[str] | None:
        """The "class" of each label's .json, where all samples of all labels agree."""
        return self._index.classes

    def __len__(self) -> int:
        return len(self._index)

    def read(self, sample: int) -> bytes:
        """The bytes of an image."""
        _, first, length = self._index.entries[sample].tolist()
        return read_part(os.fsencode(self.path(sample)), first, length)

    def label(self, sample: int) -> Any:
        """The class number."""
        return self._index.labels[sample]

    def name(self, sample: int) -> str:
        """The shard's path and the key in it."""
        shard = self._index.shards[int(self._index.entries[sample, 0])]
        name = os.fsencode(shard) + b"/" + self._index.name(sample)
        return name.decode("utf-8", "backslashreplace")

    def path(self, sample: int) -> str:
        """The shard."""
        return os.path.join(self._folder, self._index.shards[int(self._index.entries[sample, 0])])

    def stamp(self, sample: int) -> Stamp:
        """Of the shard's size and time of change, and of the image's place in it."""
        shard, first, length = self._index.entries[sample].tolist()
        return stamp_of(*self._index.status[shard].tolist(), first, length)
