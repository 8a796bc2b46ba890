"""Tables of paths and labels: CSV and Parquet files, pandas and polars DataFrames.

Guarantees: pandas and polars are not imported, pyarrow only for a Parquet file; an error about a
missing column lists those that exist.

Relies on: the `columns` of DataFrames, and the `to_list` of their columns.
"""

from __future__ import annotations

import csv
import difflib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from feedline.errors import DatasetError, UsageError
from feedline.images.labels import ordered
from feedline.remote.filesystem import is_url, shown

__all__ = ["Table", "of_csv", "of_frame", "of_parquet", "typed"]

_WHOLE = re.compile(r"\s*[+-]?\d{1,99}\s*", re.ASCII)  # Python refuses those of thousands of digits
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
_NO_NUMBER = re.compile(r"\s*[+-]?(nan|inf(inity)?)\s*", re.ASCII | re.IGNORECASE)
_NEAR = 3


class Table(NamedTuple):
    """Two columns of a table.

    Args:
        images: paths, as in the table.
        labels: one per path; rows of several values if several columns were given.
        where: name of the table in messages.
        classes: classes, if the table itself defines their order.
    """

    images: list[Any]
    labels: list[Any]
    where: str
    classes: list[str] | None = None


def of_csv(
    path: str | os.PathLike[str],
    image: str,
    label: str | Sequence[str],
    *,
    sep: str,
    classes: Any,
) -> Table:
    """Read two columns of a CSV file, UTF-8, whose first line names the columns.

    Args:
        path: path of the file.
        image, label: names of the columns.
        sep: separator of cells, one character.
        classes: class names, or None. Labels are texts if one is among them, whatever they look
            like; otherwise whole numbers if all of a column are. Without class names they are also
            floats, if all are numbers.

    Raises:
        DatasetError: the file cannot be read, or has no rows.
        UsageError: a column is missing, or an argument is invalid.
    """
    if not isinstance(sep, str) or len(sep) != 1 or sep in '"\r\n':
        raise UsageError(f'sep must be one character, such as "," or "\\t", got {sep!r}')
    where, file_path = _file("CSV", path)
    wanted = _wanted(image, label)
    columns: list[list[str]] = [[] for _ in wanted]
    try:
        with open(file_path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=sep, strict=True)
            header = next(lines, [])
            places = [_place(where, header, name) for name in wanted]
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
    texts = columns[1:]
    labels = [
        typed(where, column) if classes is None or _are_numbers(column, classes) else column
        for column in texts
    ]
    return _table(where, columns[0], labels, several=not isinstance(label, str))


def of_parquet(path: str | os.PathLike[str], image: str, label: str | Sequence[str]) -> Table:
    """Read two columns of a Parquet file; raises like `of_csv`, and if pyarrow is not installed."""
    where, file_path = _file("Parquet", path)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"{where} needs the package pyarrow, which is not installed ({error}): pip install "
            '"feedline[parquet]"'
        ) from error
    wanted = _wanted(image, label)
    try:
        with pyarrow.parquet.ParquetFile(file_path) as file:
            header = file.schema_arrow.names
            for name in wanted:
                _place(where, header, name)
            read = file.read(columns=wanted)
        columns = [read.column(name).to_pylist() for name in wanted]
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DatasetError(
            f"{where} cannot be read: {str(error).rstrip('.')}. It is not a Parquet file, or was "
            "not copied completely"
        ) from error
    return _table(where, columns[0], columns[1:], several=not isinstance(label, str))


