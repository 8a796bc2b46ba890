"""Parquet files with images, as written by Hugging Face's datasets, as the source of a cache.

Guarantees: one row group of images is kept in memory, regardless of the file size. No file stays
open, so processes may be forked. Images are indexed without reading them; files that lack a column,
or whose labels differ in meaning, raise an error that names them.

Relies on: reading in the order of the rows; otherwise a row group is read again for each image.
pyarrow, which is imported only for such files.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.source import (
    IMAGE_NAMES,
    LABEL_NAMES,
    Stamp,
    first_existing,
    make_stamp,
    spread_evenly,
)
from feedline.cache.source_files import SourceFiles
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.order.batch_spec import Field

__all__ = ["ParquetIndex", "ParquetSource", "index_parquet", "open_parquet"]


_SAMPLED_GROUPS = 8
_MAX_GROUP_BYTES = 8 << 30  # of the images of a row group, which each worker keeps
_SPLIT = re.compile(r"(.+)-\d+-of-\d+\.parquet")  # Hugging Face's file names


class ParquetSource:
    """Rows of Parquet files with a column of images and one of class numbers.

    Args:
        where: path given by the user.
        there: folder of the files.
        files: relative paths in the order of the samples.

    Raises:
        DatasetError: a file cannot be read or lacks a column, or files differ in their columns.
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
        """Class names from the metadata of Hugging Face's datasets."""
        return self._index.columns.classes

    def __len__(self) -> int:
        return len(self._index.labels)

    def pick(self, count: int) -> list[int]:
        """Return samples of a few row groups, as each group is read as a whole."""
        firsts = self._index.groups[:, 0]
        lengths = np.diff(firsts, append=len(self))
        groups = np.flatnonzero(lengths)
        few = groups[spread_evenly(len(groups), _SAMPLED_GROUPS)]
        each = -(-count // len(few))
        return [
            int(firsts[group]) + place
            for group in few
            for place in spread_evenly(int(lengths[group]), each)
        ]

    def prefetch(self, samples: Iterable[int]) -> None:
        """Do nothing, as row groups hold many images."""

    def read(self, sample: int) -> bytes:
        """Return the bytes of an image."""
        firsts = self._index.groups[:, 0]
        # The last group that starts there: groups before it may be empty.
        group = int(np.searchsorted(firsts, sample, side="right")) - 1
        if self._last is None or self._last[0] != group:
            self._last = None  # free memory before reading the next one
            self._last = group, self._images(group)
        image = self._last[1][sample - int(firsts[group])].as_py()
        path = None
        if isinstance(image, dict):
            image, path = image["bytes"], image.get("path")
        if image is None:
            raise ImageError(
                f"its row has a path, {path!r}, but not the bytes of the image: write the bytes "
                "into the file, or build the cache from the loaded dataset"
                if path
                else "its row has no image"
            )
        found: bytes = image
        return found

    def _images(self, group: int) -> Any:
        """Read the images of a row group."""
        _, file, number = self._index.groups[group].tolist()
        image = self._index.columns.image
        try:
            with open_parquet(self._there, self._index.files[file]) as parquet:
                table = parquet.read_row_group(number, columns=[image], use_threads=False)
        except DatasetError as error:
            if self._there.is_remote:  # may only be unreachable
                raise
            raise ImageError.of(error) from error
        return table.column(image)

    def label(self, sample: int) -> Any:
        """Return the class number."""
        return self._index.labels[sample]

    def _place(self, sample: int) -> tuple[int, int]:
        """Return the number of a sample's file, and its row there."""
        first_rows = self._index.first_rows
        file = int(np.searchsorted(first_rows, sample, side="right")) - 1
        return file, sample - int(first_rows[file])

    def name(self, sample: int) -> str:
        """Return the row's path if all rows have distinct ones, or else its file and number."""
        if self._index.names is not None:
            return str(self._index.names[sample].as_py())
        file, row = self._place(sample)
        return f"{self._index.files[file]}/{row}"

    def path(self, sample: int) -> str:
        """Return the path of the local file that holds the row, or ""."""
        file = self._index.files[self._place(sample)[0]]
        return "" if self._there.is_remote else self._there.path(file)

    def stamp(self, sample: int) -> Stamp:
        """Return a stamp of the file's size, modification time and the row."""
        file, row = self._place(sample)
        return make_stamp(*self._index.status[file].tolist(), row)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


Whole = np.ndarray[Any, np.dtype[np.int64]]


class ParquetColumns(NamedTuple):
    """Column names of a file.

    Args:
        image: column of bytes, or of structs with "bytes".
        label: column of whole numbers.
        classes: class names by number; None if unknown.
    """

    image: str
    label: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class ParquetIndex:
    """Rows of some Parquet files.

    Args:
        files: relative paths.
        columns: column names, the same in all files.
        labels: int64 (n).
        names: pyarrow array of n distinct strings; None if the rows have no such names.
        first_rows: int64 (files), number of the first sample in each file.
        status: int64 (files, 2), size in bytes and version of each file.
        groups: int64 (row groups, 3), number of the first sample, file, and number in the file of
            each row group.
    """

    files: list[str]
    columns: ParquetColumns
    labels: Whole
    names: Any
    first_rows: Whole
    status: Whole
    groups: Whole


class _FileRows(NamedTuple):
    """Rows of one file: `paths` are pyarrow string arrays, `groups` the lengths of row groups."""

    columns: ParquetColumns
    labels: Whole
    paths: list[Any]
    groups: list[int]
    status: tuple[int, int]


def index_parquet(there: SourceFiles, files: Sequence[str]) -> ParquetIndex:
    """Index Parquet files by their relative paths.

    Raises:
        DatasetError: there are no rows, a file cannot be read or lacks a column, or files differ;
            names the file.
        UsageError: pyarrow is not installed.
    """
    folder = there.path("")
    _check_splits(there, files)
    parts = list(there.each(functools.partial(_read_file, there), files))
    for file, part in zip(files, parts, strict=True):
        if part.columns != parts[0].columns:
            raise DatasetError(
                f"the Parquet files {files[0]!r} and {file!r} of {folder!r} differ in their image "
                "or label column, or in their class names",
                hint="build a cache of each",
            )
    rows = [len(part.labels) for part in parts]
    if not sum(rows):
        raise DatasetError(f"the Parquet files of {folder!r} have no rows: {', '.join(files[:5])}")
    first_rows = np.cumsum([0, *rows[:-1]], dtype=np.int64)
    groups, first = [], 0
    for file_number, part in enumerate(parts):
        for number, length in enumerate(part.groups):
            groups.append((first, file_number, number))
            first += length
    return ParquetIndex(
        files=list(files),
        columns=parts[0].columns,
        labels=np.concatenate([part.labels for part in parts]),
        names=_names([path for part in parts for path in part.paths], sum(rows)),
        first_rows=first_rows,
        status=np.array([part.status for part in parts], np.int64),
        groups=np.array(groups, np.int64),
    )


@contextlib.contextmanager
def open_parquet(there: SourceFiles, name: str) -> Iterator[Any]:
    """Open a pyarrow file that reads in the calling thread.

    Raises:
        DatasetError: the file is not a Parquet file, or cannot be read.
        UsageError: pyarrow is not installed.
    """
    pyarrow = _pyarrow()
    try:
        with there.open(name) as file, pyarrow.parquet.ParquetFile(file, pre_buffer=False) as one:
            yield one
    except pyarrow.ArrowException as error:
        raise DatasetError(
            f"cannot read the Parquet file {there.path(name)!r}: {error}",
            hint="copy or download it again, if that was interrupted",
        ) from error


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"Parquet files need the package pyarrow ({error})",
            hint='pip install "feedline[parquet]"',
        ) from error
    return pyarrow


