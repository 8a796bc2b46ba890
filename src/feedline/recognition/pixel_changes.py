"""What may be done to pixels, each to the bytes of Pillow's function of that name.

Guarantees: pixels are (height, width, 3) uint8, RGB and C-contiguous, and so is what comes out. It
lies in their own place where that may be written and the change leaves each pixel where it is.

Relies on numpy for what it does in one pass over the bytes.
"""

from __future__ import annotations

import math

import numpy as np

from feedline.stores.store import Pixels

__all__ = ["flipped", "inverted", "mirrored", "posterized", "solarized", "target_of"]


def target_of(pixels: Pixels) -> Pixels:
    """Where changed pixels go: in their own place where that may be written."""
    return pixels if pixels.flags.writeable else np.empty_like(pixels)


def mirrored(pixels: Pixels) -> Pixels:
    """With the left side on the right."""
    # Of one column np.ascontiguousarray would keep the stride, which torch does not take.
    made: Pixels = pixels[:, ::-1].copy()
    return made


def flipped(pixels: Pixels) -> Pixels:
    """With the top at the bottom."""
    made: Pixels = pixels[::-1].copy()
    return made


def inverted(pixels: Pixels) -> Pixels:
    """With each grey level taken from 255."""
    target = target_of(pixels)
    np.invert(pixels, out=target)
    return target


def posterized(pixels: Pixels, bits: int) -> Pixels:
    """With the upper 1 to 8 bits of each grey level."""
    target = target_of(pixels)
    np.bitwise_and(pixels, np.uint8(256 - (1 << (8 - bits))), out=target)
    return target


def solarized(pixels: Pixels, threshold: float) -> Pixels:
    """With the grey levels inverted that are not below a threshold, as those are of NaN."""
    if threshold > 255:
        return pixels
    first = np.uint8(math.ceil(threshold) if threshold > 0 else 0)
    # All bits where a level is inverted.
    changed = np.negative((pixels >= first).view(np.uint8))
    target = target_of(pixels)
    np.bitwise_xor(pixels, changed, out=target)
    return target
