"""Resize of an image into a row of a batch: compiled, see _resample.c."""

from collections.abc import Callable
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
    passes: int = 0,
    filter: int = 0,
    box: tuple[float, float, float, float] = ...,
    /,
) -> bool:
    """Resize an image to (to_height, to_width) and write a window of it to the row.

    Args:
        image: uint8 (h, w, channels); its rows may have padding between them.
        row: uint8 (height, width, channels), C-contiguous: the window from (to_top, to_left).
        flip: mirror the window.
        passes: sum of 1 if the vertical pass comes before the horizontal one, not after it; and 2
            if weights have 22 bits, as Pillow's, not torch's 16 or fewer.
        filter: its index in `resize.FILTERS`.
        box: top, left, height and width of the resized area of the image; default: all of it.

    Returns:
        False, with nothing written, if the resized image has a side above 131,072 pixels, the
        image is too large, or its layout is not supported.

    Raises:
        ValueError: the image is empty, the window is not in the resized image or the box not in
            the image.
    """

def place_crops(
    seeds: np.ndarray[Any, np.dtype[np.uint64]],
    sizes: np.ndarray[Any, np.dtype[np.int64]],
    placements: np.ndarray[Any, np.dtype[np.float64]],
    crop: tuple[float, float, float, float, float, float, float, float],
    size: int,
    filter: int,
    /,
) -> None:
    """Draw the crops of several rows, as `crops.TrainCrop`, and map them to copies.

    Args:
        seeds: of the rows, (n).
        sizes: height and width of the originals and of the copies, (n, 4).
        placements: written: `resize.Placements`, (n, 16); zero for an invalid size.
        crop: strength; scale, logarithm of the ratio, and ratio, of each the lowest and the
            highest; probability of a flip.
        size: side of the rows, in pixels.
        filter: index in `resize.FILTERS`.

    Raises:
        ValueError: wrong shape or dtype.
    """

def resample_rows(
    images: tuple[Any, ...],
    header_bytes: int,
    placements: np.ndarray[Any, np.dtype[np.float64]],
    checksums: np.ndarray[Any, np.dtype[np.uint64]],
    rows: np.ndarray[Any, np.dtype[np.uint8]],
    begin_row: Callable[[int], object] | None,
    after_check: Callable[[int], object] | None,
    end_row: Callable[[int], object] | None,
    /,
) -> list[int]:
    """Check images and resize a part of each into its row.

    Args:
        images: buffer of each, with `header_bytes` before its pixels; None for none.
        placements: `resize.Placements`, (n, 16).
        checksums: seed of XXH3 and expected hash of each buffer, (n, 2); (0, 2) to check none.
        rows: (n, height, width, 3), C-contiguous.
        begin_row, after_check, end_row: called with the row's number before its image is read,
            after that, and after it was resized; None is not called.

    Returns:
        numbers of the rows that were not made: their image is None or damaged, its size differs,
        or the resize is not possible.

    Raises:
        ValueError: wrong shape or dtype.
        BaseException: any error of the functions.
    """
