"""Height and width of a row, and their values at another image size.

Guarantees: pure arithmetic. An image size is one number, that of the longer side.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Shape", "scaled", "shape_in_words"]

Shape: TypeAlias = tuple[int, int]
"""Height and width, in pixels."""


def scaled(shape: Shape, size: int, of: int) -> Shape:
    """Scale a height and width in proportion, from `of` pixels to `size`."""
    height, width = (max(1, round(side * size / of)) for side in shape)
    return height, width


def shape_in_words(shape: Shape) -> str:
    """Side of a square, or height x width, in pixels, as text."""
    height, width = shape
    return f"{height} px" if height == width else f"{height} x {width} px"
