"""A folder of images as a source of rows.

Guarantees: those of `rows`; what fails is an ImageError that names the file, whatever is wrong
with it; a pickle carries the index out of band.

Relies on: `index` for which files, `rows` and `file_store` for the rest.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from feedline.errors import UsageError
from feedline.images.crops import Transform, checked_transform
from feedline.images.decode import DEFAULT_MAX_PIXELS
from feedline.images.rows import RowPipeline
from feedline.stores.file_store import FileStore
from feedline.stores.index import FolderIndex, scan_folder

__all__ = ["ImageFolder"]


class ImageFolder(RowPipeline[FileStore[FolderIndex]]):
    """The images under root/CLASS/, numbered as torchvision.datasets.ImageFolder does.

    A row is "image", uint8 (size, size, 3), RGB, and "label", int64.

    Args:
        root: the folder with one sub-folder a class.
        transform: which part of an image becomes the row: `TrainCrop()`, the default, or
            `EvalCrop()`.
        decode: "exact" decodes every pixel, as torchvision does. "scaled" decodes a JPEG at
            1/2, 1/4 or 1/8 where the part wanted still has the row's size. On 500 ImageNet
            photographs of about 500 x 375 px its pixels differ from torchvision's by 0.1 to 0.2
            grey levels on average at 224 px (up to 6 in an image that was reduced) and by 2 to
            2.7 at 112 px (up to 13), against 0.02 to 0.09 and 0.02 or less for "exact"; it was
            as fast at 224 px and 1.05 times as fast at 112 px.
        exif: turn images upright by their Exif orientation; torchvision's loader does not.
        max_pixels: an image whose header announces more is an ImageError.
        extensions: how the names of images end, e.g. (".jpg", ".gif"); None for torchvision's
            list; with another one, sample numbers may differ from torchvision's.

    Raises:
        DatasetError: the folder is missing, unreadable, without classes or with empty ones.
        UsageError: an argument cannot be used.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        *,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        extensions: Sequence[str] | None = None,
    ) -> None:
        if decode not in ("exact", "scaled"):
            raise UsageError(f'decode must be "exact" or "scaled", got {decode!r}')
        if isinstance(max_pixels, bool) or not isinstance(max_pixels, int) or max_pixels < 1:
            raise UsageError(f"max_pixels must be a whole number above 0, got {max_pixels!r}")
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        checked = checked_transform(transform)
        store = _store_of(self.root, scan_folder(self.root, extensions))
        scaled = decode == "scaled"
        super().__init__(store, checked, scaled=scaled, exif=bool(exif), max_pixels=max_pixels)

    @property
    def _index(self) -> FolderIndex:
        return self.store.paths

    def _adopt(self, index: FolderIndex) -> None:
        self.store = _store_of(self.root, index)

    def path(self, sample: int) -> str:
        """The absolute path of a sample's file, to open it; odd names keep their odd bytes."""
        return os.fsdecode(self.store.path(sample))

    @property
    def classes(self) -> list[str]:
        """The class names, by class number."""
        return self._index.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The class numbers, by class name; a new dictionary each time."""
        return {name: number for number, name in enumerate(self._index.classes)}

    @property
    def targets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The class number of every sample, int64 (n); a new array each time."""
        return self._index.labels.astype(np.int64)

    def with_transform(self, transform: Transform) -> ImageFolder:
        """The same images with another transform, e.g. for testing; the index is shared."""
        other = copy.copy(self)
        other.transform = checked_transform(transform)
        return other

    def __repr__(self) -> str:
        return (
            f"ImageFolder({self.root!r}, {self.transform!r}, "
            f"decode={'scaled' if self._scaled else 'exact'!r}): "
            f"{len(self)} images, {len(self.classes)} classes"
        )


def _store_of(root: str, index: FolderIndex) -> FileStore[FolderIndex]:
    folders = [os.fsencode(os.path.join(root, name, "")) for name in index.classes]
    return FileStore(index, folders)
