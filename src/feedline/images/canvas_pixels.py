"""Pixels of a canvas: of an image through a filter, of a mask the nearest ones.

Guarantees: only the pixels that the filter needs are read of an image; a mask's values are copied,
never mixed, and are those of torch's nearest-neighbour resize of the whole mask.

Relies on: `canvas` for the geometry, `resize_mode` for the pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.images.canvas import Canvas
from feedline.images.placement import Part
from feedline.images.resample_filter import FILTERS, Filter
from feedline.images.resize_mode import ResizeMode, fill_as
from feedline.sources.store import Pixels

__all__ = ["image_on", "mask_on"]

Colour = tuple[int, int, int]


def image_on(
    canvas: Canvas,
    read: Callable[[Part | None], Pixels],
    filter: Filter,
    mode: ResizeMode,
    colour: Colour,
) -> Pixels:
    """Visible pixels of an image on a canvas.

    Args:
        read: returns a part of the image, uint8 (height, width, 3); None for all of it.
        filter: resize filter.
        mode: rounding, "pillow" or "bytes".
        colour: colour of the padding: red, green, blue.

    Returns:
        uint8 (height, width, 3), C-contiguous, in new memory.
    """
    down, across = canvas.down, canvas.across
    if canvas.is_empty:
        return _padded(np.empty((0, 0, 3), np.uint8), canvas, np.array(colour, np.uint8))
    if filter in FILTERS:
        shown = np.empty((down.count, across.count, 3), np.uint8)
        fill_as(mode, shown, _looked_at(canvas, read, filter), canvas.window(filter))
        if down.is_mirrored:
            shown = shown[::-1].copy()
    else:
        image = read(None)
        shown = np.take(image[down.picked(filter)], across.picked(filter), 1, mode="clip")
    return _padded(shown, canvas, np.array(colour, np.uint8)) if canvas.is_padded else shown


def _looked_at(canvas: Canvas, read: Callable[[Part | None], Pixels], filter: Filter) -> Pixels:
    """Source of the resize, of which only the pixels that the filter needs are read; the rest is
    undefined.

    So the filter's weights, and their rounding, are those of a resize of the whole.
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
    """Visible pixels of a mask on a canvas.

    Args:
        mask: any dtype, (..., height, width), of the image's size.
        value: value of the padding.

    Returns:
        the same dtype, (..., height, width), in new memory.
    """
    rows, columns = canvas.down.picked("nearest"), canvas.across.picked("nearest")
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