def of_frame(frame: Any, image: str, label: str | Sequence[str]) -> Table:
    """Read two columns of a pandas or polars DataFrame.

    Raises:
        UsageError: it is not a DataFrame, or a column is missing.
        DatasetError: it has no rows.
    """
    kind = type(frame)
    package = kind.__module__.partition(".")[0]
    if package not in ("pandas", "polars") or kind.__name__ != "DataFrame":
        hint = "; call collect() first" if kind.__name__ == "LazyFrame" else ""
        raise UsageError(
            f"expected a pandas or polars DataFrame, got {package}.{kind.__name__}{hint}"
        )
    where = f"the {package} DataFrame"
    header = list(frame.columns)
    wanted = _wanted(image, label)
    for name in wanted:
        _place(where, header, name)
    columns = [frame[name].to_list() for name in wanted]
    table = _table(where, columns[0], columns[1:], several=not isinstance(label, str))
    if not isinstance(label, str):
        return table
    return table._replace(classes=_categories(frame[label].dtype))


def _categories(dtype: Any) -> list[str] | None:
    """Declared names of a column, in order: pandas' categories, polars' Enum."""
    if type(dtype).__name__ not in ("CategoricalDtype", "Enum"):
        return None
    names = list(dtype.categories)
    return names if names and all(isinstance(name, str) for name in names) else None


def _file(kind: str, path: Any) -> tuple[str, str]:
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


def _wanted(image: str, label: str | Sequence[str]) -> list[str]:
    """Names of the columns, that of the images first."""
    if not isinstance(image, str):
        raise UsageError(f"image must be the name of a column, got {image!r:.200}")
    names = [label] if isinstance(label, str) else ordered(label)
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f'label must be the name of a column, or a list such as ["a", "b"], got {label!r:.200}'
        )
    return [image, *names]


def _place(where: str, header: Sequence[Any], name: str) -> int:
    """Position of a column in a table."""
    count = sum(1 for each in header if each == name)
    if count == 1:
        return list(header).index(name)
    if count:
        raise UsageError(f"{where} has {count} columns named {name!r}: names must be unique")
    known = [each for each in header if isinstance(each, str)]
    near = difflib.get_close_matches(name, known, _NEAR)
    nearest = f"; nearest: {', '.join(map(repr, near))}" if near else ""
    some = ", ".join(map(repr, header[:20])) + (", ..." if len(header) > 20 else "")
    blank = [each for each in known if each.strip() == name]
    if blank:
        nearest = f": the name {blank[0]!r} includes blanks"
    seps = [sep for sep in ";\t|," if len(known) == 1 and sep in known[0]]
    hint = f"; if there are several, pass sep={seps[0]!r}" if seps else ""
    raise UsageError(
        f"{where} has no column {name!r}{nearest}. Its columns are: {some or 'none'}{hint}"
        + ("" if near or blank or hint else ". The first line of a file names its columns")
    )


def typed(
    where: str, cells: list[str], called: Callable[[int], str] = "sample {}".format
) -> list[Any]:
    """Convert cells to whole numbers or floats, if all are; otherwise unchanged.

    Args:
        where: name of the table in messages.
        cells: cells of one column.
        called: name of a cell's sample in messages, by the cell's position.

    Raises:
        UsageError: some are numbers and some are texts.
    """
    if all(map(_WHOLE.fullmatch, cells)):
        return list(map(int, cells))
    found = [_NUMBER.fullmatch(cell) for cell in cells]
    if not any(found):
        return cells
    for place, (cell, number) in enumerate(zip(cells, found, strict=True)):
        if number is None and cell and not _NO_NUMBER.fullmatch(cell):
            other = next(number[0] for number in found if number)
            raise UsageError(
                f"{where} has labels of mixed types: {cell!r:.99} of {called(place)} is not a "
                f"number, but {other!r:.99} is. If all are class names, pass classes="
            )
    return cells if "" in cells else list(map(float, cells))


def _are_numbers(cells: list[str], classes: Any) -> bool:
    """Return True if cells are class indices, for classes with names."""
    names = set(ordered(classes) or ())
    return names.isdisjoint(cells) and all(map(_WHOLE.fullmatch, cells))


def _table(where: str, images: list[Any], columns: list[list[Any]], *, several: bool) -> Table:
    if not images:
        raise DatasetError(f"{where} has no rows")
    labels = list(map(list, zip(*columns, strict=True))) if several else columns[0]
    return Table(images, labels, where)
