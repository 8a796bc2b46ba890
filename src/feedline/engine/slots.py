"""Who has which slot: free, being filled, or with somebody who reads it, and never two of these.

Guarantees: a slot that was lent comes back by itself when the last array on it is garbage, in
whichever thread that happens; so a batch handed out is safe to keep. A process forked from the
trainer may hold batches too, unseen: slots that were on loan at a fork are never used again.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

__all__ = ["Slots", "own_fork"]

_all: weakref.WeakSet[Slots] = weakref.WeakSet()


class Slots:
    """A number of slots, handed round.

    Args:
        slots: how many there are.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        # Appending and popping are atomic: slots may come back from any thread.
        self._free: deque[int] = deque(range(slots))
        self._loans: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._shared: frozenset[int] = frozenset()  # on loan, perhaps for good
        _all.add(self)

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

    def lend_bytes(self, slot: int, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A slot's memory, on loan: the slot is free again when the last array on it is garbage."""
        # Numpy lets every view refer to the first array over foreign memory. A fresh one of
        # those stands for the loan, and lives exactly as long as any array or tensor on it.
        loan = np.frombuffer(memory.data, dtype=np.uint8)

        def returned(_: object) -> None:
            if slot not in self._shared and self._loans.pop(slot, None) is not None:
                self._free.append(slot)

        self._loans[slot] = weakref.ref(loan, returned)
        return loan

    def forked(self) -> None:
        """A child of this process now holds whatever is on loan, for as long as it likes."""
        self._shared = frozenset(self._loans)

    def reclaim(self) -> None:
        """Make every slot free that is not on loan: for when nobody fills or reads one."""
        self._free = deque(slot for slot in range(self.slots) if slot not in self._loans)

    def close(self) -> None:
        """Hand none out any more. What is on loan keeps its own hold of its memory."""
        self._free.clear()


_own_forks = 0


@contextmanager
def own_fork() -> Iterator[None]:
    """Fork a process that will never look at a batch of its parent's."""
    global _own_forks
    _own_forks += 1
    try:
        yield
    finally:
        _own_forks -= 1


def _tell_all() -> None:
    if not _own_forks:
        for slots in list(_all):
            slots.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_tell_all)
