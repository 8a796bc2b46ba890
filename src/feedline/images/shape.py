"""The height and width of a row, and what they are at another image size.

Guarantees: pure arithmetic. An image size is one number, that of the longer side.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Shape", "scaled", "shape_in_words"]

Shape: TypeAlias = tuple[int, int]
"""A height and a width, in pixels."""


def scaled(shape: Shape, size: int, of: int) -> Shape:
    """What a height and width become, in proportion, where `of` pixels become `size`."""
    height, width = (max(1, round(side * size / of)) for side in shape)
    return height, width


def shape_in_words(shape: Shape) -> str:
    """The side of a square, or height x width, in pixels."""
    height, width = shape
    return f"{height} px" if height == width else f"{height} x {width} px"
