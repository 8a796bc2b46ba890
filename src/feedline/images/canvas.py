"""Crops, resizes, pads and flips of an image, folded into one mapping from source to visible
pixels.

Guarantees: pure geometry, independent in each direction; the visible pixels are those of the moves
one after another, and a resize uses the same source pixels.

Relies on: at most one resize, and no padding before it; `resample_filter` for the filter's reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from feedline.images.placement import Window
from feedline.images.resample_filter import Filter, nearest_pixels, support

__all__ = ["Axis", "Canvas"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of an image.

    Some of its pixels are resized, some of those are visible, and they are placed on the canvas,
    whose rest is padding.

    Args:
        first, extent: source pixels that are resized.
        resized: their number after resizing.
        mirrored: the source pixels are mirrored before the resize.
        start, count: visible range of the resized pixels.
        flip: the visible pixels are mirrored.
        at: position of the first visible pixel on the canvas.
        length: length of the canvas, in pixels.
    """

    first: int
    extent: int
    resized: int
    mirrored: bool
    start: int
    count: int
    flip: bool
    at: int
    length: int

    @classmethod
    def of(cls, pixels: int) -> Axis:
        """The whole image, unchanged."""
        return cls(0, pixels, pixels, False, 0, pixels, False, 0, pixels)

    @property
    def is_resized(self) -> bool:
        """True if the number of pixels changes."""
        return self.resized != self.extent

    @property
    def is_mirrored(self) -> bool:
        """True if the last visible source pixel comes first."""
        return self.mirrored != self.flip

    def crop(self, first: int, length: int) -> Axis:
        """Keep `length` pixels of the canvas, starting at `first`."""
        low = min(max(first - self.at, 0), self.count)
        high = max(min(first + length - self.at, self.count), low)
        start = self.start + (self.count - high if self.flip else low)
        at = max(self.at - first, 0)
        return replace(self, start=start, count=high - low, at=at, length=length)

    def pad(self, before: int, after: int) -> Axis:
        """Add pixels before and after the canvas."""
        return replace(self, at=self.at + before, length=self.length + before + after)

    def mirror(self) -> Axis:
        """Mirror the canvas."""
        return replace(self, at=self.length - self.at - self.count, flip=not self.flip)

    def resize(self, pixels: int) -> Axis:
        """Resize the canvas, which must be the unpadded image and not resized yet."""
        if pixels == self.length:
            return self
        assert not self.is_resized, "already resized"
        assert self.count == self.length, "padded before the resize"
        return Axis(self.start, self.count, pixels, self.flip, 0, pixels, False, 0, pixels)

    def picked(self, filter: Filter) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Source pixels that a nearest-neighbour resize shows, int64 (count), in order.

        Args:
            filter: "nearest" or "nearest-exact".
        """
        taken = np.arange(self.resized)
        if self.is_resized:
            taken = nearest_pixels(filter, self.extent, 0.0, self.extent, self.resized)
        taken = taken[self.start : self.start + self.count]
        if self.mirrored:
            taken = self.extent - 1 - taken
        return self.first + (taken[::-1] if self.flip else taken)

    @property
    def window(self) -> int:
        """First visible resized pixel, if nothing is mirrored before the resize."""
        return self.resized - self.start - self.count if self.mirrored else self.start

    def span(self, filter: Filter) -> slice:
        """Range of source pixels that a weighing filter needs for the visible ones."""
        if not self.is_resized:
            return slice(self.window, self.window + self.count)
        scale = self.extent / self.resized
        reach = support(filter) * max(scale, 1.0) + 1.0
        low, high = self.window * scale - reach, (self.window + self.count) * scale + reach
        return slice(max(math.floor(low), 0), min(math.ceil(high), self.extent))


@dataclass(frozen=True, slots=True)
class Canvas:
    """An image under transformation, in both directions; each move returns a new one."""

    down: Axis
    across: Axis

    @classmethod
    def of(cls, height: int, width: int) -> Canvas:
        """A whole image of this many pixels, unchanged."""
        return cls(Axis.of(height), Axis.of(width))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.down.length, self.across.length

    @property
    def is_empty(self) -> bool:
        """True if nothing of the image is visible: all is padding."""
        return not (self.down.count and self.across.count)

    @property
    def is_padded(self) -> bool:
        """True if the canvas contains padding."""
        return (self.down.count, self.across.count) != self.size

    def crop(self, top: int, left: int, height: int, width: int) -> Canvas:
        """Keep a part, which must lie on the canvas."""
        return Canvas(self.down.crop(top, height), self.across.crop(left, width))

    def pad(self, left: int, top: int, right: int, bottom: int) -> Canvas:
        """Add pixels around it."""
        return Canvas(self.down.pad(top, bottom), self.across.pad(left, right))

    def mirror(self) -> Canvas:
        """Mirror left and right."""
        return Canvas(self.down, self.across.mirror())

    def turn_over(self) -> Canvas:
        """Mirror top and bottom."""
        return Canvas(self.down.mirror(), self.across)

    def resize(self, height: int, width: int) -> Canvas:
        """Resize it to this many pixels."""
        return Canvas(self.down.resize(height), self.across.resize(width))

    def window(self, filter: Filter) -> Window:
        """Visible part of the resized image, mirrored left and right only."""
        down, across = self.down, self.across
        flip = across.is_mirrored
        return Window(down.resized, across.resized, down.window, across.window, flip, filter)
