"""Images with the transform that a user gave for them.

Guarantees: those of `rows`, where the transform is a crop of feedline's. With any other transform
the source is a map-style Dataset: a sample is what the transform makes of the image, and its label.

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
from feedline.plan.row import Field, Item
from feedline.stores.cache_store import CacheStore
from feedline.stores.store import Pixels

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ImageSource", "sample_label"]


class ImageSource(RowPipeline[Store]):
    """What all of feedline's sources of images have in common; arguments as of `RowPipeline`.

    The transform may also be a function of an image, such as a pipeline of torchvision's. Then
    `feedline.DataLoader` recognises it, or else asks for samples, as any DataLoader may.
    """

    @property
    def writes_rows(self) -> bool:
        """Whether the transform is a crop, so that `fields` and `load` may be used."""
        return is_crop(self.transform)

    @property
    def reads_scaled(self) -> bool:
        """Whether JPEGs are decoded smaller where that serves."""
        return self._scaled

    @property
    def max_pixels(self) -> int:
        """An image whose header announces more is an ImageError."""
        return self._max_pixels

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """The arrays of a row at this image size, in pixels, which must be given.

        Raises:
            UsageError: the store has no images that are large enough, or the transform is no crop.
        """
        if not self.writes_rows:
            raise UsageError(
                f"{type(self).__name__} makes no rows by itself with {type(self.transform)!r}: "
                "feedline.DataLoader recognises such a transform when it is built of it. Build it "
                "anew where the transform was changed since"
            )
        return super().fields(image_size)

    def __getitem__(self, sample: int) -> tuple[Any, Any]:
        """What the transform makes of an image, RGB, of Pillow's; and the label.

        The image is decoded as a whole; of a cache it is the largest copy.

        Returns:
            the label as an int where labels are whole numbers; else as an array of numpy's.

        Raises:
            ImageError: the image cannot be read or decoded; names it.
            IndexError: there is no such sample.
            TypeError: the transform is a crop of feedline's, which is placed for a batch.
            Exception: whatever the transform raises.
        """
        if self.writes_rows:
            raise TypeError(
                f"{type(self).__name__} with {self.transform!r} has no samples by number: its "
                "rows are made for feedline.DataLoader's batches. Give it, or a Subset of torch's "
                "of it, to feedline.DataLoader; or give it a transform of torchvision's"
            )
        number, count = index(sample), len(self)
        if not -count <= number < count:
            raise IndexError(f"sample {number} of {count}")
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
        """The same images with another transform, e.g. for testing; what is read is shared."""
        other = copy.copy(self)
        other.transform = given_transform(transform)
        return other


class _Whole:
    """Shows all of an image as it is, of copies that have a side of so many pixels."""

    def __init__(self, side: int) -> None:
        self._side = side

    def place(self, height: int, width: int, item: Item) -> Window:
        """All of it."""
        return Window(height, width, 0, 0)

    def wanted_side(self, size: int) -> int:
        """That of the copies."""
        return self._side


def sample_label(label: Any) -> Any:
    """A label of a store, as a sample has it: an int for a whole number, else an array or number.

    torch's default collate makes of it what a batch of rows has.
    """
    given = np.asarray(label)
    if given.shape == () and given.dtype.kind in "iu":
        return int(given)
    return given.copy() if given.shape else given[()]


def _own(pixels: Pixels) -> Pixels:
    """Pixels in memory of their own: what is decoded next goes where these are."""
    return np.array(pixels, order="C")
