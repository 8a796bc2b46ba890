"""Tables of paths and labels: lists, CSV and Parquet files, pandas and polars DataFrames.

Guarantees: pandas and polars are not imported, pyarrow only for a Parquet file; an error about a
missing column lists those that exist. Categories that a Parquet file declares keep their order; if
it does not hold the order, an error says so. A store of paths has the files in their order, and the
same fingerprint if they were moved together, also to another machine; no file is accessed.

Relies on: the `columns` of DataFrames, and the `to_list` of their columns; `column_types` for the
types of columns; the metadata of pandas and polars in Parquet files.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.errors import DatasetError, UsageError, hide_secrets
from feedline.sources.column_types import check_cells, convert_texts, fill_gaps, ordered
from feedline.sources.folder import FileStore
from feedline.sources.remote_filesystem import check_local, host_of, is_url
from feedline.sources.remote_images import url_store
from feedline.sources.store import PathTable, common_folder
from feedline.system import slashed

_NEAREST = 3
_POLARS_ENUM = (b"_PL_ENUM_VALUES2", b"_PL_ENUM_VALUES")


class Table(NamedTuple):
    """Paths and labels of a table, or rows of labels if several columns are requested; its name in
    messages; the class names in the order that a file declares, if it does.
    """

    images: list[Any]
    labels: Any
    where: str
    classes: list[str] | None = None


def read_csv(
    path: str | os.PathLike[str],
    image: str,
    label: str | Sequence[str],
    *,
    sep: str,
    classes: Any,
    separator: str | None,
) -> Table:
    """Read two columns of a CSV file, UTF-8, whose first line names the columns; ".gz" is unpacked.

    With `separator`, or if any label is in `classes`, the column stays text. Otherwise a column of
    whole numbers becomes int and, without `classes`, a column of numbers becomes float.
    """
    if not isinstance(sep, str) or len(sep) != 1 or sep in '"\r\n':
        raise UsageError(
            f'must be one character, such as "," or "\\t", got {sep!r}', argument="sep"
        )
    where, file_path = _local_file("CSV", path)
    names = _column_names(image, label)
    columns: list[list[str]] = [[] for _ in names]
    try:
        opener: Any = gzip.open if file_path.endswith(".gz") else open
        with opener(file_path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=sep, strict=True)
            header = next(lines, [])
            places = [check_column(where, header, name) for name in names]
            for cells in lines:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise DatasetError(
                        f"{where} has {len(cells)} cells in line {lines.line_num}, but "
                        f"{len(header)} columns in its first line: quote cells that contain a "
                        f"{sep!r}"
                    )
                for column, place in zip(columns, places, strict=True):
                    column.append(cells[place])
    except csv.Error as error:
        raise DatasetError(
            f"{where} cannot be read: {error}. A quotation mark may be open before line "
            f"{lines.line_num}; cells must be separated by {sep!r}"
        ) from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise DatasetError(
            f"{where} cannot be read: {why}. It must be text in UTF-8 with one line per image"
        ) from error
    several, labels = not isinstance(label, str), columns[1:]
    if separator is None:
        labels = [convert_texts(where, column, classes, several=several) for column in labels]
        for column in labels if classes is None else ():
            check_cells(where, column)
    return _table(where, columns[0], labels, several=several)


def read_parquet(
    path: str | os.PathLike[str], image: str, label: str | Sequence[str], *, in_order: bool
) -> Table:
    """Read two columns of a Parquet file; with `in_order`, and the classes that it declares."""
    where, file_path = _local_file("Parquet", path)
    pyarrow = import_pyarrow()
    names = _column_names(image, label)
    try:
        with pyarrow.parquet.ParquetFile(file_path) as file:
            _check_not_bytes(where, file_path, file.schema_arrow, image)
            for name in names:
                check_column(where, file.schema_arrow.names, name)
            data = file.read(columns=names)
            declared = None
            if isinstance(label, str) and in_order and len(data):
                declared = _declared_order(where, file, label, data.column(label))
        columns = [data.column(name).to_pylist() for name in names]
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DatasetError(
            f"{where} cannot be read: {str(error).rstrip('.')}. It is not a Parquet file, or was "
            "not copied completely"
        ) from error
    table = _table(where, columns[0], columns[1:], several=not isinstance(label, str))
    return table._replace(classes=declared)


def _check_not_bytes(where: str, path: str, schema: Any, image: str) -> None:
    """Raise a UsageError if the file has the bytes of images, as those of Hugging Face."""
    columns = [field.name for field in schema if holds_bytes(field.type)]
    if not columns or (image in schema.names and image not in columns):
        return
    name = image if image in columns else columns[0]
    lacks = "" if image in columns else f", and has no column {image!r}"
    raise UsageError(
        f"{where} has bytes in its column {name!r}{lacks}: from_parquet reads paths of images",
        hint=f'for bytes use ImageList.from_hf(datasets.load_dataset("parquet", data_files={path!r}'
        f', split="train").cast_column({name!r}, datasets.Image()), {name!r}), or build_cache',
    )


def holds_bytes(kind: Any) -> bool:
    """Return True for an Arrow type of bytes, or of Hugging Face's structs with "bytes"."""
    names = ("binary", "large_binary", "binary_view")
    is_struct = import_pyarrow().types.is_struct(kind)
    return str(kind) in names or bool(is_struct and kind.get_field_index("bytes") >= 0)


