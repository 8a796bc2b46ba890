"""Visible parts of an image: torchvision's Resize with a crop, and the crops of several views.

Guarantees: pure geometry; the same seed gives the same parts everywhere; rounding is torchvision's;
only the smallest rectangle that contains all views is required of the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from feedline.images.crops import (
    Box,
    Filter,
    Part,
    Placement,
    Shape,
    Transform,
    Window,
    centre_corner,
    cut,
    resize_shape,
    scale_shape,
    wanted_side,
)
from feedline.order.batch_spec import Item
from feedline.order.seeds import RandomStream, extend
from feedline.sources.store import Pixels

__all__ = ["PlacedViews", "ViewCrops", "WindowCrop"]


@dataclass(frozen=True)
class WindowCrop:
    """Resize, then CenterCrop, RandomCrop or nothing, and optionally a flip before or after these.

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
        rows, columns = scale_shape(self.crop, item.required_image_size, max(self.crop))
        whole = self._resized_shape(height, width, item.required_image_size)
        if whole == (rows, columns) and not isinstance(self.resize, int):
            return Box(0, 0, height, width, flip, None, self.filter)
        if self.random:
            down, across = stream.pair()
            top, left = int(down * (whole[0] - rows + 1)), int(across * (whole[1] - columns + 1))
        else:
            top, left = centre_corner(*whole, rows, columns)
        if flip and self.flip_first:
            # What is cut out of the mirrored image lies on the other side of the image itself.
            left = whole[1] - columns - left
        return Window(*whole, top, left, flip, self.filter)

    def _resized_shape(self, height: int, width: int, size: int) -> Shape:
        if isinstance(self.resize, int):
            return resize_shape(height, width, self.wanted_side(size))
        return scale_shape(self.resize, size, max(self.crop))

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, of an image that need not be enlarged for `size` px."""
        side = self.resize if isinstance(self.resize, int) else max(self.resize)
        return round(side * size / max(self.crop))


class PlacedViews(NamedTuple):
    """Placement of each view: for `RowPipeline` one placement, whose part contains all views."""

    placements: tuple[Placement, ...]
    sides: tuple[int, ...] = ()
    """Sides of the views, in pixels, if they may be decoded at a reduced size."""

    def shrink(self, height: int, width: int, size: int) -> int:
        """Factor, 1, 2, 4 or 8, by which the (height, width) image may be reduced when decoded."""
        views = zip(self.placements, self.sides, strict=True)
        return min(placement.shrink(height, width, side) for placement, side in views)

    @property
    def part(self) -> Part | None:
        """Required part of the image; None for all of it."""
        parts = [part for placement in self.placements if (part := placement.part) is not None]
        if len(parts) < len(self.placements):
            return None
        if len(parts) == 1:
            return parts[0]
        top, left = min(part[0] for part in parts), min(part[1] for part in parts)
        bottom = max(part[0] + part[2] for part in parts)
        right = max(part[1] + part[3] for part in parts)
        return top, left, bottom - top, right - left

    def map_to_copy(self, height: int, width: int, *, original: tuple[int, int]) -> PlacedViews:
        """Map the views of an image of `original` (height, width) to a copy of (height, width)."""
        placements = tuple(
            each.map_to_copy(height, width, original=original) for each in self.placements
        )
        return PlacedViews(placements, self.sides)

    def cut(self, image: Pixels) -> Iterator[tuple[Pixels, Placement]]:
        """Part of each view, and its placement."""
        top, left = (self.part or (0, 0))[:2]
        for placement in self.placements:
            part = placement.part
            if part is not None:
                part = part[0] - top, part[1] - left, *part[2:]
            yield cut(image, part), placement


@dataclass(frozen=True)
class ViewCrops:
    """Crops of several views, as one transform of an image; its size is that of the largest.

    Args:
        crops: crops of the views.
        sides: sides of the views, in pixels.
    """

    crops: tuple[Transform, ...]
    sides: tuple[int, ...]

    @cached_property
    def largest(self) -> int:
        """Side of the largest view, in pixels."""
        return max(self.sides)

    @property
    def uses_strength(self) -> bool:
        """True if a crop depends on an item's strength."""
        return any(getattr(crop, "uses_strength", True) for crop in self.crops)

    @property
    def draws(self) -> bool:
        """True if the crops depend on an item's seed."""
        return any(getattr(crop, "draws", True) for crop in self.crops)

    def sides_at(self, size: int) -> tuple[int, ...]:
        """Sides of the views, in pixels, in proportion to `size` of the largest."""
        return tuple(max(1, round(side * size / self.largest)) for side in self.sides)

    def place(self, height: int, width: int, item: Item) -> PlacedViews:
        """Draw each view of an image of (height, width) pixels, from a seed of its own."""
        sides = self.sides_at(item.required_image_size)
        placements = tuple(
            crop.place(
                height, width, Item(item.sample, side, extend(item.seed, view), item.strength)
            )
            for view, (crop, side) in enumerate(zip(self.crops, sides, strict=True))
        )
        return PlacedViews(placements, sides)

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, of an image that is large enough for all of them."""
        sides = self.sides_at(size)
        return max(wanted_side(crop, side) for crop, side in zip(self.crops, sides, strict=True))
