"""Undoing of the filters of a PNG's rows: compiled, see _png.c."""

import numpy as np
from typing_extensions import Buffer

def unfilter(
    data: Buffer,
    target: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]],
    width: int,
    channels: int,
    top: int,
    /,
) -> bool:
    """Write the upper left pixels of an image, or those of its rows from `top` on.

    Args:
        data: inflated rows of 8-bit channels, each after its filter.
        target: uint8 (height, columns, 3), RGB; or (height, columns, 1), grey. Without alpha.
        width: pixels in a row of the data.
        channels: of the data: 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
        top: rows of the data above those of the target.

    Returns:
        False if a filter is unknown; then the target has any values.

    Raises:
        ValueError: the arguments do not match, or the data has fewer rows.
    """
