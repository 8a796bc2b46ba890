"""Images that are decoded already, as a source of rows: one array, in memory or in a file.

Guarantees: the row depends on the pixels, the transform and the item alone; all workers share
one copy of the pixels, the page cache's where they come from a file; nothing is unpickled from
a file.

Relies on: `crops` and `resize` for the part that is taken.
"""

from __future__ import annotations

import copy
import hashlib
import os
from typing import Any, TypeAlias

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.images.crops import Pixels, Transform, checked_transform, cut
from feedline.images.resize import fill
from feedline.plan.row import Field, Item

__all__ = ["ImageArray"]

Labels: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_HASHED_IMAGES = 64


class ImageArray:
    """Decoded images of one size in one array, e.g. a smaller copy of a whole set.

    A row is "image", uint8 (size, size, 3), and "label", int64.

    Args:
        images: uint8 (n, height, width, 3), RGB, C-contiguous; or the path of an .npy file that
            holds it, which is mapped and may be larger than memory.
        labels: whole numbers (n,), or the path of an .npy file of them.
        transform: which part of an image becomes the row: `TrainCrop()`, the default, or
            `EvalCrop()`.

    Raises:
        DatasetError: a file is missing or is no .npy file.
        UsageError: an array has another shape or dtype; says which.
    """

    def __init__(
        self,
        images: Pixels | str | os.PathLike[str],
        labels: Any,
        transform: Transform | None = None,
    ) -> None:
        self.path: str | None = None
        if isinstance(images, (str, os.PathLike)):
            self.path = os.path.abspath(os.path.expanduser(os.fspath(images)))
            images = _opened(self.path)
        if isinstance(labels, (str, os.PathLike)):
            labels = _opened(os.path.abspath(os.path.expanduser(os.fspath(labels))))
        self.images = _checked_images(images)
        self.targets = _checked_labels(labels, len(self.images))
        self.transform = checked_transform(transform)

    def __len__(self) -> int:
        return len(self.images)

    def fields(self, image_size: int) -> tuple[Field, ...]:
        """The arrays of a row at this image size, in pixels."""
        return (
            Field("image", "uint8", (image_size, image_size, 3)),
            Field("label", "int64", ()),
        )

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row.

        Args:
            item: which sample, how large, with which seed.
            row: uint8 (size, size, 3), C-contiguous, and int64 (): written over where they lie.

        Raises:
            IndexError: there is no such sample.
        """
        image = self.images[item.sample]
        placement = self.transform.place(image.shape[0], image.shape[1], item)
        fill(row[0], cut(image, placement.part), placement)
        row[1][()] = self.targets[item.sample]

    def name(self, sample: int) -> str:
        """What to call a sample: its number, and the file's path where there is one."""
        return f"image {sample} of {self.path or 'an array in memory'}"

    def fingerprint(self) -> str:
        """A short hash of the shape, all labels and 64 images spread evenly over the set."""
        digest = hashlib.sha256(repr(self.images.shape).encode())
        digest.update(self.targets.tobytes())
        picked = np.linspace(0, len(self) - 1, min(len(self), _HASHED_IMAGES)).astype(int)
        for sample in picked.tolist():
            digest.update(self.images[sample].tobytes())
        return digest.hexdigest()[:16]

    def with_transform(self, transform: Transform) -> ImageArray:
        """The same images with another transform, e.g. for testing; the pixels are shared."""
        other = copy.copy(self)
        other.transform = checked_transform(transform)
        return other

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
                    f"{self.path} held {state['images'][0]} and now holds {self.images.shape}: it "
                    "was written over"
                )

    def __repr__(self) -> str:
        count, height, width, _ = self.images.shape
        where = repr(self.path) if self.path else "array in memory"
        return f"ImageArray({where}, {self.transform!r}): {count} images of {width} x {height} px"


def _opened(path: str) -> np.ndarray[Any, Any]:
    try:
        # Copy-on-write, which nothing writes to: torch takes writable memory only without a copy.
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="c", allow_pickle=False)
        return array
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path} cannot be read as an .npy array: {error}. Write it with numpy.save"
        ) from error


def _checked_images(images: object) -> Pixels:
    if not isinstance(images, np.ndarray):
        raise UsageError(
            "images must be a numpy array or the path of an .npy file, got "
            f"{type(images).__name__}; for a tensor, pass tensor.numpy()"
        )
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise UsageError(
            "images must be uint8 of shape (n, height, width, 3), got "
            f"{images.dtype} of shape {images.shape}{_cure(images)}"
        )
    if 0 in images.shape:
        raise DatasetError(f"there are no pixels in images of shape {images.shape}")
    return np.ascontiguousarray(images)


def _cure(images: np.ndarray[Any, Any]) -> str:
    if images.ndim == 4 and images.shape[1] == 3:
        return "; the channels come first: pass images.transpose(0, 2, 3, 1)"
    if images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 1):
        return "; for grey images pass numpy.repeat(images.reshape(n, h, w, 1), 3, axis=3)"
    return ""


def _checked_labels(labels: object, count: int) -> Labels:
    array = np.asarray(labels)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise UsageError(
            f"labels must be {count} whole numbers, one an image, got {array.dtype} of shape "
            f"{array.shape}"
        )
    return array.astype(np.int64)
