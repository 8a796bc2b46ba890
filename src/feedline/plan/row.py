"""One row of a batch: how it is laid out, and what a source is asked to put there.

`Field` and `Item` are all that the engine and a source share: the engine knows no images,
and a source knows no slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Field", "Item"]


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a batch, described by one of its rows.

    Args:
        name: what the array is called, e.g. "image".
        dtype: a numpy dtype string, e.g. "uint8".
        shape: the shape of one row; () for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class Item(NamedTuple):
    """One row to be made.

    Args:
        sample: which sample, in 0 .. len(source) - 1.
        image_size: side of the square image, in pixels; None where none was asked for.
        seed: 64 bits drawn from (seed, epoch, sample); every random choice for the row follows
            from it, so a row is the same in every worker, however often it is made.
        strength: how strong the augmentation is, 0 (none) to 1 (as the transform says).
    """

    sample: int
    image_size: int | None
    seed: int
    strength: float

    @property
    def side(self) -> int:
        """`image_size`, of an item that has one."""
        assert self.image_size is not None, "an image is made at a size"
        return self.image_size
