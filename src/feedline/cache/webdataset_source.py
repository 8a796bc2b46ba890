"""Tar shards of WebDataset as what a cache is made of.

Guarantees: the samples of the `webdataset` package, in the order of the shards' names; an image is
one read from its shard, whatever its place, or one request where the shard is far away; no
descriptor is kept.

Relies on: `shard_index` for where images lie; shards that are not written to meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from feedline.cache.fetch_ahead import FetchAhead
from feedline.cache.shard_index import index_shards
from feedline.cache.source import Stamp, evenly, stamp_of
from feedline.cache.source_files import SourceFiles
from feedline.plan.row import Field

__all__ = ["WebDatasetSource"]


class WebDatasetSource:
    """The samples of tar shards: an image, and a label in a .cls or a .json.

    Args:
        where: what the user named.
        files: where the shards lie.
        shards: their paths there.

    Raises:
        DatasetError: the shards are not as they should be; names shard and key.
    """

    kind = "webdataset"
    label_field = Field("label", "int64", ())

    def __init__(self, where: str, files: SourceFiles, shards: Sequence[str]) -> None:
        self.where = where
        self._files = files
        self._index = index_shards(files, shards)
        self._ahead = FetchAhead(self._read)

    @property
    def classes(self) -> list[str] | None:
        """The "class" of each label's .json, where all samples of all labels agree."""
        return self._index.classes

    def __len__(self) -> int:
        return len(self._index)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Fetch images from far away before they are read."""
        if self._files.far:
            self._ahead.plan(samples)

    def read(self, sample: int) -> bytes:
        """The bytes of an image."""
        return self._ahead.result(sample)

    def _read(self, sample: int) -> bytes:
        shard, first, length = self._index.entries[sample].tolist()
        return self._files.part(self._index.shards[shard], first, length)

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
        shard = self._index.shards[int(self._index.entries[sample, 0])]
        return "" if self._files.far else self._files.path(shard)

    def stamp(self, sample: int) -> Stamp:
        """Of the shard's size and time of change, and of the image's place in it."""
        shard, first, length = self._index.entries[sample].tolist()
        return stamp_of(*self._index.status[shard].tolist(), first, length)
