"""Several views of one image: their parts of it, and the one part that contains them all.

Guarantees: pure geometry; the same seed gives the same parts everywhere; only the smallest
rectangle that contains all views is required of the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from feedline.images.compile.recognised_transform import RecognisedTransform
from feedline.images.crops import Part, Placement, Transform, cut, wanted_side
from feedline.order.batch_spec import Item
from feedline.order.seeds import extend
from feedline.sources.store import Pixels

__all__ = ["PlacedViews", "ViewCrops", "crops_of"]


class PlacedViews(NamedTuple):
    """Placement of each view: for `RowPipeline` one placement, whose part contains all views."""

    placements: tuple[Placement, ...]
    sides: tuple[int, ...] = ()
    """Positions of the views, in pixels, if they may be decoded at a reduced size."""

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

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> PlacedViews:
        """Map the views of an image `of` (height, width) to a copy of (height, width)."""
        placements = tuple(each.on(height, width, of=of) for each in self.placements)
        return PlacedViews(placements, self.sides)

    def cut(self, image: Pixels) -> Iterator[tuple[Pixels, Placement]]:
        """Part of each view, its position, and its placement.

        Args:
            image: uint8 (height, width, 3), the `part` that contains all of them.
        """
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
        return tuple(self._side_at(view, size) for view in range(len(self.sides)))

    def _side_at(self, view: int, size: int) -> int:
        return max(1, round(self.sides[view] * size / self.largest))

    def place(self, height: int, width: int, item: Item) -> PlacedViews:
        """Draw each view of an image of (height, width) pixels."""
        views = range(len(self.crops))
        placements = tuple(self.placed(view, height, width, item) for view in views)
        return PlacedViews(placements, self.sides_at(item.required_image_size))

    def placed(self, view: int, height: int, width: int, item: Item) -> Placement:
        """Draw one view of an image of (height, width) pixels, from a seed of its own."""
        own = Item(
            item.sample,
            self._side_at(view, item.required_image_size),
            extend(item.seed, view),
            item.strength,
        )
        return self.crops[view].place(height, width, own)

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, of an image that is large enough for all of them."""
        sides = self.sides_at(size)
        return max(wanted_side(crop, side) for crop, side in zip(self.crops, sides, strict=True))


def crops_of(views: tuple[RecognisedTransform, ...]) -> ViewCrops:
    """Crops of several views."""
    return ViewCrops(tuple(view.crop for view in views), tuple(view.image_size for view in views))
