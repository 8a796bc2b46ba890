"""Tables of paths and labels: lists, CSV and Parquet files, pandas and polars DataFrames.

Guarantees: pandas and polars are not imported, pyarrow only for a Parquet file; an error about a
missing column lists those that exist. A store of paths has the files in their order, and the same
fingerprint if they were moved together, also to another machine; no file is accessed.

Relies on: the `columns` of DataFrames, and the `to_list` of their columns; `column_types` for the
types of columns.
"""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.sources.column_types import convert_texts, ordered
from feedline.sources.folder import FileStore
from feedline.sources.remote_filesystem import check_local, host_of, is_url, shown
from feedline.sources.remote_images import url_store
from feedline.sources.store import PathTable, common_folder
from feedline.system import slashed

__all__ = [
    "Table",
    "check_column",
    "checked_paths",
    "import_pyarrow",
    "path_store",
    "read_csv",
    "read_frame",
    "read_parquet",
]

_NEAREST = 3


class Table(NamedTuple):
    """Paths and labels of a table, or rows of labels if several columns are requested; its name in
    messages; its classes, if it defines their order itself.
    """

    images: list[Any]
    labels: list[Any]
    where: str
    classes: list[str] | None = None


def read_csv(
    path: str | os.PathLike[str],
    image: str,
    label: str | Sequence[str],
    *,
    sep: str,
    classes: Any,
) -> Table:
    """Read two columns of a CSV file, UTF-8, whose first line names the columns.

    If any label is in `classes`, the column stays text. Otherwise a column of whole numbers becomes
    int and, without `classes`, a column of numbers becomes float.
    """
    if not isinstance(sep, str) or len(sep) != 1 or sep in '"\r\n':
        raise UsageError(
            f'must be one character, such as "," or "\\t", got {sep!r}', argument="sep"
        )
    where, file_path = _local_file("CSV", path)
    names = _column_names(image, label)
    columns: list[list[str]] = [[] for _ in names]
    try:
        with open(file_path, encoding="utf-8-sig", newline="") as file:
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
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise DatasetError(
            f"{where} cannot be read: {why}. It must be text in UTF-8 with one line per image"
        ) from error
    labels = [convert_texts(where, column, classes) for column in columns[1:]]
    return _table(where, columns[0], labels, several=not isinstance(label, str))


def read_parquet(path: str | os.PathLike[str], image: str, label: str | Sequence[str]) -> Table:
    """Read two columns of a Parquet file."""
    where, file_path = _local_file("Parquet", path)
    pyarrow = import_pyarrow()
    names = _column_names(image, label)
    try:
        with pyarrow.parquet.ParquetFile(file_path) as file:
            for name in names:
                check_column(where, file.schema_arrow.names, name)
            table = file.read(columns=names)
        columns = [table.column(name).to_pylist() for name in names]
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DatasetError(
            f"{where} cannot be read: {str(error).rstrip('.')}. It is not a Parquet file, or was "
            "not copied completely"
        ) from error
    return _table(where, columns[0], columns[1:], several=not isinstance(label, str))


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
    columns = [frame[name].to_list() for name in names]
    table = _table(where, columns[0], columns[1:], several=not isinstance(label, str))
    if isinstance(label, str) and type(frame[label].dtype).__name__ in ("CategoricalDtype", "Enum"):
        classes = list(frame[label].dtype.categories)  # names in their declared order
        if classes and all(isinstance(name, str) for name in classes):
            return table._replace(classes=classes)
    return table


def _local_file(kind: str, path: Any) -> tuple[str, str]:
    """Name of a table's file in messages, and its path."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise UsageError(
            f"expected the path of a {kind} file, got {path!r:.200}; for a DataFrame use from_frame"
        )
    if is_url(path):
        raise UsageError(
            f"expected a local {kind} file, got {shown(str(path))!r}: download it; the images it "
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


def _table(where: str, images: list[Any], columns: list[list[Any]], *, several: bool) -> Table:
    if not images:
        raise DatasetError(f"{where} has no rows")
    labels = list(map(list, zip(*columns, strict=True))) if several else columns[0]
    return Table(images, labels, where)


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
) -> tuple[str, FileStore[PathTable]]:
    """Files by their paths, absolute or below `root`, or by their URLs; and their common folder.
    `remote` are the arguments of `ImageList` for URLs.
    """
    if root is not None and not isinstance(root, (str, os.PathLike)):
        raise UsageError(f"must be a folder, got {root!r:.200}", argument="root")
    if is_url(root) or any("://" in name and is_url(name) for name in names):
        folder, names = _below_url(names, root)
        store = url_store(PathTable.of(list(map(os.fsencode, names)), labels), folder, **remote)
        return shown(folder.rstrip("/")), store
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
        there = repr(shown(names[urls.index(True)])) if any(urls) else f"root={shown(folder)!r}"
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
