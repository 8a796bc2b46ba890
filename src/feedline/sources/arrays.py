"""Decoded images in one array as a store, in memory or in a file.

Guarantees: all workers share one copy of the pixels, in the page cache if they are in a file;
nothing is unpickled from a file; a changed shape of the file is detected.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.order.pixel_layout import PixelLayout
from feedline.sources.column_types import (
    Labels,
    as_numpy,
    convert_labels,
    declared_classes,
    fill_gaps,
    has_gaps,
    ordered,
    warn_of_gaps,
)
from feedline.sources.store import (
    Numbers,
    Pixels,
    RawCopies,
    SampleStore,
    hash_images,
    label_field,
)

_PIXEL_DTYPES = ("uint8", "uint16", "int16", "float16", "float32")
_WHOLE_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64")
_LABEL_DTYPES = (*_WHOLE_DTYPES, "float16", "float32", "float64", "complex64", "complex128")
"""Dtypes in every supported version of torch."""


class ArrayStore(SampleStore):
    """Images of one size; a `SampleStore`. See `ImageArray` for its arguments and errors."""

    def __init__(self, images: object, labels: object) -> None:
        self.path: str | None = None
        if isinstance(images, (str, os.PathLike)):
            self.path = os.path.abspath(os.path.expanduser(os.fspath(images)))
            images = _opened(self.path)
        if isinstance(labels, (str, os.PathLike)):
            labels = _opened(os.path.abspath(os.path.expanduser(os.fspath(labels))))
        self.images = _checked_images(images)
        self.layout = PixelLayout(self.images.shape[3], self.images.dtype.name)
        converted = _array_labels(labels, len(self.images))
        self.labels, self.classes = converted.values, converted.classes
        self.label_field = label_field(self.labels)

    def read(self, sample: int, side: int) -> Pixels:
        """View of a sample's pixels."""
        pixels: Pixels = self.images[sample]
        return pixels

    def raw_copies(self, samples: Numbers, side: int) -> RawCopies | None:
        pixels = tuple([self.images[sample] for sample in samples.tolist()])
        sizes = np.tile(np.array(self.images.shape[1:3] * 2, np.int64), (len(samples), 1))
        return RawCopies(pixels, 0, sizes, np.empty((0, 2), np.uint64), self.labels[samples])

    def name(self, sample: int) -> str:
        """Index of a sample, and the file's path if there is one."""
        return f"image {sample} of {self.path or 'an array in memory'}"

    def fingerprint(self) -> str:
        """Short hash of the shape, all labels and 64 images spread evenly over the dataset."""
        about = repr(self.images.shape)
        if self.layout.dtype != "uint8":
            about += self.layout.dtype
        if (self.labels.dtype, self.labels.ndim) != (np.int64, 1):
            about += repr(self.label_field)
        return hash_images(about, self.labels, lambda sample: self.images[sample].tobytes())

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self.path is not None:
            state["images"] = (self.images.shape,)  # the layout has the dtype
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.path is not None:
            self.images = _checked_images(_opened(self.path))
            before = state["images"][0], self.layout.dtype
            if (self.images.shape, self.images.dtype.name) != before:
                raise DatasetError(
                    f"{self.path} was overwritten: it had {before[1]} of shape {before[0]} and now "
                    f"has {self.images.dtype} of shape {self.images.shape}"
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
            f"must be a numpy array or the path of an .npy file, got {type(images).__name__}",
            argument="images",
            hint="for a tensor, pass tensor.numpy()",
        )
    if images.dtype.name not in _PIXEL_DTYPES or images.ndim != 4:
        raise UsageError(
            f"must be {', '.join(_PIXEL_DTYPES)} of shape (n, height, width, channels), got "
            f"{images.dtype} of shape {images.shape}",
            argument="images",
            hint="pass images[..., None] for grey images" if images.ndim == 3 else "",
        )
    if 0 in images.shape:
        raise DatasetError(f"images of shape {images.shape} are empty")
    if _has_channels_first(images):
        raise UsageError(
            f"have channels first: shape {images.shape}",
            argument="images",
            hint="pass images.transpose(0, 2, 3, 1)",
        )
    return np.ascontiguousarray(images, images.dtype.newbyteorder("="))


def _array_labels(labels: Any, count: int) -> Labels:
    """Numbers in their own dtype; class names and categories as in an `ImageList`."""
    labels = as_numpy(labels)
    is_numeric = isinstance(labels, np.ndarray) and labels.dtype.kind not in "OTU"
    values = [] if is_numeric else ordered(labels) or []
    is_text = bool(values) and isinstance(values[0], str)
    if declared_classes(labels) is not None or is_text or has_gaps(fill_gaps(values)):
        return convert_labels(labels, count, None, "image {}".format)
    array = checked_labels(labels, count)
    warn_of_gaps(array, "image {}".format)
    return Labels(array, [])


_MAX_USUAL_CHANNELS = 4
_MAX_FEW_CHANNELS = 16


def _has_channels_first(images: np.ndarray[Any, Any]) -> bool:
    """Return True if images (n, a, b, c) are probably (n, channels, height, width).

    Images with up to 4 values in the last axis have channels last. Channels come first if only the
    last two axes are equal, as in square images, or if the first is the only one of at most 16. So
    square patches of many bands may have channels last.
    """
    _, first, second, last = images.shape
    if last <= _MAX_USUAL_CHANNELS:
        return False
    is_square = bool(second == last != first)
    return is_square or bool(first <= _MAX_FEW_CHANNELS < min(second, last))


def checked_labels(labels: object, count: int) -> np.ndarray[Any, Any]:
    """Labels as an array (count, ...) of a dtype that torch supports; class indices are int64."""
    values = as_numpy(labels)
    if isinstance(values, (list, tuple)) and {float, int, str}.isdisjoint(map(type, values)):
        values = list(map(as_numpy, values))
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1:  # a column of rows
            array = np.asarray(list(map(as_numpy, fill_gaps(ordered(values) or []))))
    except (TypeError, ValueError) as error:
        convert_labels(values, count, None, "image {}".format)  # names the image, if one differs
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
        raise UsageError(
            f"labels must be numbers of a dtype that torch supports, got {array.dtype} of shape "
            f"{array.shape}: pass labels.astype(numpy.int64) or labels.astype(numpy.float32), or "
            "number the classes, as numpy.unique(labels, return_inverse=True)[1] does"
        )
    # torch takes the machine's own byte order only.
    return array.astype(array.dtype.newbyteorder("="), copy=False)
