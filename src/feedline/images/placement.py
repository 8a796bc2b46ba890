"""Placement of a part of an image: its source pixels, and their size after resizing.

Guarantees: pure geometry; a placement on an original can be mapped to any smaller copy of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from feedline.images.resample_filter import Filter
from feedline.sources.store import Pixels

__all__ = ["Box", "Part", "Placement", "Window", "cut"]

Part: TypeAlias = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""


def cut(image: Pixels, part: Part | None) -> Pixels:
    """View of a part of an image (height, width, 3); the image itself for None.

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
    """A part of an image, in pixels, to be resized to a row and optionally mirrored.

    `edges` are the top, left, height and width of the resized area within the part, in its own
    pixels, if they lie within pixels: so a part of an image is found on a copy of another size.
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool
    edges: tuple[float, float, float, float] | None = None
    filter: Filter = "bilinear"

    def shrink(self, height: int, width: int, size: int) -> int:
        """Factor, 1, 2, 4 or 8, by which the (height, width) image may be reduced when decoded.

        The largest at which this part still has the `size` of the row in both directions.
        """
        return _shrink(min(self.height, self.width), size)

    @property
    def part(self) -> Part | None:
        """Required part of the image."""
        return self[:4]

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> Box:
        """Map this part of an image `of` (height, width) to a copy of (height, width)."""
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
    """A row's area at (top, left) of an image that is resized completely to (height, width)."""

    height: int
    width: int
    top: int
    left: int
    flip: bool = False
    filter: Filter = "bilinear"

    def shrink(self, height: int, width: int, size: int) -> int:
        """Factor, 1, 2, 4 or 8, by which the (height, width) image may be reduced when decoded.

        The largest at which the whole need not be enlarged.
        """
        return min(_shrink(height, self.height), _shrink(width, self.width))

    @property
    def part(self) -> Part | None:
        """None: all of the image is required."""
        return None

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> Window:
        """The same on any copy: it is resized to the same size."""
        return self


Placement: TypeAlias = Box | Window


def _interval(first: float, extent: float, length: int, of: int) -> tuple[int, int, float, float]:
    """Map an interval of `of` pixels to a copy of `length`: the whole pixels, and the position
    in them.

    Returns:
        First pixel and end pixel; the interval's first edge and its extent, relative to the first
        pixel.
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
