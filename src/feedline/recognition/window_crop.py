"""A square of a resized image: torchvision's Resize, then CenterCrop, RandomCrop or nothing.

Guarantees: pure geometry; the same seed gives the same window everywhere; roundings are
torchvision's. Relies on `crops` for the roundings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feedline.images.crops import centred, resized
from feedline.images.placement import Box, Placement, Window
from feedline.images.resample_filter import Filter
from feedline.plan.row import Item
from feedline.plan.seeds import Stream

__all__ = ["WindowCrop"]


@dataclass(frozen=True)
class WindowCrop:
    """Resize(resize), a crop of `crop` pixels, and perhaps a flip, in this or another order.

    At another image size than `crop` all of it is scaled alike: Resize(round(resize * size /
    crop)) and a crop of that size.

    Args:
        resize: the shorter side of the resized image in pixels; with `square` both sides.
        crop: the side of the square that is cut out, at most `resize`.
        square: the image is resized to a square, whatever its shape.
        random: the square is anywhere, each place alike; else in the centre.
        flip: the probability of mirroring left and right.
        flip_first: the image is mirrored before the square is cut out, not after it.
        filter: of the resize.
    """

    resize: int
    crop: int
    square: bool = False
    random: bool = False
    flip: float = 0.0
    flip_first: bool = False
    filter: Filter = "bilinear"
    uses_strength: ClassVar[bool] = False

    @property
    def draws(self) -> bool:
        """Whether the seed of an item decides anything."""
        return self.random or bool(self.flip)

    def place(self, height: int, width: int, item: Item) -> Placement:
        """Place the square in an image of (height, width) pixels for this item."""
        size = item.side
        stream = Stream(item.seed)
        flip = bool(self.flip) and stream.uniform() < self.flip
        resize = self.wanted_side(size)
        if self.square and resize == size:
            return Box(0, 0, height, width, flip, None, self.filter)
        whole = (resize, resize) if self.square else resized(height, width, resize)
        if self.random:
            down, across = stream.pair()
            top, left = int(down * (whole[0] - size + 1)), int(across * (whole[1] - size + 1))
        else:
            top, left = centred(*whole, size)
        if flip and self.flip_first:
            # What is cut out of the mirrored image lies on the other side of the image itself.
            left = whole[1] - size - left
        return Window(*whole, top, left, flip, self.filter)

    def wanted_side(self, size: int) -> int:
        """The shorter side, in pixels, to which images are resized for rows of `size` px."""
        return round(self.resize * size / self.crop)