def _declared_order(where: str, file: Any, name: str, column: Any) -> list[str] | None:
    """Class names of a column of categories in their declared order; None if none is declared."""
    schema = file.schema_arrow
    kind, metadata = schema.field(name).type, schema.field(name).metadata or {}
    is_dictionary = import_pyarrow().types.is_dictionary(kind)
    if "string" not in str(kind.value_type if is_dictionary else kind):
        return None
    polars = next((metadata[key] for key in _POLARS_ENUM if key in metadata), None)
    count = _pandas_categories(schema.metadata, name)
    if polars is not None:
        names = _polars_names(polars)
    elif is_dictionary and (kind.ordered or count is not None):
        names = _stored_dictionary(file, name, column)
    elif count is None:
        return None
    else:
        names = None
    if names is None or count not in (None, len(names)):
        raise UsageError(
            f"{where} declares that {name!r} has categories, but it does not hold all of them in "
            "their order",
            hint="pass classes=[...], the class names by index",
        )
    return names


def _pandas_categories(metadata: Any, name: str) -> int | None:
    """Number of a column's categories in pandas' metadata; None if it has none."""
    try:
        columns = json.loads(metadata[b"pandas"])["columns"]
        kinds = {each["field_name"]: (each["pandas_type"], each["metadata"]) for each in columns}
        kind, about = kinds[name]
        return int(about["num_categories"]) if kind == "categorical" else None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _polars_names(text: bytes) -> list[str] | None:
    """Names of a polars Enum from its metadata, such as b"1;a2;bc": length in bytes and name."""
    names, start = [], 0
    while start < len(text):
        end = text.find(b";", start)
        size = text[start:end]
        if end < 0 or len(size) > 9 or not size.isdigit():
            return None
        start = end + 1 + int(size)
        names.append(text[end + 1 : start].decode("utf-8", "replace"))
    return names


def _stored_dictionary(file: Any, name: str, column: Any) -> list[str] | None:
    """Dictionary of a column; None if it was not stored, so that pyarrow has made one in order of
    appearance, or if it differs in parts of the file.
    """
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        stored = (group.column(place) for place in range(group.num_columns))
        if not any(each.path_in_schema == name and each.has_dictionary_page for each in stored):
            return None
    listed = {tuple(chunk.dictionary.to_pylist()) for chunk in column.chunks}
    return list(*listed) if len(listed) == 1 else None


def import_pyarrow() -> Any:
    """Return pyarrow; raises a UsageError if it is not installed."""
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


def read_frame(frame: Any, image: str, label: str | Sequence[str]) -> Table:
    """Read two columns of a pandas or polars DataFrame."""
    kind = type(frame)
    package = kind.__module__.partition(".")[0]
    if package not in ("pandas", "polars") or kind.__name__ != "DataFrame":
        raise UsageError(
            f"expected a pandas or polars DataFrame, got {package}.{kind.__name__}",
            hint="call collect() first" if kind.__name__ == "LazyFrame" else "",
        )
    where = f"the {package} DataFrame"
    names = _column_names(image, label)
    for name in names:
        check_column(where, list(frame.columns), name)
    columns = [frame[name] for name in names[1:]]
    return _table(where, frame[image].to_list(), columns, several=not isinstance(label, str))


