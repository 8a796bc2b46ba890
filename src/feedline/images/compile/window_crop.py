"""Part of a resized image: torchvision's Resize, then CenterCrop, RandomCrop or nothing.

Guarantees: pure geometry; the same seed gives the same window everywhere; rounding is
torchvision's. Relies on `crops` for the rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feedline.images.crops import Box, Filter, Placement, Shape, Window, centred, resized, scaled
from feedline.order.batch_spec import Item
from feedline.order.seeds import RandomStream

__all__ = ["WindowCrop"]


@dataclass(frozen=True)
class WindowCrop:
    """Resize(resize), a crop, and optionally a flip, in this or another order.

    At another image size than the crop's longer side everything is scaled alike: for a square,
    Resize(round(resize * size / side)) and a crop of that size.

    Args:
        resize: shorter side of the resized image in pixels, or its height and width.
        crop: height and width of the crop; no side is larger than the resized image's.
        random: the crop is placed uniformly at random; otherwise in the centre.
        flip: probability of mirroring left and right.
        flip_first: the image is mirrored before the crop, not after it.
        filter: resize filter.
    """

    resize: int | Shape
    crop: Shape
    random: bool = False
    flip: float = 0.0
    flip_first: bool = False
    filter: Filter = "bilinear"
    uses_strength: ClassVar[bool] = False

    @property
    def draws(self) -> bool:
        """True if the result depends on an item's seed."""
        return self.random or bool(self.flip)

    def place(self, height: int, width: int, item: Item) -> Placement:
        """Place the crop in an image of (height, width) pixels for this item."""
        stream = RandomStream(item.seed)
        flip = bool(self.flip) and stream.uniform() < self.flip
        rows, columns = scaled(self.crop, item.required_image_size, max(self.crop))
        whole = self._whole(height, width, item.required_image_size)
        if whole == (rows, columns) and not isinstance(self.resize, int):
            return Box(0, 0, height, width, flip, None, self.filter)
        if self.random:
            down, across = stream.pair()
            top, left = int(down * (whole[0] - rows + 1)), int(across * (whole[1] - columns + 1))
        else:
            top, left = centred(*whole, rows, columns)
        if flip and self.flip_first:
            # What is cut out of the mirrored image lies on the other side of the image itself.
            left = whole[1] - columns - left
        return Window(*whole, top, left, flip, self.filter)

    def _whole(self, height: int, width: int, size: int) -> Shape:
        """Height and width to which an image is resized for rows of `size` px."""
        if isinstance(self.resize, int):
            return resized(height, width, self.wanted_side(size))
        return scaled(self.resize, size, max(self.crop))

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, of an image that need not be enlarged for `size` px."""
        side = self.resize if isinstance(self.resize, int) else max(self.resize)
        return round(side * size / max(self.crop))
