"""Images in the rows of a Hugging Face `datasets.Dataset`, and of Parquet files.

Guarantees: images are indexed without reading them, and not decoded by datasets, whose exceptions
become ImageErrors; a path in a row is read only below a stated folder. Of Parquet files one row
group of images is in memory, regardless of the file size, and no file stays open, so processes may
be forked; files that lack a column, or whose labels differ in meaning, raise an error that names
them.

Relies on: the feature `Image`, whose cells have "bytes" and "path" with decode=False. Parquet files
are read in the order of the rows; otherwise a row group is read again for each image. datasets is
used only for a dataset of its own, pyarrow only for such files.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.files import read_file
from feedline.sources.remote_files import FileStatus, LocalFolder, RemoteFolder
from feedline.sources.remote_filesystem import is_url
from feedline.sources.store import (
    Numbers,
    SampleStore,
    first_names,
    hash_images,
    label_field,
    make_stamp,
    spread_evenly,
)
from feedline.sources.tables import check_column, holds_bytes, import_pyarrow

IMAGE_NAMES = ("image", "img", "jpg", "png")
"""Usual names of a column of images."""
LABEL_NAMES = ("label", "labels", "fine_label", "cls")
"""Usual names of a column of labels."""

_PICKED_GROUPS = 8
_MAX_GROUP_BYTES = 8 << 30  # of the images of a row group, which each worker has in memory
_SPLIT = re.compile(r"(.+)-\d+-of-\d+\.parquet")  # Hugging Face's file names


def first_of(names: Sequence[str], there: Container[str]) -> str | None:
    """Return the first name that exists, or None."""
    return next((name for name in names if name in there), None)


class RowStore(SampleStore):
    """Images in a column, not decoded, of a dataset whose rows are dicts; a `SampleStore`.

    A row without bytes is read from its path if that is below `root`.
    """

    def __init__(
        self,
        rows: Any,
        column: str,
        labels: np.ndarray[Any, Any],
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        if root is not None and (not isinstance(root, (str, os.PathLike)) or is_url(root)):
            raise UsageError(f"must be a local folder, got {root!r:.200}", argument="root")
        self._rows, self._column = rows, column
        self._root = None if root is None else os.path.realpath(os.path.expanduser(root))
        self.labels = labels
        self.label_field = label_field(labels)

    def _cell(self, sample: int) -> tuple[bytes | None, str]:
        """Bytes and path of an image, at least one of them."""
        try:
            cell = self._rows[sample][self._column]
        except Exception as error:
            raise ImageError(f"the dataset raised {type(error).__name__}: {error}") from error
        if cell is None:
            raise ImageError("its row has no image")
        return cell["bytes"], cell["path"] or ""

    def read(self, sample: int, side: int) -> bytes:
        data, path = self._cell(sample)
        if data is not None:
            return data
        if not path or "://" in path:
            raise ImageError(
                f"its row has no bytes, and its file {path!r} does not exist on this machine: "
                "embed the images in the dataset, as save_to_disk does"
            )
        return read_file(os.fsencode(self._checked_path(path)))

    def _checked_path(self, path: str) -> str:
        """Absolute path of a row's file; an ImageError if it is not below the root."""
        if self._root is None:
            raise ImageError(
                f"its row has a path, {path!r}, but not the bytes of the image, and a dataset may "
                "name any file of this machine",
                hint="pass root=, the folder of its images, or embed the images in the dataset, as "
                "save_to_disk does",
            )
        try:
            file = os.path.realpath(os.path.join(self._root, path))
        except ValueError as error:  # a zero byte
            raise ImageError(f"no file can have its name, {path!r}") from error
        if not file.startswith(os.path.join(self._root, "")):
            raise ImageError(f"its file {path!r} is not below root={self._root!r}")
        return file

    def name(self, sample: int) -> str:
        """Index of a row, and its file's name if it has one."""
        try:
            path = self._cell(sample)[1]
        except ImageError:
            path = ""
        return f"row {sample}" + (f" ({path})" if path else "")

    def fingerprint(self) -> str:
        """Short hash of all labels and of 64 images spread evenly over the dataset."""

        def image(sample: int) -> bytes:
            try:
                return self.read(sample, 1)
            except ImageError:
                return b"broken"

        return hash_images(f"{len(self)} {self.label_field!r}", self.labels, image)

    def __repr__(self) -> str:
        return f"a Hugging Face {type(self._rows).__name__}"


