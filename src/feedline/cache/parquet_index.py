"""Where the images of Parquet files lie, and their labels and names, in a few arrays.

Guarantees: no image is read; no Python object per sample is kept; files that lack a column, or that
differ in what their labels mean, are an error that names them.

Relies on: pyarrow, which is imported here and only when there are such files.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.columns import IMAGE_NAMES, LABEL_NAMES, named
from feedline.cache.source_files import SourceFiles
from feedline.errors import DatasetError, UsageError

__all__ = ["ParquetIndex", "index_parquet", "opened"]

Whole = np.ndarray[Any, np.dtype[np.int64]]

_MOST_BYTES = 8 << 30  # of the images of a row group, which each worker keeps
_SPLIT = re.compile(r"(.+)-\d+-of-\d+\.parquet")  # the names that Hugging Face gives files


class Columns(NamedTuple):
    """What the columns of a file are called.

    Args:
        image: of bytes, or of structs with "bytes".
        label: of whole numbers.
        classes: their names by number; None where they have none.
    """

    image: str
    label: str
    classes: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class ParquetIndex:
    """The rows of some Parquet files.

    Args:
        files: their paths, relative to a folder.
        columns: the same in all of them.
        labels: int64 (n).
        names: an array of n strings of pyarrow's, all different; None where there are no such.
        first_rows: int64 (files), the number of the first sample in each file.
        status: int64 (files, 2), their sizes in bytes, and what changes when they do.
        groups: int64 (row groups, 3), the number of the first sample in each row group, its file,
            and its number in the file.
    """

    files: list[str]
    columns: Columns
    labels: Whole
    names: Any
    first_rows: Whole
    status: Whole
    groups: Whole


class _Part(NamedTuple):
    """What one file adds: `paths` are pyarrow's arrays of strings, `groups` the rows of each."""

    columns: Columns
    labels: Whole
    paths: list[Any]
    groups: list[int]
    status: tuple[int, int]


def index_parquet(there: SourceFiles, files: Sequence[str]) -> ParquetIndex:
    """Look through files, which are named by their paths in a folder.

    Raises:
        DatasetError: there are no rows, a file cannot be read or lacks a column, or files differ;
            names the file.
        UsageError: pyarrow is not installed.
    """
    folder = there.path("")
    _check_splits(there, files)
    parts = list(there.each(functools.partial(_part, there), files))
    for file, part in zip(files, parts, strict=True):
        if part.columns != parts[0].columns:
            raise DatasetError(
                f"the Parquet files {files[0]!r} and {file!r} of {folder!r} differ in their image "
                "or label column, or in what the classes are called: make a cache of each"
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
def opened(there: SourceFiles, name: str) -> Iterator[Any]:
    """A file of pyarrow's, which reads in the thread that asks for it.

    Raises:
        DatasetError: it is no Parquet file, or cannot be read.
        UsageError: pyarrow is not installed.
    """
    pyarrow = _pyarrow()
    try:
        with there.opened(name) as file, pyarrow.parquet.ParquetFile(file, pre_buffer=False) as one:
            yield one
    except pyarrow.ArrowException as error:
        raise DatasetError(
            f"the Parquet file {there.path(name)!r} cannot be read: {error}. Was it copied or "
            "downloaded in part?"
        ) from error


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"Parquet files are read by the package pyarrow, which is not there ({error}): "
            'pip install "feedline[parquet]"'
        ) from error
    return pyarrow


def _check_splits(there: SourceFiles, files: Sequence[str]) -> None:
    found = (_SPLIT.fullmatch(os.path.basename(file)) for file in files)
    splits = sorted({split[1] for split in found if split})
    if len(splits) > 1:
        raise DatasetError(
            f"the Parquet files of {there.path('')!r} are of several splits, {', '.join(splits)}, "
            "and a cache is made of one: name its files by a pattern in quotation marks, such as "
            f"{there.path(os.path.join(os.path.dirname(files[0]), splits[-1]))}-*.parquet"
        )


def _part(there: SourceFiles, name: str) -> _Part:
    pyarrow, path, status = _pyarrow(), there.path(name), there.status(name)
    with opened(there, name) as file:
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
        return _Part(
            columns,
            labels.to_numpy().astype(np.int64),
            paths,
            [group.num_rows for group in groups],
            status,
        )


def _columns(schema: Any, path: str) -> Columns:
    types = _pyarrow().types

    def in_struct(kind: Any) -> bool:
        return bool(types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    structs = [field.name for field in schema if in_struct(field.type)]
    binary = [
        field.name
        for field in schema
        if types.is_binary(field.type) or types.is_large_binary(field.type)
    ]
    image = named(IMAGE_NAMES, structs + binary) or (structs[0] if len(structs) == 1 else None)
    label = named(LABEL_NAMES, [field.name for field in schema if types.is_integer(field.type)])
    if image is None or label is None:
        missing = (
            f"a column of images named {', '.join(map(repr, IMAGE_NAMES))}, which are bytes or "
            'structs with "bytes"'
            if image is None
            else "a column of whole numbers named " + ", ".join(map(repr, LABEL_NAMES))
        )
        there = ", ".join(f"{field.name!r} ({field.type})" for field in schema)
        raise DatasetError(f"the Parquet file {path!r} lacks {missing}. It has {there[:1000]}")
    return Columns(image, label, _classes(schema.metadata, label))


def _classes(metadata: Any, label: str) -> tuple[str, ...] | None:
    """The names of the classes, as Hugging Face's datasets notes them."""
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
    if size > _MOST_BYTES:
        raise DatasetError(
            f"the Parquet file {path!r} has a row group with {size / 1e9:.1f} GB of images, and "
            "each worker keeps one in memory: write the file anew with smaller ones, e.g. "
            "pyarrow.parquet.write_table(..., row_group_size=1000)"
        )


def _names(paths: list[Any], rows: int) -> Any:
    """All paths in one array, where each row has one that no other row has; else None."""
    pyarrow = _pyarrow()
    all_ = pyarrow.chunked_array(paths, pyarrow.large_string())
    if len(all_) != rows or all_.null_count or len(all_.unique()) != rows:
        return None
    return all_.combine_chunks()
