"""An image, resized into a row of a batch: compiled, see _resample.c."""

from typing import Any

import numpy as np

supported: bool
"""Whether this processor has what `resample` needs."""

def resample(
    image: np.ndarray[Any, np.dtype[np.uint8]],
    row: np.ndarray[Any, np.dtype[np.uint8]],
    to_height: int,
    to_width: int,
    to_top: int,
    to_left: int,
    flip: bool,
    down_first: bool = False,
    filter: int = 0,
    box: tuple[float, float, float, float] = ...,
    /,
) -> bool:
    """Resize an image to (to_height, to_width).

    Of that what the row holds, from (to_top, to_left), mirrored if `flip`, is written over the row.

    Args:
        image: uint8 (h, w, 3); its rows may lie apart.
        row: uint8 (height, width, 3), C-contiguous.
        down_first: the vertical pass comes before the horizontal one, not after it.
        filter: its place in `resample_filter.FILTERS`.
        box: the top, left, height and width of what is resized, in the image; all of it if not
            given.

    Returns:
        False, with nothing written, where the resize is steeper, larger or laid out otherwise
        than this takes.

    Raises:
        ValueError: the image is empty, the window is not in the whole or the box not in the image.
    """
