"""An image's way through crops, resizes, pads and flips, folded into one: what is shown of what.

Guarantees: pure geometry, each direction for itself; the same pixels are shown that the moves show
one after another, and the same are looked at by a resize.

Relies on: at most one resize, and no pad before it; `resample_filter` for how far a filter looks.
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
    """One direction of an image on its way.

    Of its pixels some are resized, some of those are shown, and they stand somewhere on the canvas,
    whose rest was padded.

    Args:
        first, extent: the source pixels that are resized.
        resized: to how many.
        mirrored: the source pixels are mirrored before they are resized.
        start, count: which of the resized are shown.
        flip: they are shown mirrored.
        at: where on the canvas the first stands.
        length: of the canvas, in pixels.
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
        """All of an image as it is."""
        return cls(0, pixels, pixels, False, 0, pixels, False, 0, pixels)

    @property
    def is_resized(self) -> bool:
        """Whether it has another number of pixels than before."""
        return self.resized != self.extent

    @property
    def is_mirrored(self) -> bool:
        """Whether the last source pixel that is shown comes first."""
        return self.mirrored != self.flip

    def crop(self, first: int, length: int) -> Axis:
        """Keep `length` pixels of the canvas from `first` on."""
        low = min(max(first - self.at, 0), self.count)
        high = max(min(first + length - self.at, self.count), low)
        start = self.start + (self.count - high if self.flip else low)
        at = max(self.at - first, 0)
        return replace(self, start=start, count=high - low, at=at, length=length)

    def pad(self, before: int, after: int) -> Axis:
        """Put pixels before and behind the canvas."""
        return replace(self, at=self.at + before, length=self.length + before + after)

    def mirror(self) -> Axis:
        """Turn the canvas round."""
        return replace(self, at=self.length - self.at - self.count, flip=not self.flip)

    def resize(self, pixels: int) -> Axis:
        """Resize the canvas, which is the image still, and has not been resized."""
        if pixels == self.length:
            return self
        assert not self.is_resized, "it was resized"
        assert self.count == self.length, "it was padded"
        return Axis(self.start, self.count, pixels, self.flip, 0, pixels, False, 0, pixels)

    def picked(self, filter: Filter) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The source pixels that a resize to the nearest one shows, int64 (count), as they stand.

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
        """The first of the resized that is shown, where nothing is mirrored before."""
        return self.resized - self.start - self.count if self.mirrored else self.start

    def span(self, filter: Filter) -> slice:
        """Which of the pixels that are resized a weighing filter looks at for those shown."""
        if not self.is_resized:
            return slice(self.window, self.window + self.count)
        scale = self.extent / self.resized
        reach = support(filter) * max(scale, 1.0) + 1.0
        low, high = self.window * scale - reach, (self.window + self.count) * scale + reach
        return slice(max(math.floor(low), 0), min(math.ceil(high), self.extent))


@dataclass(frozen=True, slots=True)
class Canvas:
    """An image on its way, in both directions; each move gives another one."""

    down: Axis
    across: Axis

    @classmethod
    def of(cls, height: int, width: int) -> Canvas:
        """All of an image of this many pixels as it is."""
        return cls(Axis.of(height), Axis.of(width))

    @property
    def size(self) -> tuple[int, int]:
        """The height and width in pixels."""
        return self.down.length, self.across.length

    @property
    def is_empty(self) -> bool:
        """Whether nothing is shown of the image: all was padded."""
        return not (self.down.count and self.across.count)

    @property
    def is_padded(self) -> bool:
        """Whether there is more than the image shows."""
        return (self.down.count, self.across.count) != self.size

    def crop(self, top: int, left: int, height: int, width: int) -> Canvas:
        """Keep a part, which lies on the canvas."""
        return Canvas(self.down.crop(top, height), self.across.crop(left, width))

    def pad(self, left: int, top: int, right: int, bottom: int) -> Canvas:
        """Put pixels around it."""
        return Canvas(self.down.pad(top, bottom), self.across.pad(left, right))

    def mirror(self) -> Canvas:
        """Exchange left and right."""
        return Canvas(self.down, self.across.mirror())

    def turn_over(self) -> Canvas:
        """Exchange top and bottom."""
        return Canvas(self.down.mirror(), self.across)

    def resize(self, height: int, width: int) -> Canvas:
        """Resize it to this many pixels."""
        return Canvas(self.down.resize(height), self.across.resize(width))

    def window(self, filter: Filter) -> Window:
        """What is shown of all that is resized, mirrored left and right alone."""
        down, across = self.down, self.across
        flip = across.is_mirrored
        return Window(down.resized, across.resized, down.window, across.window, flip, filter)