def _check_splits(there: SourceFiles, files: Sequence[str]) -> None:
    found = (_SPLIT.fullmatch(os.path.basename(file)) for file in files)
    splits = sorted({split[1] for split in found if split})
    if len(splits) > 1:
        raise DatasetError(
            f"the Parquet files of {there.path('')!r} belong to several splits, "
            f"{', '.join(splits)}",
            hint="select one with a quoted pattern, such as "
            f"{there.path(os.path.join(os.path.dirname(files[0]), splits[-1]))}-*.parquet",
        )


def _read_file(there: SourceFiles, name: str) -> _FileRows:
    pyarrow, path, status = _pyarrow(), there.path(name), there.status(name)
    with open_parquet(there, name) as file:
        about = file.metadata
        columns = _columns(file.schema_arrow, path)
        image = file.schema_arrow.field(columns.image).type
        has_paths = pyarrow.types.is_struct(image) and image.get_field_index("path") >= 0
        wanted = [columns.label, *[f"{columns.image}.path"] * has_paths]
        table = file.read(columns=wanted, use_threads=False)
        labels = table.column(columns.label)
        if labels.null_count:
            raise DatasetError(
                f"{labels.null_count} rows of the Parquet file {path!r} have no {columns.label!r}"
            )
        paths = []
        if has_paths:
            field = pyarrow.compute.struct_field(table.column(columns.image), "path")
            paths = field.cast(pyarrow.large_string()).chunks
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        for group in groups:
            _check_size(group, columns.image, path)
        return _FileRows(
            columns,
            labels.to_numpy().astype(np.int64),
            paths,
            [group.num_rows for group in groups],
            status,
        )


