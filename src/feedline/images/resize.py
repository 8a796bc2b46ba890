"""A part of an image into a row, in one pass.

Guarantees: writes the row (size, size, 3) where it lies, also in shared memory, and nothing
else; within 0.2 grey levels on average of torchvision's pipeline, Pillow's antialiased bilinear
resize; no warning for read-only or oddly strided images.

Relies on: torch's antialiased resize of uint8, whose arithmetic is Pillow's (its `out=` form
spares the copy that `interpolate` needs); OpenCV, where it is installed, for parts that grow in
both directions, where plain and antialiased bilinear are the same function. Without OpenCV
torch does those too, about a third slower.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from feedline.images.crops import Box, Placement, Window

try:
    cv2: Any = importlib.import_module("cv2")
except ImportError:
    cv2 = None

__all__ = ["fill"]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# What torch.nn.functional.interpolate calls; the same kernel through torch.ops takes 2 us longer.
_antialiased: Any = torch._C._nn._upsample_bilinear2d_aa

# Beyond this many times the row's pixels, the resized whole of an elongated image is not made.
_WHOLE_LIMIT = 16


def fill(row: Pixels, image: Pixels, placement: Placement) -> None:
    """Resize a part of an image into a row.

    Args:
        row: uint8 (size, size, 3), C-contiguous, written over.
        image: uint8 (height, width, 3), any strides, read only.
        placement: which part; it lies inside the image.
    """
    if isinstance(placement, Box):
        top, left, height, width, flip = placement
        _resize(image[top : top + height, left : left + width], row)
        if flip:
            _mirror(row)
        return
    _fill_window(row, image, placement)


def _fill_window(row: Pixels, image: Pixels, window: Window) -> None:
    height, width, top, left = window
    size = len(row)
    if image.shape[:2] == (height, width):
        np.copyto(row, image[top : top + size, left : left + size])
    elif height == width == size:
        _resize(image, row)
    elif height * width <= _WHOLE_LIMIT * size * size:
        # Pillow's filter looks beyond the window's edge, so the whole is resized first.
        whole = np.empty((height, width, 3), np.uint8)
        _resize(image, whole)
        np.copyto(row, whole[top : top + size, left : left + size])
    else:
        _resize_window(image, window, row)


def _resize(source: Pixels, target: Pixels) -> None:
    """Resize all of `source` (h, w, 3) to all of `target` (H, W, 3)."""
    height, width = source.shape[:2]
    to_height, to_width = target.shape[:2]
    if height == to_height and width == to_width:
        np.copyto(target, source)
        return
    if cv2 is not None and height <= to_height and width <= to_width:
        cv2.resize(source, (to_width, to_height), dst=target, interpolation=cv2.INTER_LINEAR)
        return
    if not source.flags.writeable or min(source.strides) < 0:  # torch warns, or refuses
        source = source.copy()
    _antialiased(
        torch.from_numpy(source[None]).permute(0, 3, 1, 2),
        [to_height, to_width],
        False,
        None,
        None,
        out=torch.from_numpy(target[None]).permute(0, 3, 1, 2),
    )


def _mirror(row: Pixels) -> None:
    if cv2 is not None:
        cv2.flip(row, 1, dst=row)
    else:
        pixels = torch.from_numpy(row)
        pixels.copy_(pixels.flip(1))


def _resize_window(image: Pixels, window: Window, row: Pixels) -> None:
    """Make only the window of a resized image, by the definition of the filter.

    Slower than resizing the whole, unless the whole would be enormous: a 1 x 3000 image has one
    of 256 x 768,000 pixels.
    """
    height, width, top, left = window
    size = len(row)
    down, rows = _triangles(image.shape[0], height, top, size)
    across, columns = _triangles(image.shape[1], width, left, size)
    part = image[rows, columns].astype(np.float32)
    part = np.einsum("ij,jkc->ikc", down, part, optimize=True)
    part = np.einsum("ij,kjc->kic", across, part, optimize=True)
    np.copyto(row, np.clip(part + 0.5, 0, 255).astype(np.uint8))


def _triangles(
    source: int, resized: int, first: int, count: int
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], slice]:
    """The weights of Pillow's bilinear filter for `count` of `resized` pixels from `first`.

    Returns:
        weights (count, n) and the n source pixels that they weigh.
    """
    scale = source / resized
    support = max(scale, 1.0)
    centres = (np.arange(first, first + count) + 0.5) * scale
    low = max(int(centres[0] - support), 0)
    high = min(int(centres[-1] + support) + 1, source)
    distances = np.abs(np.arange(low, high) + 0.5 - centres[:, None]) / support
    weights = np.clip(1.0 - distances, 0.0, None)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights.astype(np.float32), slice(low, high)
