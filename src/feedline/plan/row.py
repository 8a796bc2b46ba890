"""One row of a batch: its layout, and the request a source fills it for.

The engine and a source share only `Field` and `Item`: the engine knows no images, and a source
knows no slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Field", "Item"]


@dataclass(frozen=True, slots=True)
class Field:
    """Layout of one array of a batch, for one row.

    Args:
        name: name of the array, e.g. "image".
        dtype: numpy dtype string, e.g. "uint8".
        shape: shape of one row; () for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class Item(NamedTuple):
    """Request for one row.

    Args:
        sample: sample index, in 0 .. len(source) - 1.
        image_size: side of the square image, in pixels; None if no size is set.
        seed: 64 bits derived from (seed, epoch, sample). Every random choice for the row follows
            from it, so a row is the same in every worker, however often it is made.
        strength: augmentation strength, 0 (none) to 1 (as configured in the transform).
    """

    sample: int
    image_size: int | None
    seed: int
    strength: float

    @property
    def side(self) -> int:
        """`image_size` of an item that has one."""
        assert self.image_size is not None, "an image is made at a size"
        return self.image_size