def hf_rows(dataset: Any, image: str, label: str) -> tuple[Any, Any, list[str] | None]:
    """A Hugging Face dataset with its encoded images, its labels, and their class names; a
    UsageError if it is another kind of dataset, or has no such columns.
    """
    kind, package = type(dataset), sys.modules.get("datasets")
    if package is None or kind.__module__.partition(".")[0] != "datasets":
        raise UsageError(f"expected a Hugging Face datasets.Dataset, got {kind.__name__}")
    if isinstance(dataset, dict):
        raise UsageError(
            f"expected one split, got a {kind.__name__} of {first_names(list(dataset))}",
            hint="pass one of them",
        )
    if not isinstance(dataset, package.Dataset):
        raise UsageError(
            f"expected a datasets.Dataset with random access, got {kind.__name__}",
            hint="load it without streaming=True",
        )
    features = dataset.features
    for name in (image, label):
        check_column("the dataset", list(features), name)
    if not isinstance(features[image], package.Image):
        # datasets cannot convert Arrow's views directly.
        is_view = getattr(features[image], "dtype", "") == "binary_view"
        views = f'.cast_column({image!r}, datasets.Value("binary"))' if is_view else ""
        raise UsageError(
            f"the column {image!r} is {features[image]!r}, but images need the feature Image",
            hint=f"convert it with dataset{views}.cast_column({image!r}, datasets.Image())",
        )
    if not len(dataset):
        raise DatasetError("the dataset has no rows")
    plain = dataset.with_format(None)
    labels = list(plain.select_columns([label])[:][label])
    rows = plain.select_columns([image]).cast_column(image, package.Image(decode=False))
    names = getattr(features[label], "names", None)
    return rows, labels, list(names) if names else None


class _Columns(NamedTuple):
    """Names of a file's columns, and its class names."""

    image: str
    label: str
    classes: tuple[str, ...] | None


class _FileRows(NamedTuple):
    """Rows of one file: `paths` are pyarrow string arrays, `groups` the lengths of row groups."""

    columns: _Columns
    labels: Numbers
    paths: list[Any]
    groups: list[int]
    status: FileStatus