def _columns(schema: Any, path: str) -> ParquetColumns:
    types = _pyarrow().types

    def in_struct(kind: Any) -> bool:
        return bool(types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    structs = [field.name for field in schema if in_struct(field.type)]
    binary = [
        field.name
        for field in schema
        if types.is_binary(field.type) or types.is_large_binary(field.type)
    ]
    image = first_existing(IMAGE_NAMES, structs + binary) or (
        structs[0] if len(structs) == 1 else None
    )
    label = first_existing(
        LABEL_NAMES, [field.name for field in schema if types.is_integer(field.type)]
    )
    if image is None or label is None:
        missing = (
            f"an image column named {', '.join(map(repr, IMAGE_NAMES))} of bytes or of structs "
            'with "bytes"'
            if image is None
            else "a column of whole numbers named " + ", ".join(map(repr, LABEL_NAMES))
        )
        there = ", ".join(f"{field.name!r} ({field.type})" for field in schema)
        raise DatasetError(f"the Parquet file {path!r} lacks {missing}; it has {there[:1000]}")
    return ParquetColumns(image, label, _classes(schema.metadata, label))


def _classes(metadata: Any, label: str) -> tuple[str, ...] | None:
    """Return the class names from the metadata of Hugging Face's datasets."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    named_all = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if named_all else None


def _check_size(group: Any, image: str, path: str) -> None:
    columns = (group.column(number) for number in range(group.num_columns))
    size = sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema == image or column.path_in_schema.startswith(f"{image}.")
    )
    if size > _MAX_GROUP_BYTES:
        raise DatasetError(
            f"the Parquet file {path!r} has a row group with {size / 1e9:.1f} GB of images, which "
            "each worker would keep in memory",
            hint="rewrite the file with smaller row groups, e.g. "
            "pyarrow.parquet.write_table(..., row_group_size=1000)",
        )


def _names(paths: list[Any], rows: int) -> Any:
    """Join all paths in one array; None unless each row has a distinct one."""
    pyarrow = _pyarrow()
    all_ = pyarrow.chunked_array(paths, pyarrow.large_string())
    if len(all_) != rows or all_.null_count or len(all_.unique()) != rows:
        return None
    return all_.combine_chunks()
