"""Parquet files with images, as Hugging Face's datasets write them, as what a cache is made of.

Guarantees: of the images one row group is kept in memory, whatever the size of the files; no file
is kept open, so a process may be forked from one that has read.

Relies on: `parquet_index` for where images lie; images that are asked for in the order of the rows,
or a row group is read again for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from feedline.cache.parquet_index import index_parquet, opened
from feedline.cache.source import Stamp, evenly, stamp_of
from feedline.cache.source_files import SourceFiles
from feedline.errors import DatasetError, ImageError
from feedline.plan.row import Field

__all__ = ["ParquetSource"]

_GROUPS_LOOKED_AT = 8


class ParquetSource:
    """The rows of Parquet files with a column of images and one of class numbers.

    Args:
        where: what the user named.
        there: where the files lie.
        files: their paths there, in the order of the samples.

    Raises:
        DatasetError: a file cannot be read or has no such columns, or files differ in them.
        UsageError: pyarrow is not installed.
    """

    kind = "parquet"
    label_field = Field("label", "int64", ())

    def __init__(self, where: str, there: SourceFiles, files: Sequence[str]) -> None:
        self.where = where
        self._there = there
        self._index = index_parquet(there, files)
        self._last: tuple[int, Any] | None = None  # a row group's number, and its images

    @property
    def classes(self) -> Sequence[str] | None:
        """The names that Hugging Face's datasets notes beside the columns."""
        return self._index.columns.classes

    def __len__(self) -> int:
        return len(self._index.labels)

    def some(self, count: int) -> list[int]:
        """About so many samples of a few row groups, as each of these is read as a whole."""
        firsts = self._index.groups[:, 0]
        lengths = np.diff(firsts, append=len(self))
        groups = np.flatnonzero(lengths)
        few = groups[evenly(len(groups), _GROUPS_LOOKED_AT)]
        each = -(-count // len(few))
        return [
            int(firsts[group]) + place
            for group in few
            for place in evenly(int(lengths[group]), each)
        ]

    def ahead(self, samples: Iterable[int]) -> None:
        """Nothing: a row group has many images, and comes as a whole."""

    def read(self, sample: int) -> bytes:
        """The bytes of an image."""
        firsts = self._index.groups[:, 0]
        # The last of those that begin there: groups before it may be empty.
        group = int(np.searchsorted(firsts, sample, side="right")) - 1
        if self._last is None or self._last[0] != group:
            self._last = None  # before the next one comes into memory
            self._last = group, self._images(group)
        image = self._last[1][sample - int(firsts[group])].as_py()
        path = None
        if isinstance(image, dict):
            image, path = image["bytes"], image.get("path")
        if image is None:
            raise ImageError(
                f"its row has a path, {path!r}, and not the bytes of the image: write those into "
                "the file, or make the cache of the loaded dataset itself"
                if path
                else "its row has no image"
            )
        found: bytes = image
        return found

    def _images(self, group: int) -> Any:
        """The images of a row group, as pyarrow has them."""
        _, file, number = self._index.groups[group].tolist()
        image = self._index.columns.image
        try:
            with opened(self._there, self._index.files[file]) as parquet:
                table = parquet.read_row_group(number, columns=[image], use_threads=False)
        except DatasetError as error:
            if self._there.far:  # perhaps it is only out of reach
                raise
            raise ImageError(str(error)) from error
        return table.column(image)

    def label(self, sample: int) -> Any:
        """The class number."""
        return self._index.labels[sample]

    def _place(self, sample: int) -> tuple[int, int]:
        """The number of a sample's file, and its row there."""
        first_rows = self._index.first_rows
        file = int(np.searchsorted(first_rows, sample, side="right")) - 1
        return file, sample - int(first_rows[file])

    def name(self, sample: int) -> str:
        """The path that the row has, where all have different ones; else its file and number."""
        if self._index.names is not None:
            return str(self._index.names[sample].as_py())
        file, row = self._place(sample)
        return f"{self._index.files[file]}/{row}"

    def path(self, sample: int) -> str:
        """The file that has its row."""
        file = self._index.files[self._place(sample)[0]]
        return "" if self._there.far else self._there.path(file)

    def stamp(self, sample: int) -> Stamp:
        """Of the file's size and time of change, and of the row."""
        file, row = self._place(sample)
        return stamp_of(*self._index.status[file].tolist(), row)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}
