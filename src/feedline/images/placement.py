"""Where a part of an image goes: which pixels are looked at, and what is resized to what.

Guarantees: pure geometry; a placement on an original can be found again on any smaller copy of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from feedline.images.resample_filter import Filter
from feedline.stores.store import Pixels

__all__ = ["Box", "Part", "Placement", "Window", "cut"]

Part: TypeAlias = tuple[int, int, int, int]
"""The top, left, height and width of a part of an image, in pixels."""


def cut(image: Pixels, part: Part | None) -> Pixels:
    """A part of an image (height, width, 3), where it lies; the image itself for None.

    Raises:
        ValueError: the part is empty or does not lie in the image.
    """
    if part is None:
        return image
    top, left, height, width = part
    rows, columns = image.shape[:2]
    if not (0 <= top < top + height <= rows and 0 <= left < left + width <= columns):
        raise ValueError(f"the part {part} must lie in the image of {rows} x {columns} pixels")
    return image[top : top + height, left : left + width]


class Box(NamedTuple):
    """A part of an image, in pixels, to be resized to a row and perhaps mirrored.

    `edges` are the top, left, height and width of what is resized of it, in the part's own pixels,
    where they lie within pixels: so a part of an image is found on a copy of another size.
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool
    edges: tuple[float, float, float, float] | None = None
    filter: Filter = "bilinear"

    def shrink(self, height: int, width: int, size: int) -> int:
        """By how much, 1, 2, 4 or 8, the (height, width) image may be decoded smaller.

        The most at which this part still has the `size` of the row in both directions.
        """
        return _shrink(min(self.height, self.width), size)

    @property
    def part(self) -> Part | None:
        """What of the image is looked at."""
        return self[:4]

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> Box:
        """Find this part of an image `of` (height, width) on a copy of (height, width)."""
        if (height, width) == of:
            return self
        top, left, rows, columns, flip, edges, filter = self
        down, across, tall, wide = edges or (0.0, 0.0, rows, columns)
        top, bottom, down, tall = _interval(top + down, tall, height, of[0])
        left, right, across, wide = _interval(left + across, wide, width, of[1])
        rows, columns = bottom - top, right - left
        whole = down == 0.0 == across and tall == rows and wide == columns
        exact = None if whole else (down, across, tall, wide)
        return Box(top, left, rows, columns, flip, exact, filter)


class Window(NamedTuple):
    """A row's worth at (top, left) of an image that is resized as a whole to (height, width)."""

    height: int
    width: int
    top: int
    left: int
    flip: bool = False
    filter: Filter = "bilinear"

    def shrink(self, height: int, width: int, size: int) -> int:
        """By how much, 1, 2, 4 or 8, the (height, width) image may be decoded smaller.

        The most at which the whole need not be enlarged.
        """
        return min(_shrink(height, self.height), _shrink(width, self.width))

    @property
    def part(self) -> Part | None:
        """None: all of the image is looked at."""
        return None

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> Window:
        """The same on any copy: it is resized to the same whole."""
        return self


Placement: TypeAlias = Box | Window


def _interval(first: float, extent: float, length: int, of: int) -> tuple[int, int, float, float]:
    """An interval of `of` pixels on a copy of `length`: the whole pixels, and where in them it is.

    Returns:
        The first pixel and the one behind the last; the interval's first edge and its extent,
        counted from there.
    """
    # Comparisons, where min and max would take three times as long: this is done for every row.
    low, most = first * length / of, length - 1e-3
    if low > most:
        low = most
    high = (first + extent) * length / of
    if high < low + 1e-3:
        high = low + 1e-3
    if high > length:
        high = float(length)
    start, stop = math.floor(low), math.ceil(high)
    return start, stop, low - start, high - low


def _shrink(pixels: int, wanted: int) -> int:
    return next((by for by in (8, 4, 2) if pixels >= wanted * by), 1)
