"""Resize of an image into a row of a batch: compiled, see _resample.c."""

from typing import Any

import numpy as np

PATHS: tuple[str, ...]
"""Implementations that this processor supports; the last one is used: "scalar", "avx2", "neon"."""

def use_path(name: str, /) -> None:
    """Choose one of `PATHS`, for tests and benchmarks; all write the same bytes.

    Raises:
        ValueError: the name is not in `PATHS`.
    """

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
    """Resize an image to (to_height, to_width) and write a window of it to the row.

    Args:
        image: uint8 (h, w, 3); its rows may have padding between them.
        row: uint8 (height, width, 3), C-contiguous: the window from (to_top, to_left).
        flip: mirror the window.
        down_first: the vertical pass comes before the horizontal one, not after it.
        filter: its index in `resample_filter.FILTERS`.
        box: top, left, height and width of the resized area of the image; default: all of it.

    Returns:
        False, with nothing written, if the resize is too steep or too large, or the layout is
        not supported.

    Raises:
        ValueError: the image is empty, the window is not in the resized image or the box not in
            the image.
    """