class ParquetStore(SampleStore):
    """Rows of Parquet files with a column of images and one of class indices; a `SampleStore`."""

    kind = "parquet"
    label_field = Field("label", "int64", ())

    def __init__(self, folder: LocalFolder | RemoteFolder, files: Sequence[str]) -> None:
        self._folder, self._files = folder, list(files)
        self.is_remote = folder.is_remote
        where = folder.path("")
        _check_splits(folder, files)
        parts = list(folder.map(functools.partial(_index_file, folder), files))
        for file, part in zip(files, parts, strict=True):
            if part.columns != parts[0].columns:
                raise DatasetError(
                    f"the Parquet files {files[0]!r} and {file!r} of {where!r} differ in their "
                    "image or label column, or in their class names",
                    hint="build a cache of each",
                )
        rows = [len(part.labels) for part in parts]
        if not sum(rows):
            raise DatasetError(f"the Parquet files of {where!r} have no rows: {first_names(files)}")
        self._column, _, self.classes = parts[0].columns
        self.labels = np.concatenate([part.labels for part in parts])
        self._names = _distinct([path for part in parts for path in part.paths], sum(rows))
        self._first_rows = np.cumsum([0, *rows[:-1]], dtype=np.int64)
        self._status = np.array([part.status for part in parts], np.int64)
        places = [
            (length, file, group)
            for file, part in enumerate(parts)
            for group, length in enumerate(part.groups)
        ]
        lengths, *numbers = np.array(places, np.int64).T
        # First sample, file, and number in the file of each row group.
        self._groups = np.stack([np.cumsum(lengths) - lengths, *numbers], axis=1)
        self._last: tuple[int, Any] | None = None  # a row group's number, and its images

    def pick(self, count: int) -> list[int]:
        """Return samples of a few row groups, as each group is read as a whole."""
        firsts = self._groups[:, 0]
        lengths = np.diff(firsts, append=len(self))
        groups = np.flatnonzero(lengths)
        few = groups[spread_evenly(len(groups), _PICKED_GROUPS)]
        each = -(-count // len(few))
        return [
            int(firsts[group]) + place
            for group in few
            for place in spread_evenly(int(lengths[group]), each)
        ]

    def read(self, sample: int, side: int) -> bytes:
        firsts = self._groups[:, 0]
        # The last group that starts there: groups before it may be empty.
        group = int(np.searchsorted(firsts, sample, side="right")) - 1
        last = self._last
        if last is None or last[0] != group:
            self._last = last = None  # free memory before reading the next one
            self._last = last = group, self._images(group)
        image, path = last[1][sample - int(firsts[group])].as_py(), None
        if isinstance(image, dict):
            image, path = image["bytes"], image.get("path")
        if image is None:
            raise ImageError(
                f"its row has a path, {path!r}, but not the bytes of the image: write the bytes "
                "into the file, or build the cache from the loaded dataset"
                if path
                else "its row has no image"
            )
        data: bytes = image
        return data

    def _images(self, group: int) -> Any:
        _, file, number = self._groups[group].tolist()
        try:
            with _open_parquet(self._folder, self._files[file]) as parquet:
                table = parquet.read_row_group(number, columns=[self._column], use_threads=False)
        except DatasetError as error:
            if self.is_remote:  # may only be unreachable
                raise
            raise ImageError.of(error) from error
        return table.column(self._column)

    def _place(self, sample: int) -> tuple[int, int]:
        """Number of a sample's file, and its row there."""
        file = int(np.searchsorted(self._first_rows, sample, side="right")) - 1
        return file, sample - int(self._first_rows[file])

    def name(self, sample: int) -> str:
        """The row's path if all rows have distinct ones, or else its file and number."""
        if self._names is not None:
            return str(self._names[sample].as_py())
        file, row = self._place(sample)
        return f"{self._files[file]}/{row}"

    def local_path(self, sample: int) -> str:
        file = self._files[self._place(sample)[0]]
        return "" if self.is_remote else self._folder.path(file)

    def stamp(self, sample: int) -> int:
        """Stamp of the file's size and version, and of the row."""
        file, row = self._place(sample)
        return make_stamp(*self._status[file].tolist(), row)

    def fingerprint(self) -> str:
        """Short hash of all labels, and of the sizes and versions of the files."""
        return hash_images(repr(self._status.tolist()), self.labels, lambda sample: b"")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


@contextlib.contextmanager
def _open_parquet(folder: LocalFolder | RemoteFolder, name: str) -> Iterator[Any]:
    """Open a pyarrow file that reads in the calling thread."""
    pyarrow = import_pyarrow()
    try:
        with (
            folder.open_file(name) as file,
            pyarrow.parquet.ParquetFile(file, pre_buffer=False) as parquet,
        ):
            yield parquet
    except pyarrow.ArrowException as error:
        raise DatasetError(
            f"cannot read the Parquet file {folder.path(name)!r}: {error}",
            hint="copy or download it again, if that was interrupted",
        ) from error


def _check_splits(folder: LocalFolder | RemoteFolder, files: Sequence[str]) -> None:
    matches = (_SPLIT.fullmatch(os.path.basename(file)) for file in files)
    splits = sorted({match[1] for match in matches if match})
    if len(splits) > 1:
        one = folder.path(os.path.join(os.path.dirname(files[0]), splits[-1]))
        raise DatasetError(
            f"the Parquet files of {folder.path('')!r} belong to several splits, "
            f"{', '.join(splits)}",
            hint=f"select one with a quoted pattern, such as {one}-*.parquet",
        )


def _index_file(folder: LocalFolder | RemoteFolder, name: str) -> _FileRows:
    pyarrow, path, status = import_pyarrow(), folder.path(name), folder.status(name)
    with _open_parquet(folder, name) as file:
        columns = _columns(file.schema_arrow, path)
        image = file.schema_arrow.field(columns.image).type
        has_paths = pyarrow.types.is_struct(image) and image.get_field_index("path") >= 0
        names = [columns.label, *[f"{columns.image}.path"] * has_paths]
        table = file.read(columns=names, use_threads=False)
        labels = table.column(columns.label)
        if labels.null_count:
            raise DatasetError(
                f"{labels.null_count} rows of the Parquet file {path!r} have no {columns.label!r}"
            )
        paths = []
        if has_paths:
            field = pyarrow.compute.struct_field(table.column(columns.image), "path")
            paths = field.cast(pyarrow.large_string()).chunks
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        for group in groups:
            _check_group(group, columns.image, path)
        rows = [group.num_rows for group in groups]
        return _FileRows(columns, labels.to_numpy().astype(np.int64), paths, rows, status)


def _columns(schema: Any, path: str) -> _Columns:
    types = import_pyarrow().types

    images = [field.name for field in schema if holds_bytes(field.type)]
    structs = [name for name in images if types.is_struct(schema.field(name).type)]
    whole = [field.name for field in schema if types.is_integer(field.type)]
    image = first_of(IMAGE_NAMES, images) or (structs[0] if len(structs) == 1 else None)
    label = first_of(LABEL_NAMES, whole)
    if image is None or label is None:
        missing = (
            f"an image column named {', '.join(map(repr, IMAGE_NAMES))} of bytes or of structs "
            'with "bytes"'
            if image is None
            else "a column of whole numbers named " + ", ".join(map(repr, LABEL_NAMES))
        )
        there = ", ".join(f"{field.name!r} ({field.type})" for field in schema)
        raise DatasetError(f"the Parquet file {path!r} lacks {missing}; it has {there[:1000]}")
    return _Columns(image, label, _classes(schema.metadata, label))


def _classes(metadata: Any, label: str) -> tuple[str, ...] | None:
    """Class names from the metadata of Hugging Face's datasets."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    are_names = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if are_names else None


def _check_group(group: Any, image: str, path: str) -> None:
    columns = (group.column(number) for number in range(group.num_columns))
    size = sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema == image or column.path_in_schema.startswith(f"{image}.")
    )
    if size > _MAX_GROUP_BYTES:
        raise DatasetError(
            f"the Parquet file {path!r} has a row group with {size / 1e9:.1f} GB of images, which "
            "each worker would have in memory",
            hint="rewrite the file with smaller row groups, e.g. "
            "pyarrow.parquet.write_table(..., row_group_size=1000)",
        )


def _distinct(paths: list[Any], rows: int) -> Any:
    """All paths in one array; None unless each row has a distinct one."""
    pyarrow = import_pyarrow()
    joint = pyarrow.chunked_array(paths, pyarrow.large_string())
    if len(joint) != rows or joint.null_count or len(joint.unique()) != rows:
        return None
    return joint.combine_chunks()
