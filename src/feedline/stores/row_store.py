"""The encoded images of a dataset of Hugging Face's `datasets` as a store.

Guarantees: an image is read when it is asked for, and not decoded by datasets; whatever datasets
raises is an ImageError; datasets is not imported, but where a dataset of it was given.

Relies on: the feature `Image`, whose cells are of "bytes" and "path" with decode=False.
"""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.plan.row import Field
from feedline.stores.originals import Originals, hash_of_images
from feedline.stores.read_file import read_file

__all__ = ["RowStore", "rows_of"]

_NEAR = 3


class RowStore(Originals):
    """Images in the rows of a dataset; a `SampleStore`.

    Args:
        rows: the dataset, whose rows are dicts.
        column: that of the images, not decoded.
        labels: of all rows, (n, ...).
    """

    def __init__(self, rows: Any, column: str, labels: np.ndarray[Any, Any]) -> None:
        self._rows, self._column = rows, column
        self.labels = labels
        self.label_field = Field("label", labels.dtype.name, labels.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def _cell(self, sample: int) -> tuple[bytes | None, str]:
        """The bytes and the path of an image, which may have one of them."""
        if not 0 <= sample < len(self):
            raise IndexError(f"row {sample} of {len(self)}")
        try:
            cell = self._rows[sample][self._column]
        except Exception as error:
            raise ImageError(f"the dataset raised {type(error).__name__}: {error}") from error
        if cell is None:
            raise ImageError("its row has no image")
        return cell["bytes"], cell["path"] or ""

    def read(self, sample: int, side: int) -> bytes:
        """The bytes of an image, in the dataset or in the file that it names."""
        data, path = self._cell(sample)
        if data is not None:
            return data
        if not path or "://" in path:
            raise ImageError(
                f"its row has no bytes, and its file {path!r} is none of this machine's: take the "
                "images into the dataset, as save_to_disk does"
            )
        return read_file(os.fsencode(path))

    def label(self, sample: int) -> Any:
        """The label of a row."""
        return self.labels[sample]

    def name(self, sample: int) -> str:
        """The number of a row, and its file's name where it has one."""
        try:
            path = self._cell(sample)[1]
        except ImageError:
            path = ""
        return f"row {sample}" + (f" ({path})" if path else "")

    def fingerprint(self) -> str:
        """A short hash of all labels and of 64 images spread evenly over the set."""
        return hash_of_images(f"{len(self)} {self.label_field!r}", self.labels, self._hashed)

    def _hashed(self, sample: int) -> bytes:
        try:
            return self.read(sample, 1)
        except ImageError:  # broken is what it is
            return b"broken"

    def __repr__(self) -> str:
        return f"{type(self._rows).__name__} of Hugging Face"


def rows_of(dataset: Any, image: str, label: str) -> tuple[Any, Any, list[str] | None]:
    """A dataset with its images as they are encoded, its labels, and the names of their classes.

    Args:
        dataset: of Hugging Face.
        image, label: names of columns.

    Raises:
        DatasetError: it has no rows.
        UsageError: it is another kind of dataset, or has no such columns.
    """
    kind, package = type(dataset), sys.modules.get("datasets")
    if package is None or kind.__module__.partition(".")[0] != "datasets":
        raise UsageError(f"a datasets.Dataset of Hugging Face was wanted, got a {kind.__name__}")
    if isinstance(dataset, dict):
        some = ", ".join(map(repr, list(dataset)[:5]))
        raise UsageError(f"one split was wanted, got a {kind.__name__} of {some}: pass one of them")
    if not isinstance(dataset, package.Dataset):
        raise UsageError(
            f"a datasets.Dataset was wanted, whose rows can be had by number, got a "
            f"{kind.__name__}: load it without streaming=True"
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
            f"the column {image!r} is {features[image]!r}, and images are of the feature Image: "
            f"dataset.cast_column({image!r}, datasets.Image()) makes it one"
        )
    if not len(dataset):
        raise DatasetError("the dataset has no rows: there is nothing to load")
    plain = dataset.with_format(None)
    labels = list(plain.select_columns([label])[:][label])
    rows = plain.select_columns([image]).cast_column(image, package.Image(decode=False))
    names = getattr(features[label], "names", None)
    return rows, labels, list(names) if names else None
