"""Images with a user's transform.

Guarantees: those of `rows`, if the transform is a feedline crop. With any other transform the
source is a map-style Dataset: a sample is the transform's output for the image, and its label.

Relies on: `rows` to read an image and to name what fails.
"""

from __future__ import annotations

import copy
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from feedline.errors import UsageError, note
from feedline.images.given_transform import GivenTransform, given_transform, is_crop
from feedline.images.placement import Window
from feedline.images.rows import RowPipeline, Store
from feedline.order.batch_spec import Field, Item
from feedline.sources.cache_store import CacheStore
from feedline.sources.store import Pixels

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ImageSource", "sample_label"]


class ImageSource(RowPipeline[Store]):
    """Base of feedline's image sources; arguments as in `RowPipeline`.

    The transform may also be a function of an image, such as a torchvision pipeline. Then
    `feedline.DataLoader` compiles it, or otherwise requests samples, like any DataLoader.
    """

    @property
    def writes_rows(self) -> bool:
        """True if the transform is a crop, so that `fields` and `load` may be used."""
        return is_crop(self.transform)

    @property
    def reads_scaled(self) -> bool:
        """True if JPEGs are decoded at a reduced size if possible."""
        return self._scaled

    @property
    def max_pixels(self) -> int:
        """Maximum number of pixels in an image's header."""
        return self._max_pixels

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels, which must be given.

        Raises:
            UsageError: the store has no images that are large enough, or the transform is not a
                crop.
        """
        if not self.writes_rows:
            raise UsageError(
                f"{type(self).__name__} cannot make rows with {type(self.transform)!r}; "
                "feedline.DataLoader compiles such a transform when it is built. Build a new "
                "loader if the transform has changed"
            )
        return super().fields(image_size)

    def __getitem__(self, sample: int) -> tuple[Any, Any]:
        """Output of the transform for an RGB Pillow image; and the label.

        The image is decoded completely; from a cache it is the largest copy.

        Returns:
            the label as an int if labels are whole numbers; otherwise as a numpy array.

        Raises:
            ImageError: the image cannot be read or decoded; names it.
            IndexError: there is no such sample.
            TypeError: the transform is a feedline crop, which is placed per batch.
            Exception: any error of the transform.
        """
        if self.writes_rows:
            raise TypeError(
                f"{type(self).__name__} with {self.transform!r} has no single samples: its rows "
                "are made for batches of feedline.DataLoader. Pass it, or a torch Subset of it, to "
                "feedline.DataLoader; or use a torchvision transform"
            )
        number, count = index(sample), len(self)
        if not -count <= number < count:
            raise IndexError(f"sample index {number} is out of range for {count} samples")
        number %= count
        store: Any = self.store
        side = store.manifest.levels[-1].side if isinstance(store, CacheStore) else 1
        whole = copy.copy(self)
        whole.transform = _Whole(side)
        pixels, _ = whole._part(Item(number, side, 0, 1.0))
        image = Image.fromarray(_own(pixels))
        transform: Any = self.transform
        try:
            return transform(image), sample_label(store.label(number))
        except Exception as error:
            note(error, f"Raised for {self.name(number)}.")
            raise

    def with_transform(self, transform: GivenTransform) -> Self:
        """The same images with another transform, e.g. for evaluation; opened files are shared."""
        other = copy.copy(self)
        other.transform = given_transform(transform)
        return other


class _Whole:
    """Transform that shows the whole image unchanged, from copies with a given side."""

    def __init__(self, side: int) -> None:
        self._side = side

    def place(self, height: int, width: int, item: Item) -> Window:
        """Place the whole image."""
        return Window(height, width, 0, 0)

    def wanted_side(self, size: int) -> int:
        """Side of the copies."""
        return self._side


def sample_label(label: Any) -> Any:
    """Label of a sample: an int for a whole number, otherwise an array or number.

    torch's default collate makes the labels of a batch of rows from it.
    """
    given = np.asarray(label)
    if given.shape == () and given.dtype.kind in "iu":
        return int(given)
    return given.copy() if given.shape else given[()]


def _own(pixels: Pixels) -> Pixels:
    """Copy pixels to new memory, because the next image overwrites them."""
    return np.array(pixels, order="C")
