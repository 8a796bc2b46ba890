"""The slots of rows whose size is known: one block, allocated before the first batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import BOARD_BYTES
from feedline.engine.layout import arrays
from feedline.engine.slots import Slots
from feedline.plan.row import Field

__all__ = ["FixedSlots"]


class FixedSlots(Slots):
    """Slots of equal size behind the board of a block.

    Args:
        block: the shared memory, shape (bytes,).
        slot_bytes: size of a slot, a whole number of pages.
        slots: how many there are.
    """

    def __init__(self, block: NDArray[np.uint8], slot_bytes: int, slots: int) -> None:
        super().__init__(slots)
        self._block = block
        self.slot_bytes = slot_bytes

    @property
    def memory_bytes(self) -> int:
        """What all slots take."""
        return self.slots * self.slot_bytes

    def offset(self, slot: int) -> int:
        """Where a slot begins in the block, in bytes."""
        return BOARD_BYTES + slot * self.slot_bytes

    def _bytes(self, slot: int) -> NDArray[np.uint8]:
        start = self.offset(slot)
        return self._block[start : start + self.slot_bytes]

    def view(
        self, slot: int, fields: tuple[Field, ...], rows: int
    ) -> tuple[NDArray[np.generic], ...]:
        """The arrays of a batch in a slot, each of shape (rows, *field.shape)."""
        return arrays(self._bytes(slot), fields, rows)

    def lend(
        self, slot: int, fields: tuple[Field, ...], rows: int
    ) -> tuple[NDArray[np.generic], ...]:
        """The same arrays, on loan: the slot is free again when the last of them is garbage."""
        return arrays(self.lend_bytes(slot, self._bytes(slot)), fields, rows)

    def close(self) -> None:
        """Let go of the memory: what is on loan keeps its own hold of it."""
        super().close()
        self._block = np.empty(0, np.uint8)
