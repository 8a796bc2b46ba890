"""The pixels of an image, each looked up in its channel's table: compiled, see _lut.c."""

from typing import Any

import numpy as np

def apply_lut(
    image: np.ndarray[Any, np.dtype[np.uint8]],
    tables: np.ndarray[Any, Any],
    target: np.ndarray[Any, Any],
    /,
) -> None:
    """Write tables[c, image[y, x, c]] to target[c, y, x].

    Args:
        image: uint8 (h, w, 3).
        tables: (3, 256), values of 1, 2, 4 or 8 bytes.
        target: (3, h, w) of the tables' dtype, no part of the image. All are C-contiguous.

    Raises:
        ValueError: one of them is of another shape, dtype or layout.
    """
