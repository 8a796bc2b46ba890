"""Resize of a part of an image into a row, in one pass.

Guarantees: writes the row (height, width, 3) in place, also in shared memory, and nothing else; the
bytes of torch's antialiased bilinear or bicubic resize of uint8, whose arithmetic is Pillow's with
16-bit weights: within 0.2 grey levels on average of torchvision's pipeline on Pillow images;
Pillow's box, Hamming and Lanczos filters within 0.02; nearest pixels as in Pillow and torch; no
warning for read-only or oddly strided images.

Relies on: `_resample`, compiled, which makes those bytes in about half of torch's time. If it was
not compiled, or does not support the resize (steeper than 16 : 1, bicubic 8 : 1), torch itself does
it (its `out=` form saves the copy that `interpolate` needs); filters that torch lacks are then
numpy's, with the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.images.placement import Box, Placement, Window
from feedline.images.resample_filter import FILTERS, Filter, nearest_pixels, support, weights
from feedline.sources.store import Pixels

try:
    from feedline.images import _resample as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["fill"]

if compiled is None:
    import torch  # noqa: F401  # for every row; otherwise imported when first needed: it takes 1 s

# Beyond this many times the row's pixels, the resized whole of an elongated image is not made.
_WHOLE_LIMIT = 16

Edges = tuple[float, float, float, float]
"""Top, left, height and width of the resized area."""


def fill(row: Pixels, image: Pixels, placement: Placement, *, down_first: bool = False) -> None:
    """Resize a part of an image into a row.

    Args:
        row: uint8 (height, width, 3), C-contiguous, overwritten.
        image: uint8 (height, width, 3), any strides, read only: the placement's `part` of an image,
            so the whole for a window.
        placement: geometry and filter.
        down_first: the vertical pass comes before the horizontal one, not after it as in torch: the
            bytes between them are rounded, so a fifth of the row's bytes differ by 1.
    """
    rows, columns = row.shape[:2]
    from_height, from_width = image.shape[:2]
    filter, flip, edges = placement.filter, placement.flip, None
    if isinstance(placement, Box):
        height, width, top, left, edges = rows, columns, 0, 0, placement.edges
    else:
        height, width, top, left = placement[:4]
    if filter not in FILTERS:
        found = edges or (0.0, 0.0, from_height, from_width)
        _pick(image, row, Window(height, width, top, left, flip, filter), found)
        return
    if edges is None and (from_height, from_width) == (height, width):
        np.copyto(row, image[top : top + rows, left : left + columns])
    elif compiled is not None and compiled.resample(
        *(image, row, height, width, top, left, flip, down_first, FILTERS.index(filter)),
        *(() if edges is None else (edges,)),
    ):
        return
    elif edges is not None:
        _resize_edges(image, row, edges, filter, down_first)
    elif (height, width) == (rows, columns):
        _resize(image, row, filter, down_first)
    elif height * width <= _WHOLE_LIMIT * rows * columns:
        # The filter looks beyond the window's edge, so the whole is resized first.
        whole = np.empty((height, width, 3), np.uint8)
        _resize(image, whole, filter, down_first)
        np.copyto(row, whole[top : top + rows, left : left + columns])
    else:
        _resize_window(image, Window(height, width, top, left, filter=filter), row)
    if flip:
        import torch

        mirrored = torch.from_numpy(row)
        mirrored.copy_(mirrored.flip(1))


def _pick(image: Pixels, row: Pixels, window: Window, edges: Edges) -> None:
    """Copy the nearest pixels of an area with fractional edges."""
    height, width, top, left, flip, filter = window
    rows, columns = row.shape[:2]
    down = nearest_pixels(filter, image.shape[0], edges[0], edges[2], height)[top : top + rows]
    across = nearest_pixels(filter, image.shape[1], edges[1], edges[3], width)
    across = across[left : left + columns]
    np.take(image[down], across[::-1] if flip else across, 1, out=row, mode="clip")


def _resize_edges(
    image: Pixels, row: Pixels, edges: Edges, filter: Filter, down_first: bool
) -> None:
    """Resize an area with fractional edges."""
    pixels = image.astype(np.int32)
    for axis in (0, 1) if down_first else (1, 0):
        taps, shares, precision = _whole_weights(
            filter, image.shape[axis], edges[axis], edges[axis + 2], row.shape[axis]
        )
        shape = (-1, 1, 1) if axis == 0 else (-1, 1)
        mixed = np.full_like(np.take(pixels, taps[:, 0], axis), 1 << precision - 1)
        for k in range(taps.shape[1]):
            mixed += np.take(pixels, taps[:, k], axis) * shares[:, k].reshape(shape)
        pixels = np.clip(mixed >> precision, 0, 255)
    np.copyto(row, pixels.astype(np.uint8))


def _whole_weights(
    filter: Filter, source: int, first: float, extent: float, resized: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int32]], int]:
    """Source pixels that `_resample.c` weighs, shape (resized, taps), and their weights.

    Returns:
        the source pixels, their weights as whole numbers, and the number of fractional bits.
    """
    scale = extent / resized
    reach, shrink = support(filter) * max(scale, 1.0), min(1.0, 1.0 / scale)
    centres = first + scale * (np.arange(resized) + 0.5)
    starts = np.clip((centres - reach + 0.5).astype(int), 0, source - 1)
    stops = np.minimum((centres + reach + 0.5).astype(int), source)
    taps = starts[:, None] + np.arange((stops - starts).max())
    shares = weights(filter, (taps - centres[:, None] + 0.5) * shrink)
    shares[taps >= stops[:, None]] = 0.0
    total = np.cumsum(shares, 1)[:, -1:]  # one by one, as C adds them up
    shares /= np.where(total == 0.0, 1.0, total)
    precision = 0
    while precision < 22 and int(0.5 + shares.max() * (1 << precision + 1)) < 1 << 15:
        precision += 1
    exact = shares * (1 << precision)
    whole = (exact + np.where(exact < 0.0, -0.5, 0.5)).astype(np.int32)
    return np.minimum(taps, source - 1), whole, precision


def _resize(source: Pixels, target: Pixels, filter: Filter, down_first: bool) -> None:
    """Resize all of `source` (h, w, 3) to all of `target` (H, W, 3)."""
    if filter not in ("bilinear", "bicubic"):
        _resize_edges(source, target, (0.0, 0.0, *source.shape[:2]), filter, down_first)
        return
    if down_first:
        turned = np.empty(target.transpose(1, 0, 2).shape, np.uint8)
        _resize(np.ascontiguousarray(source.transpose(1, 0, 2)), turned, filter, False)
        np.copyto(target, turned.transpose(1, 0, 2))
        return
    if not source.flags.writeable or min(source.strides) < 0:  # torch warns, or refuses
        source = source.copy()
    import torch

    # What torch.nn.functional.interpolate calls; the same through torch.ops takes 2 us longer.
    resize: Any = getattr(torch._C._nn, f"_upsample_{filter}2d_aa")
    resize(
        torch.from_numpy(source[None]).permute(0, 3, 1, 2),
        list(target.shape[:2]),
        False,
        None,
        None,
        out=torch.from_numpy(target[None]).permute(0, 3, 1, 2),
    )


def _resize_window(image: Pixels, window: Window, row: Pixels) -> None:
    """Make only the window of a resized image, by the definition of the filter.

    Slower than resizing the whole, unless the whole would be enormous: a 1 x 3000 image is resized
    to 256 x 768,000 pixels.
    """
    height, width, top, left, _, filter = window
    down, rows = _shares(filter, image.shape[0], height, top, row.shape[0])
    across, columns = _shares(filter, image.shape[1], width, left, row.shape[1])
    part = image[rows, columns].astype(np.float32)
    part = np.einsum("ij,jkc->ikc", down, part, optimize=True)
    part = np.einsum("ij,kjc->kic", across, part, optimize=True)
    np.copyto(row, np.clip(part + 0.5, 0, 255).astype(np.uint8))


def _shares(
    filter: Filter, source: int, resized: int, first: int, count: int
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], slice]:
    """Weights of a filter for `count` of `resized` pixels from `first`.

    Returns:
        weights (count, n) and their n source pixels.
    """
    scale = source / resized
    reach = support(filter) * max(scale, 1.0)
    centres = (np.arange(first, first + count) + 0.5) * scale
    low = max(int(centres[0] - reach), 0)
    high = min(int(centres[-1] + reach) + 1, source)
    shares = weights(filter, (np.arange(low, high) + 0.5 - centres[:, None]) / max(scale, 1.0))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares.astype(np.float32), slice(low, high)
