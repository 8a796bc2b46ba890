"""Operations on pixels, each equal to Pillow's function of that name, byte for byte.

Guarantees: pixels are (height, width, 3) uint8, RGB and C-contiguous, before and after. The result
is written in place if the input is writable and the operation keeps the position of each pixel.

Relies on numpy for operations of one pass over the bytes, and on `images._photometric` for the
rest: without that these are not available.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from feedline.sources.store import Pixels

try:
    from feedline.images import _photometric as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "GREY",
    "HUE",
    "SATURATION",
    "adjusted",
    "autocontrasted",
    "equalized",
    "flipped",
    "inverted",
    "lightened",
    "mirrored",
    "posterized",
    "sharpened",
    "solarized",
    "target_of",
]

BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY = range(5)
_LEVELS = np.arange(256)


def target_of(pixels: Pixels) -> Pixels:
    """Output array: the input itself if it is writable."""
    return pixels if pixels.flags.writeable else np.empty_like(pixels)


def mirrored(pixels: Pixels) -> Pixels:
    """Mirror left and right."""
    # Of one column np.ascontiguousarray would keep the stride, which torch does not take.
    made: Pixels = pixels[:, ::-1].copy()
    return made


def flipped(pixels: Pixels) -> Pixels:
    """Flip top and bottom."""
    made: Pixels = pixels[::-1].copy()
    return made


def inverted(pixels: Pixels) -> Pixels:
    """Subtract each grey level from 255."""
    target = target_of(pixels)
    np.invert(pixels, out=target)
    return target


def posterized(pixels: Pixels, bits: int) -> Pixels:
    """Keep the upper 1 to 8 bits of each grey level."""
    target = target_of(pixels)
    np.bitwise_and(pixels, np.uint8(256 - (1 << (8 - bits))), out=target)
    return target


def solarized(pixels: Pixels, threshold: float) -> Pixels:
    """Invert the grey levels that are not below a threshold, as for NaN."""
    if threshold > 255:
        return pixels
    first = np.uint8(math.ceil(threshold) if threshold > 0 else 0)
    # All bits where a level is inverted.
    changed = np.negative((pixels >= first).view(np.uint8))
    target = target_of(pixels)
    np.bitwise_xor(pixels, changed, out=target)
    return target


def adjusted(pixels: Pixels, kind: int, factor: float) -> Pixels:
    """Change brightness, contrast, saturation or hue, or convert to grey, by a factor."""
    target = target_of(pixels)
    compiled.adjust(pixels, target, kind, factor)
    return target


def sharpened(pixels: Pixels, factor: float) -> Pixels:
    """Smooth with a factor below 1, sharpen with one above."""
    target = np.empty_like(pixels)
    compiled.sharpen(pixels, target, factor)
    return target


def lightened(pixels: Pixels, add: int, thresh: int = 128) -> Pixels:
    """Add to the levels below a threshold, up to 255: timm's solarize_add."""
    table = np.where(thresh > _LEVELS, np.minimum(_LEVELS + add, 255), _LEVELS)
    return _looked_up(pixels, [table] * 3)


def autocontrasted(pixels: Pixels) -> Pixels:
    """Stretch each channel's levels over the full range."""
    tables = []
    for counts in _counted(pixels):
        seen = counts.nonzero()[0]
        low, high = int(seen[0]), int(seen[-1])
        if high <= low:
            tables.append(_LEVELS)
            continue
        scale = 255.0 / (high - low)
        tables.append(np.clip((_LEVELS * scale + -low * scale).astype(np.int64), 0, 255))
    return _looked_up(pixels, tables)


def equalized(pixels: Pixels) -> Pixels:
    """Equalise the histogram of each channel."""
    tables = []
    for counts in _counted(pixels):
        seen = counts[counts > 0]
        step = int(seen.sum() - seen[-1]) // 255
        if len(seen) <= 1 or not step:
            tables.append(_LEVELS)
            continue
        below = np.cumsum(counts, dtype=np.int64) - counts
        tables.append(np.minimum((step // 2 + below) // step, 255))
    return _looked_up(pixels, tables)


def _counted(pixels: Pixels) -> np.ndarray[Any, np.dtype[np.uint32]]:
    counts = np.empty((3, 256), np.uint32)
    compiled.count(pixels, counts)
    return counts


def _looked_up(pixels: Pixels, tables: list[np.ndarray[Any, Any]]) -> Pixels:
    target = target_of(pixels)
    compiled.look_up(pixels, target, b"".join(each.astype(np.uint8).tobytes() for each in tables))
    return target
