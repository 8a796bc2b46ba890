"""A part of an image into a row, in one pass.

Guarantees: writes the row (size, size, 3) where it lies, also in shared memory, and nothing
else; the bytes of torch's antialiased bilinear resize of uint8, whose arithmetic is Pillow's
with 16-bit weights: within 0.2 grey levels on average of torchvision's pipeline on Pillow
images; no warning for read-only or oddly strided images.

Relies on: `_resample`, compiled, which makes those bytes in about half of torch's time. Where
it was not compiled, the processor lacks AVX2, or the resize is one that it does not take
(more than 8 : 1), torch itself does it (its `out=` form spares the copy that `interpolate` needs).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline.images.crops import Box, Placement, Window
from feedline.stores.store import Pixels

try:
    from feedline.images import _resample as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["fill"]

_quick = compiled is not None and compiled.supported

# What torch.nn.functional.interpolate calls; the same kernel through torch.ops takes 2 us longer.
_antialiased: Any = torch._C._nn._upsample_bilinear2d_aa

# Beyond this many times the row's pixels, the resized whole of an elongated image is not made.
_WHOLE_LIMIT = 16


def fill(row: Pixels, image: Pixels, placement: Placement, *, down_first: bool = False) -> None:
    """Resize a part of an image into a row.

    Args:
        row: uint8 (size, size, 3), C-contiguous, written over.
        image: uint8 (height, width, 3), any strides, read only: the placement's `part` of an
            image, so the whole for a window.
        placement: what is to be made of it.
        down_first: the vertical pass comes before the horizontal one, not after it as in torch:
            the bytes between them are rounded, so a fifth of the row's are 1 more or 1 less.
    """
    size = len(row)
    from_height, from_width = image.shape[:2]
    if isinstance(placement, Box):
        height, width, top, left, flip = size, size, 0, 0, placement.flip
        if placement.edges is not None:
            _resize_edges(image, row, placement.edges, flip, down_first)
            return
    else:
        height, width, top, left, flip = placement
    if (from_height, from_width) == (height, width):
        np.copyto(row, image[top : top + size, left : left + size])
    elif _quick and compiled.resample(image, row, height, width, top, left, flip, down_first):
        return
    elif height == width == size:
        _resize(image, row, down_first)
    elif height * width <= _WHOLE_LIMIT * size * size:
        # The filter looks beyond the window's edge, so the whole is resized first.
        whole = np.empty((height, width, 3), np.uint8)
        _resize(image, whole, down_first)
        np.copyto(row, whole[top : top + size, left : left + size])
    else:
        _resize_window(image, Window(height, width, top, left), row)
    if flip:
        mirrored = torch.from_numpy(row)
        mirrored.copy_(mirrored.flip(1))


def _resize_edges(
    image: Pixels,
    row: Pixels,
    edges: tuple[float, float, float, float],
    flip: bool,
    down_first: bool,
) -> None:
    """Resize what lies between edges within pixels: top, left, height, width."""
    size = len(row)
    if _quick and compiled.resample(image, row, size, size, 0, 0, flip, down_first, edges):
        return
    pixels = image.astype(np.int32)
    for axis in (0, 1) if down_first else (1, 0):
        taps, weights, precision = _whole_weights(
            image.shape[axis], edges[axis], edges[axis + 2], size
        )
        gathered = np.take(pixels, taps, axis)  # (h, size, taps, 3) or (size, taps, w, 3)
        mixed = np.einsum("hstc,st->hsc" if axis else "stwc,st->swc", gathered, weights)
        pixels = np.clip(mixed + (1 << precision - 1) >> precision, 0, 255)
    np.copyto(row, (pixels[:, ::-1] if flip else pixels).astype(np.uint8))


def _whole_weights(
    source: int, first: float, extent: float, resized: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int32]], int]:
    """Which source pixels `_resample.c` weighs, shape (resized, taps), and their weights.

    Returns:
        the source pixels, their weights as whole numbers, and by how many bits these are too large.
    """
    scale = extent / resized
    support, shrink = max(scale, 1.0), min(1.0, 1.0 / scale)
    centres = first + scale * (np.arange(resized) + 0.5)
    starts = np.maximum((centres - support + 0.5).astype(int), 0)
    stops = np.minimum((centres + support + 0.5).astype(int), source)
    taps = starts[:, None] + np.arange((stops - starts).max())
    shares = np.maximum(1.0 - np.abs((taps - centres[:, None] + 0.5) * shrink), 0.0)
    shares[taps >= stops[:, None]] = 0.0
    shares /= np.cumsum(shares, 1)[:, -1:]  # one by one, as C adds them up
    precision = 0
    while precision < 22 and int(0.5 + shares.max() * (1 << precision + 1)) < 1 << 15:
        precision += 1
    weights = (0.5 + shares * (1 << precision)).astype(np.int32)
    return np.minimum(taps, source - 1), weights, precision


def _resize(source: Pixels, target: Pixels, down_first: bool) -> None:
    """Resize all of `source` (h, w, 3) to all of `target` (H, W, 3)."""
    if down_first:
        turned = np.empty(target.transpose(1, 0, 2).shape, np.uint8)
        _resize(np.ascontiguousarray(source.transpose(1, 0, 2)), turned, False)
        np.copyto(target, turned.transpose(1, 0, 2))
        return
    if not source.flags.writeable or min(source.strides) < 0:  # torch warns, or refuses
        source = source.copy()
    _antialiased(
        torch.from_numpy(source[None]).permute(0, 3, 1, 2),
        list(target.shape[:2]),
        False,
        None,
        None,
        out=torch.from_numpy(target[None]).permute(0, 3, 1, 2),
    )


def _resize_window(image: Pixels, window: Window, row: Pixels) -> None:
    """Make only the window of a resized image, by the definition of the filter.

    Slower than resizing the whole, unless the whole would be enormous: a 1 x 3000 image has one
    of 256 x 768,000 pixels.
    """
    height, width, top, left, _ = window
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
