"""Encoded images of a Hugging Face `datasets.Dataset` as a store.

Guarantees: an image is read on demand, and not decoded by datasets; any exception of datasets
becomes an ImageError; datasets is only used if a dataset of it was given.

Relies on: the feature `Image`, whose cells have "bytes" and "path" with decode=False.
"""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.originals import Originals, hash_of_images
from feedline.sources.read_file import read_file

__all__ = ["RowStore", "rows_of"]

_NEAR = 3


class RowStore(Originals):
    """Images in the rows of a dataset; a `SampleStore`.

    Args:
        rows: the dataset, whose rows are dicts.
        column: column of the images, not decoded.
        labels: labels of all rows, (n, ...).
    """

    def __init__(self, rows: Any, column: str, labels: np.ndarray[Any, Any]) -> None:
        self._rows, self._column = rows, column
        self.labels = labels
        self.label_field = Field("label", labels.dtype.name, labels.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def _cell(self, sample: int) -> tuple[bytes | None, str]:
        """Bytes and path of an image, at least one of them."""
        if not 0 <= sample < len(self):
            raise IndexError(f"row index {sample} is out of range for {len(self)} rows")
        try:
            cell = self._rows[sample][self._column]
        except Exception as error:
            raise ImageError(f"the dataset raised {type(error).__name__}: {error}") from error
        if cell is None:
            raise ImageError("its row has no image")
        return cell["bytes"], cell["path"] or ""

    def read(self, sample: int, side: int) -> bytes:
        """Read the bytes of an image, from the dataset or from the file that it names."""
        data, path = self._cell(sample)
        if data is not None:
            return data
        if not path or "://" in path:
            raise ImageError(
                f"its row has no bytes, and its file {path!r} does not exist on this machine: "
                "embed the images in the dataset, as save_to_disk does"
            )
        return read_file(os.fsencode(path))

    def label(self, sample: int) -> Any:
        """Label of a row."""
        return self.labels[sample]

    def name(self, sample: int) -> str:
        """Index of a row, and its file's name if it has one."""
        try:
            path = self._cell(sample)[1]
        except ImageError:
            path = ""
        return f"row {sample}" + (f" ({path})" if path else "")

    def fingerprint(self) -> str:
        """Short hash of all labels and of 64 images spread evenly over the dataset."""
        return hash_of_images(f"{len(self)} {self.label_field!r}", self.labels, self._hashed)

    def _hashed(self, sample: int) -> bytes:
        try:
            return self.read(sample, 1)
        except ImageError:  # broken is what it is
            return b"broken"

    def __repr__(self) -> str:
        return f"a Hugging Face {type(self._rows).__name__}"


def rows_of(dataset: Any, image: str, label: str) -> tuple[Any, Any, list[str] | None]:
    """A dataset with its encoded images, its labels, and their class names.

    Args:
        dataset: a Hugging Face dataset.
        image, label: names of columns.

    Raises:
        DatasetError: it has no rows.
        UsageError: it is another kind of dataset, or has no such columns.
    """
    kind, package = type(dataset), sys.modules.get("datasets")
    if package is None or kind.__module__.partition(".")[0] != "datasets":
        raise UsageError(f"expected a Hugging Face datasets.Dataset, got {kind.__name__}")
    if isinstance(dataset, dict):
        some = ", ".join(map(repr, list(dataset)[:5]))
        raise UsageError(
            f"expected one split, got a {kind.__name__} of {some}", hint="pass one of them"
        )
    if not isinstance(dataset, package.Dataset):
        raise UsageError(
            f"expected a datasets.Dataset with random access, got {kind.__name__}",
            hint="load it without streaming=True",
        )
    features = dataset.features
    for name in (image, label):
        if not isinstance(name, str) or name not in features:
            near = difflib.get_close_matches(str(name), list(features), _NEAR)
            nearest = f"; nearest: {', '.join(map(repr, near))}" if near else ""
            raise UsageError(
                f"the dataset has no column {name!r}{nearest}. Its columns are: "
                f"{', '.join(map(repr, features))}"
            )
    if not isinstance(features[image], package.Image):
        raise UsageError(
            f"the column {image!r} is {features[image]!r}, but images need the feature Image",
            hint=f"convert it with dataset.cast_column({image!r}, datasets.Image())",
        )
    if not len(dataset):
        raise DatasetError("the dataset has no rows")
    plain = dataset.with_format(None)
    labels = list(plain.select_columns([label])[:][label])
    rows = plain.select_columns([image]).cast_column(image, package.Image(decode=False))
    names = getattr(features[label], "names", None)
    return rows, labels, list(names) if names else None
