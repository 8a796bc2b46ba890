"""Table lookup of an image's pixels per channel: compiled, see _lut.c."""

from typing import Any

import numpy as np

def apply_lut(
    image: np.ndarray[Any, np.dtype[np.uint8]],
    tables: np.ndarray[Any, Any],
    target: np.ndarray[Any, Any],
    /,
) -> None:
    """Like `resize.apply_lut`, for aligned values of 1, 2, 4 or 8 bytes.

    Raises:
        ValueError: wrong shape, dtype or layout.
    """
