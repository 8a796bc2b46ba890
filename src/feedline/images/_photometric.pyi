"""Colours, sharpness and place of an image's pixels, changed: compiled, see _photometric.c."""

from typing import Any

import numpy as np

_Image = np.ndarray[Any, np.dtype[np.uint8]]

def adjust(image: _Image, target: _Image, kind: int, factor: float, /) -> None:
    """Change the colours of an image.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, written over; may be the image.
        kind: 0 brightness, 1 contrast, 2 saturation, 3 hue, 4 grey.
        factor: as torchvision's; of the hue a part of the circle, -0.5 to 0.5; of grey any.

    Raises:
        ValueError: one of them is of another shape, dtype or layout, or there is no such change.
    """

def blur(
    image: _Image,
    target: _Image,
    across: np.ndarray[Any, np.dtype[np.float32]],
    down: np.ndarray[Any, np.dtype[np.float32]],
    /,
) -> None:
    """Blur an image, mirrored at its outer pixels.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, written over; may be the image.
        across, down: the weights in both directions, an odd number of them, at most 127; half of
            them must be less than the image's side.

    Raises:
        ValueError: one of them is of another shape, dtype, layout or length.
    """

def look_up(image: _Image, target: _Image, levels: bytes, /) -> None:
    """Give each level of an image another, as Image.point does.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, written over; may be the image.
        levels: 256 of red, of green and of blue.

    Raises:
        ValueError: one of them is of another shape, dtype, layout or length.
    """

def count(image: _Image, counts: np.ndarray[Any, np.dtype[np.uint32]], /) -> None:
    """Count the pixels of each level, as Image.histogram does.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        counts: uint32 (3, 256), written over.

    Raises:
        ValueError: one of them is of another shape, dtype or layout.
    """

def sharpen(image: _Image, target: _Image, factor: float, /) -> None:
    """Sharpen or smooth an image, as ImageEnhance.Sharpness does.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, written over; apart from the image.
        factor: 0 smooth, 1 as it is, above that sharper.

    Raises:
        ValueError: one of them is of another shape, dtype or layout, or they overlap.
    """

def warp(
    image: _Image,
    target: _Image,
    matrix: tuple[float, float, float, float, float, float],
    taps: int,
    /,
) -> None:
    """Map an image affinely, as Image.transform does.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of any height and width, apart from the image; written to where the image is shown.
        matrix: where in the image a place of the target lies: x and y of three numbers each.
        taps: 1 for the nearest pixel, 2 bilinear.

    Raises:
        ValueError: one of them is of another shape, dtype or layout, they overlap, or the matrix
            reaches further than 32768 pixels.
    """
