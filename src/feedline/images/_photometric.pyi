"""Changes of colours, sharpness and geometry: compiled, see _photometric.c."""

from typing import Any

import numpy as np

_Image = np.ndarray[Any, np.dtype[np.uint8]]

def adjust(image: _Image, target: _Image, kind: int, factor: float, /) -> None:
    """Change the colours of an image.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, overwritten; may be the image.
        kind: 0 brightness, 1 contrast, 2 saturation, 3 hue, 4 grey.
        factor: as in torchvision; for hue a part of the circle, -0.5 to 0.5; unused for grey.

    Raises:
        ValueError: wrong shape, dtype or layout, or no such change.
    """

def blur(
    image: _Image,
    target: _Image,
    across: np.ndarray[Any, np.dtype[np.float32]],
    down: np.ndarray[Any, np.dtype[np.float32]],
    /,
) -> None:
    """Blur an image, reflected at its outer pixels.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, overwritten; may be the image.
        across, down: weights in both directions, an odd number, at most 127; half of that must be
            less than the image's side.

    Raises:
        ValueError: wrong shape, dtype, layout or length.
    """

def blur_boxes(image: _Image, target: _Image, across: float, down: float, /) -> None:
    """Blur an image, like ImageFilter.GaussianBlur((across, down)).

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, overwritten; may be the image.
        across, down: standard deviations in both directions, in pixels, 0 to 5.

    Raises:
        ValueError: wrong shape, dtype or layout, or a larger deviation.
    """

def look_up(image: _Image, target: _Image, levels: bytes, /) -> None:
    """Map each level of an image to another, like Image.point.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, overwritten; may be the image.
        levels: 256 of red, of green and of blue.

    Raises:
        ValueError: wrong shape, dtype, layout or length.
    """

def count(image: _Image, counts: np.ndarray[Any, np.dtype[np.uint32]], /) -> None:
    """Count the pixels of each level, like Image.histogram.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        counts: uint32 (3, 256), overwritten.

    Raises:
        ValueError: wrong shape, dtype or layout.
    """

def sharpen(image: _Image, target: _Image, factor: float, /) -> None:
    """Sharpen or smooth an image, like ImageEnhance.Sharpness.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of the same shape, overwritten; must not overlap the image.
        factor: 0 smooth, 1 unchanged, above that sharper.

    Raises:
        ValueError: wrong shape, dtype or layout, or they overlap.
    """

def warp(
    image: _Image,
    target: _Image,
    matrix: tuple[float, float, float, float, float, float],
    taps: int,
    /,
) -> None:
    """Map an image affinely, like Image.transform.

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        target: of any height and width, must not overlap the image; pixels outside the image are
            left unchanged.
        matrix: target to image coordinates, three numbers each for x and y.
        taps: 1 for the nearest pixel, 2 bilinear.

    Raises:
        ValueError: wrong shape, dtype or layout, they overlap, or the matrix reaches further than
            32768 pixels.
    """
