"""Decoded images in one array as a store, in memory or in a file.

Guarantees: all workers share one copy of the pixels, in the page cache if they are in a file;
nothing is unpickled from a file; a changed shape of the file is detected.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.originals import Originals, hash_of_images
from feedline.sources.store import Pixels

__all__ = ["ArrayStore", "checked_labels"]

_WHOLE_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64")
_LABEL_DTYPES = (*_WHOLE_DTYPES, "float16", "float32", "float64", "complex64", "complex128")
"""Dtypes in every supported version of torch."""


class ArrayStore(Originals):
    """Images of one size; a `SampleStore`. See `ImageArray` for its arguments and errors."""

    def __init__(self, images: object, labels: object) -> None:
        self.path: str | None = None
        if isinstance(images, (str, os.PathLike)):
            self.path = os.path.abspath(os.path.expanduser(os.fspath(images)))
            images = _opened(self.path)
        if isinstance(labels, (str, os.PathLike)):
            labels = _opened(os.path.abspath(os.path.expanduser(os.fspath(labels))))
        self.images = _checked_images(images)
        self.labels = checked_labels(labels, len(self.images))
        self.label_field = Field("label", self.labels.dtype.name, self.labels.shape[1:])

    def __len__(self) -> int:
        return len(self.images)

    def read(self, sample: int, side: int) -> Pixels:
        """View of a sample's pixels."""
        pixels: Pixels = self.images[sample]
        return pixels

    def label(self, sample: int) -> Any:
        """Label of a sample."""
        return self.labels[sample]

    def name(self, sample: int) -> str:
        """Index of a sample, and the file's path if there is one."""
        return f"image {sample} of {self.path or 'an array in memory'}"

    def fingerprint(self) -> str:
        """Short hash of the shape, all labels and 64 images spread evenly over the dataset."""
        about = repr(self.images.shape)
        if (self.labels.dtype, self.labels.ndim) != (np.int64, 1):
            about += repr(self.label_field)
        return hash_of_images(about, self.labels, lambda sample: self.images[sample].tobytes())

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self.path is not None:
            state["images"] = (self.images.shape,)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.path is not None:
            self.images = _checked_images(_opened(self.path))
            if self.images.shape != state["images"][0]:
                raise DatasetError(
                    f"{self.path} was overwritten: it had shape {state['images'][0]} and now has "
                    f"{self.images.shape}"
                )


def _opened(path: str) -> np.ndarray[Any, Any]:
    try:
        # Copy-on-write, which nothing writes to: torch takes writable memory only without a copy.
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="c", allow_pickle=False)
        return array
    except FileNotFoundError:
        raise DatasetError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path} cannot be read as an .npy array: {error}", hint="write it with numpy.save"
        ) from error


def _checked_images(images: object) -> Pixels:
    if not isinstance(images, np.ndarray):
        raise UsageError(
            "images must be a numpy array or the path of an .npy file, got "
            f"{type(images).__name__}",
            hint="for a tensor, pass tensor.numpy()",
        )
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise UsageError(
            "images must be uint8 of shape (n, height, width, 3), got "
            f"{images.dtype} of shape {images.shape}",
            hint=_cure(images),
        )
    if 0 in images.shape:
        raise DatasetError(f"images of shape {images.shape} are empty")
    return np.ascontiguousarray(images)


def _cure(images: np.ndarray[Any, Any]) -> str:
    if images.ndim == 4 and images.shape[1] == 3:
        return "channels come first: pass images.transpose(0, 2, 3, 1)"
    if images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 1):
        return "for greyscale images pass numpy.repeat(images.reshape(n, h, w, 1), 3, axis=3)"
    return ""


def checked_labels(labels: object, count: int) -> np.ndarray[Any, Any]:
    """Labels as an array (count, ...) of a dtype that torch supports; class indices become int64.

    Raises:
        UsageError: they cannot be converted.
    """
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"labels cannot be converted to an array of shape ({count}, ...): {error}. All labels "
            "must have the same shape"
        ) from error
    if array.ndim == 0 or len(array) != count:
        raise UsageError(
            f"expected {count} labels, one per image, along the first axis, got {array.dtype} of "
            f"shape {array.shape}"
        )
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array.astype(np.int64)
    if 0 in array.shape:
        raise UsageError(f"labels of shape {array.shape} are empty: an axis has length 0")
    if array.dtype.name not in _LABEL_DTYPES:
        cure = "astype(numpy.int64)" if array.dtype.kind in "iu" else "astype(numpy.float32)"
        raise UsageError(
            f"labels must be numbers of a dtype that torch supports, got {array.dtype} of shape "
            f"{array.shape}: "
            + (
                f"pass labels.{cure}"
                if array.dtype.kind in "iuf"
                else "number the classes, as numpy.unique(labels, return_inverse=True)[1] does"
            )
        )
    # torch takes the machine's own byte order only.
    return array.astype(array.dtype.newbyteorder("="), copy=False)
