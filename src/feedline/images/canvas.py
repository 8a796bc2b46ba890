"""Crops, resizes, pads and flips of an image, folded into one mapping from source to visible
pixels.

Guarantees: pure geometry, independent in each direction; the visible pixels are those of the moves
one after another, and a resize uses the same source pixels. Only the pixels that the filter needs
are read of an image; a mask's values are copied, never mixed, and are those of torch's
nearest-neighbour resize of the whole mask.

Relies on: at most one resize, and no padding before it; `resize` for the filter's reach and pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedline.images.crops import Filter, Part, Window
from feedline.images.resize import FILTERS, KERNELS, ResizeMode, fill, nearest_pixels
from feedline.sources.store import Pixels

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of an image.

    Some of its pixels are resized, some of those are visible, and they are placed on the canvas,
    whose rest is padding.
    """

    first: int  # source pixel from which `extent` pixels are resized
    extent: int
    resized: int  # their number after resizing
    mirrored: bool  # the source pixels are mirrored before the resize
    start: int  # resized pixel from which `count` are visible
    count: int
    flip: bool  # the visible pixels are mirrored
    at: int  # position of the first visible pixel on the canvas
    length: int  # of the canvas, in pixels

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

    def nearest_pixels(self, filter: Filter) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Source pixels that "nearest" or "nearest-exact" shows, int64 (count), in order."""
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
        reach = KERNELS[filter][0] * max(scale, 1.0) + 1.0
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


def image_on(
    canvas: Canvas,
    read: Callable[[Part | None], Pixels],
    filter: Filter,
    mode: ResizeMode,
    colour: Colour,
) -> Pixels:
    """Visible pixels of an image on a canvas, with padding of a colour (red, green, blue).

    `read` returns a part of the image, for None all of it. Both it and the result are uint8
    (height, width, 3); the result is C-contiguous, in new memory. The mode is "pillow" or "bytes".
    """
    down, across = canvas.down, canvas.across
    if canvas.is_empty:
        return _padded(np.empty((0, 0, 3), np.uint8), canvas, np.array(colour, np.uint8))
    if filter in FILTERS:
        shown = np.empty((down.count, across.count, 3), np.uint8)
        fill(shown, _read_filter_input(canvas, read, filter), canvas.window(filter), mode)
        if down.is_mirrored:
            shown = shown[::-1].copy()
    else:
        image = read(None)
        shown = np.take(
            image[down.nearest_pixels(filter)], across.nearest_pixels(filter), 1, mode="clip"
        )
    return _padded(shown, canvas, np.array(colour, np.uint8)) if canvas.is_padded else shown


def _read_filter_input(
    canvas: Canvas, read: Callable[[Part | None], Pixels], filter: Filter
) -> Pixels:
    """Source of the resize, of its own size, so that the filter's weights and their rounding are
    those for the whole; only the pixels that the filter needs are read, the rest is undefined.
    """
    down, across = canvas.down, canvas.across
    rows, columns = down.span(filter), across.span(filter)
    height, width = rows.stop - rows.start, columns.stop - columns.start
    part = read((down.first + rows.start, across.first + columns.start, height, width))
    if (height, width) == (down.extent, across.extent):
        return part
    image = np.empty((down.extent, across.extent, 3), np.uint8)
    image[rows, columns] = part
    return image


def mask_on(
    canvas: Canvas, mask: np.ndarray[Any, Any], value: float
) -> np.ndarray[Any, np.dtype[Any]]:
    """Visible pixels of a mask (..., height, width) of the image's size on a canvas, padded with a
    value: the same dtype, in new memory.
    """
    rows, columns = canvas.down.nearest_pixels("nearest"), canvas.across.nearest_pixels("nearest")
    shown = np.take(np.take(mask, rows, -2), columns, -1)
    if not canvas.is_padded:
        return shown
    return _padded(shown[..., None], canvas, np.array([value]).astype(mask.dtype))[..., 0]


def _padded(
    shown: np.ndarray[Any, Any], canvas: Canvas, colour: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Visible pixels, (..., height, width, channels), placed on the canvas."""
    padded = np.empty((*shown.shape[:-3], *canvas.size, len(colour)), colour.dtype)
    if len(set(colour.tolist())) == 1:
        padded.fill(colour[0])
    else:  # numpy takes fifty times as long
        padded[:] = colour
    if not canvas.is_empty:
        down, across = canvas.down, canvas.across
        rows = slice(down.at, down.at + down.count)
        padded[..., rows, across.at : across.at + across.count, :] = shown
    return padded
