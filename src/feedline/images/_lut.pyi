"""The pixels of an image, each looked up in its channel's table: compiled, see _lut.c."""

from typing import Any

import numpy as np

def apply_lut(
    image: np.ndarray[Any, np.dtype[np.uint8]],
    tables: np.ndarray[Any, Any],
    target: np.ndarray[Any, Any],
    /,
) -> None:
    """As `lut.apply_lut`, for values of 1, 2, 4 or 8 bytes; a ValueError for others."""
