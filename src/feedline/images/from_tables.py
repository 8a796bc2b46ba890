"""Image lists from tables: CSV and Parquet files, pandas and polars DataFrames.

Guarantees: errors in a table name it.

Relies on: `tables` for its columns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feedline.errors import UsageError
from feedline.images.rows import ImageTransform
from feedline.images.tables import Table, of_csv, of_frame, of_parquet

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FromTables"]


class FromTables:
    """Constructors of image lists from tables, for a class that accepts paths, labels and
    options.
    """

    def __init__(
        self, paths: Any, labels: Any, transform: ImageTransform | None = None, **options: Any
    ) -> None:
        raise NotImplementedError

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        image: str = "path",
        label: str | Sequence[str] = "label",
        *,
        transform: ImageTransform | None = None,
        root: str | os.PathLike[str] | None = None,
        sep: str = ",",
        **options: Any,
    ) -> Self:
        """Images listed in a CSV file, in its order.

        Args:
            path: UTF-8 file whose first line names the columns.
            image: column of the paths.
            label: column of the labels; or a list of columns of numbers, which form a row together.
                A column holds whole numbers if all cells are, floats if all are numbers, and
                otherwise class names; with `classes`, names, or whole numbers if no cell is a name.
            transform: as in `ImageList`.
            root: folder or URL for relative paths; None for the CSV file's folder.
            sep: separator of cells.
            options: `classes`, `check`, `decode`, `exif`, `max_pixels`, `local_dir`, `local_bytes`,
                `storage_options`, as in `ImageList`.

        Raises:
            DatasetError: the file cannot be read or has no rows; and as `ImageList`.
            UsageError: there is no such column; numbers and texts are mixed; and as `ImageList`.
        """
        table = of_csv(path, image, label, sep=sep, classes=options.get("classes"))
        return cls._of(table, transform, _folder_of(path) if root is None else root, options)

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str],
        image: str = "path",
        label: str | Sequence[str] = "label",
        *,
        transform: ImageTransform | None = None,
        root: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Images whose paths a Parquet file lists; arguments and errors as in `from_csv`.

        Needs pyarrow: `pip install "feedline[parquet]"`.
        """
        table = of_parquet(path, image, label)
        return cls._of(table, transform, _folder_of(path) if root is None else root, options)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        image: str = "path",
        label: str | Sequence[str] = "label",
        *,
        transform: ImageTransform | None = None,
        root: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Images listed in a pandas or polars DataFrame.

        Arguments and errors are those of `from_csv`; relative paths are relative to the working
        directory, unless `root` is given. For a column of pandas' categories or of a polars Enum
        these are the classes, in their order.
        """
        return cls._of(of_frame(frame, image, label), transform, root, options)

    @classmethod
    def _of(
        cls,
        table: Table,
        transform: ImageTransform | None,
        root: str | os.PathLike[str] | None,
        options: dict[str, Any],
    ) -> Self:
        if table.classes is not None and options.get("classes") is None:
            options = {**options, "classes": table.classes}
        try:
            return cls(table.images, table.labels, transform, root=root, **options)
        except UsageError as error:  # DatasetError is one
            raise type(error).of(error, str(table.where)) from error


def _folder_of(path: str | os.PathLike[str]) -> str:
    return os.path.dirname(os.path.abspath(os.path.expanduser(os.fspath(path))))