def _local_file(kind: str, path: Any) -> tuple[str, str]:
    """Name of a table's file in messages, and its path."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise UsageError(
            f"expected the path of a {kind} file, got {path!r:.200}; for a DataFrame use from_frame"
        )
    if is_url(path):
        raise UsageError(
            f"expected a local {kind} file, got {str(path)!r}: download it; the images it "
            "lists may be at URLs"
        )
    return f"the {kind} file {os.fspath(path)!r}", os.path.expanduser(os.fspath(path))


def _column_names(image: str, label: str | Sequence[str]) -> list[str]:
    """Names of the columns, that of the images first."""
    if not isinstance(image, str):
        raise UsageError(f"must be the name of a column, got {image!r:.200}", argument="image")
    names = [label] if isinstance(label, str) else ordered(label)
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f'must be the name of a column, or a list such as ["a", "b"], got {label!r:.200}',
            argument="label",
        )
    return [image, *names]


def check_column(where: str, header: Sequence[Any], name: Any) -> int:
    """Position of a column in a table; raises a UsageError that lists the columns."""
    columns = list(header)
    count = columns.count(name)
    if count == 1:
        return columns.index(name)
    if count:
        raise UsageError(f"{where} has {count} columns named {name!r}: names must be unique")
    texts = [each for each in columns if isinstance(each, str)]
    near = difflib.get_close_matches(str(name), texts, _NEAREST)
    nearest = f"; nearest: {', '.join(map(repr, near))}" if near else ""
    some = ", ".join(map(repr, columns[:20])) + (", ..." if len(columns) > 20 else "")
    seps = [sep for sep in ";\t|," if len(texts) == 1 and sep in texts[0]]
    raise UsageError(
        f"{where} has no column {name!r}{nearest}. Its columns are: {some or 'none'}",
        hint=f"if there are several, pass sep={seps[0]!r}" if seps else "",
    )


def _table(where: str, images: list[Any], columns: Sequence[Any], *, several: bool) -> Table:
    if not images:
        raise DatasetError(f"{where} has no rows")
    if not several:
        return Table(images, columns[0], where)
    filled = [fill_gaps(ordered(column) or [], several=True) for column in columns]
    return Table(images, list(map(list, zip(*filled, strict=True))), where)


def checked_paths(paths: Any) -> list[str]:
    """Convert a user's paths to text; a UsageError if one is not a possible path."""
    texts = ordered(paths)
    if texts is None:
        raise UsageError(
            f"must be a sequence of paths, got {paths!r:.200}",
            argument="paths",
            hint="for a folder of class folders use feedline.ImageFolder, for a table "
            "ImageList.from_csv",
        )
    if not texts:
        raise DatasetError("is empty: there is nothing to load", argument="paths")
    if set(map(type, texts)) - {str}:
        texts = [_path_text(path, sample) for sample, path in enumerate(texts)]
    for bad, why in (("", "an empty path"), ("\0", "a path with a zero byte, which no file has")):
        sample = next((k for k, path in enumerate(texts) if (bad in path if bad else not path)), -1)
        if sample >= 0:
            raise UsageError(f"sample {sample} has {why}: {texts[sample]!r:.200}")
    try:
        os.fsencode("".join(texts))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a path contains the character {error.object[error.start]!r}, which is not allowed in "
            f"file names: {error.object[max(0, error.start - 50) : error.end]!r}"
        ) from error
    return texts


def _path_text(path: Any, sample: int) -> str:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise UsageError(
            f"must be texts, but sample {sample} has {path!r:.200} ({type(path).__name__})",
            argument="paths",
            hint="check that this is the column of the paths",
        )
    is_url(path)  # refuses a URL that pathlib has changed
    return str(text)


def path_store(
    names: list[str], labels: np.ndarray[Any, Any], root: Any, **remote: Any
) -> tuple[str, FileStore]:
    """Files by their paths, absolute or below `root`, or by their URLs; and their common folder.
    `remote` are the arguments of `ImageList` for URLs.
    """
    if root is not None and not isinstance(root, (str, os.PathLike)):
        raise UsageError(f"must be a folder, got {root!r:.200}", argument="root")
    if is_url(root) or any("://" in name and is_url(name) for name in names):
        folder, names = _below_url(names, root)
        store = url_store(PathTable.of(list(map(os.fsencode, names)), labels), folder, **remote)
        return hide_secrets(folder.rstrip("/")), store
    check_local(names[0], **remote)
    base = os.getcwd() if root is None else os.path.expanduser(os.fspath(root))
    folder = os.path.join(os.path.abspath(base), "")
    if any(map(os.path.isabs, names)):
        # Windows has both separators.
        names = [os.path.join(folder, name).replace(os.altsep or os.sep, os.sep) for name in names]
        if not all(name.startswith(folder) for name in names):
            folder = common_folder(names)
        if not all(name.startswith(folder) for name in names):
            folder = "" if os.path.splitdrive(names[0])[0] else os.sep
        names = [name[len(folder) :] for name in names]
    where = folder.rstrip(os.sep) or os.sep
    table = PathTable.of([os.fsencode(slashed(name)) for name in names], labels)
    return where, FileStore(table, os.fsencode(folder))


def _below_url(names: list[str], root: Any) -> tuple[str, list[str]]:
    """Common beginning of all URLs, up to a slash, and the rest of each; "" for several hosts."""
    folder = (root if root.endswith("/") else f"{root}/") if is_url(root) else ""
    urls = [is_url(name) for name in names]
    local = next(
        (k for k, name in enumerate(names) if not urls[k] and (not folder or os.path.isabs(name))),
        None,
    )
    if local is not None:
        there = repr(names[urls.index(True)]) if any(urls) else f"root={folder!r}"
        raise UsageError(
            f"sample {local} is a local path, {names[local]!r}, but {there} is a URL: write the "
            f"path as a URL, {Path(names[local]).absolute().as_uri()!r}, or copy all files to one "
            "side"
        )
    if not any(urls):
        return folder, names
    names = [name if is_far else folder + name for name, is_far in zip(names, urls, strict=True)]
    if not folder or not all(name.startswith(folder) for name in names):
        # A prefix shared by the smallest and the largest name is shared by all names.
        folder = os.path.commonprefix([min(names), max(names)])  # noqa: RUF071  # then cut at a slash
        folder = folder[: folder.rfind("/") + 1]
        if len(folder) <= len(host_of(names[0])):
            return "", names
    return folder, [name[len(folder) :] for name in names]
