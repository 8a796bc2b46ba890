"""Images decoded in advance, as a source of rows: one array, in memory or in a file.

Guarantees: those of `rows` and `sources.arrays`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from feedline.images.crops import without_addresses
from feedline.images.rows import ImageSource, ImageTransform, check_transform
from feedline.order.pixel_layout import RGB
from feedline.sources.arrays import ArrayStore
from feedline.sources.store import Pixels


class ImageArray(ImageSource[ArrayStore]):
    """Decoded images of one size in one array, e.g. a smaller copy of a dataset.

    A row is "image", (size, size, channels) of the images' dtype, and "label", of the labels' dtype
    and shape.

    Args:
        images: (n, height, width, channels), C-contiguous, e.g. RGB, grey or multispectral, of
            dtype uint8, uint16, int16, float16 or float32; or the path of an .npy file with such an
            array, which is memory-mapped and may be larger than memory.
        labels: numbers (n, ...), or the path of an .npy file of them. Whole numbers of shape (n,)
            become int64, e.g. class indices; all others keep their dtype and shape, e.g. float32
            (n, 4) for boxes or bool (n, classes) for multi-label. Class names and columns of
            categories become int64, numbered as by `ImageList`.
        transform: crop, `TrainCrop()` (default) or `EvalCrop()`, or another transform, as in
            `ImageFolder`. Does not change labels.

    Raises:
        DatasetError: a file is missing or is not an .npy file.
        UsageError: an array has a wrong shape or dtype, or its channels come first, by its sizes
            or its order in memory; the message names it.
    """

    def __init__(
        self,
        images: Pixels | str | os.PathLike[str],
        labels: Any,
        transform: ImageTransform | None = None,
    ) -> None:
        store = ArrayStore(images, labels)
        super().__init__(store, check_transform(transform), layout=store.layout)

    @property
    def images(self) -> Pixels:
        """All images, (n, height, width, channels)."""
        return self.store.images

    @property
    def targets(self) -> np.ndarray[Any, Any]:
        """All labels, (n, ...)."""
        return self.store.labels

    @property
    def classes(self) -> list[str]:
        """Class names by index; empty if the labels are numbers."""
        return self.store.classes

    @property
    def path(self) -> str | None:
        """File of the images; None if they are in memory."""
        return self.store.path

    def transform_identity(self) -> str:
        """Description of everything that determines a row's pixels: equal in every process."""
        return without_addresses(repr(self.transform))

    def __repr__(self) -> str:
        count, height, width, _ = self.images.shape
        where = repr(self.path) if self.path else "array in memory"
        layout = "" if self.layout == RGB else f", {self.layout}"
        images = f"{count} images of {width} x {height} px{layout}"
        return f"ImageArray({where}, {self.transform!r}): {images}"
