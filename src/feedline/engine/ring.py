"""The slots: memory for a few whole batches, handed round.

Guarantees: a slot is free, being filled, or with somebody who reads it, and never two of these.
A slot that was lent comes back by itself when the last array on it is garbage, in whichever
thread that happens; so a batch handed out is safe to keep. A process forked from the trainer
may hold batches too, unseen: slots that were on loan at a fork are never used again.
"""

from __future__ import annotations

import os
import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import BOARD_BYTES
from feedline.engine.layout import arrays
from feedline.plan.row import Field

__all__ = ["Ring"]

_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


class Ring:
    """Slots of equal size behind the board of a block.

    Args:
        block: the shared memory, shape (bytes,).
        slot_bytes: size of a slot, a whole number of pages.
        slots: how many there are.
    """

    def __init__(self, block: NDArray[np.uint8], slot_bytes: int, slots: int) -> None:
        self._block = block
        self.slot_bytes = slot_bytes
        self.slots = slots
        # Appending and popping are atomic: slots may come back from any thread.
        self._free: deque[int] = deque(range(slots))
        self._loans: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._shared: frozenset[int] = frozenset()  # on loan, perhaps for good
        _rings.add(self)

    def acquire(self) -> int | None:
        """A free slot, or None."""
        return self._free.popleft() if self._free else None

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    @property
    def lent(self) -> int:
        """How many slots are on loan."""
        return len(self._loans)

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
        # Numpy lets every view refer to the first array over foreign memory. A fresh one of
        # those stands for the loan, and lives exactly as long as any array or tensor on it.
        loan = np.frombuffer(self._bytes(slot).data, dtype=np.uint8)

        def returned(_: object) -> None:
            if slot not in self._shared and self._loans.pop(slot, None) is not None:
                self._free.append(slot)

        self._loans[slot] = weakref.ref(loan, returned)
        return arrays(loan, fields, rows)

    def forked(self) -> None:
        """A child of this process now holds whatever is on loan, for as long as it likes."""
        self._shared = frozenset(self._loans)

    def reclaim(self) -> None:
        """Make every slot free that is not on loan: for when nobody fills or reads one."""
        self._free = deque(slot for slot in range(self.slots) if slot not in self._loans)

    def close(self) -> None:
        """Let go of the memory: what is on loan keeps its own hold of it."""
        self._free.clear()
        self._block = np.empty(0, np.uint8)


def _tell_rings() -> None:
    for ring in list(_rings):
        ring.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_tell_rings)
