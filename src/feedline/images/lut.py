"""Table lookup of an image's pixels per channel: uint8 to floats, exactly.

Guarantees: writes the whole target in place and nothing else; values are the tables' own, bit for
bit, compiled or not.

Relies on: `_lut`, compiled, which takes a fraction of numpy's time; without it, numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.sources.store import Pixels

try:
    from feedline.images import _lut as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["apply_lut"]


def apply_lut(image: Pixels, tables: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> None:
    """Write tables[c, image[y, x, c]] to target[c, y, x].

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        tables: (3, 256), C-contiguous.
        target: (3, height, width) of the tables' dtype, C-contiguous, not overlapping the image.

    Raises:
        ValueError: wrong shape, dtype or layout.
    """
    if compiled is not None:
        compiled.apply_lut(image, tables, target)
        return
    height, width = target.shape[-2:]
    shapes = (height, width, 3), (3, height, width)
    if image.dtype != np.uint8 or (image.shape, target.shape) != shapes:
        raise ValueError(
            f"image of {image.dtype} {image.shape} does not match target of {target.shape}"
        )
    if tables.shape != (3, 256) or tables.dtype != target.dtype:
        raise ValueError(
            f"tables of {tables.dtype} {tables.shape} do not match target of {target.dtype}"
        )
    if not (image.flags.c_contiguous and tables.flags.c_contiguous and target.flags.c_contiguous):
        raise ValueError("image, tables and target must be C-contiguous")
    for channel, table in enumerate(tables):
        # A uint8 is never out of the table's bounds, and "raise" would make numpy buffer.
        np.take(table, image[..., channel], out=target[channel], mode="clip")
