"""Colours and sharpness of an image, changed: compiled, see _photometric.c."""

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
