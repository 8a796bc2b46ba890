"""The use of each slot: free, being filled or being read, and never two of these.

Guarantees: a slot that was lent comes back by itself when the last array on it is garbage, in
whichever thread that happens; so a batch handed out is safe to keep. A process forked from the
trainer may hold batches too, unseen: slots that were on loan at a fork are not used again, unless
the process was feedline's own and has ended.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["OwnFork", "Slots"]

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
        self._kept: dict[int, int] = {}  # on loan at a fork: how many children may hold it
        self._late: set[int] = set()  # no loan any more, but kept
        _all.add(self)

    def acquire(self) -> int | None:
        """A free slot, or None."""
        return self._free.popleft() if self._free else None

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def grow(self, slots: int) -> None:
        """Have at least so many slots; those that there are stay."""
        more = range(self.slots, max(self.slots, slots))
        self.slots += len(more)
        self._free.extend(more)

    @property
    def lent(self) -> int:
        """How many slots are on loan, or kept by a child."""
        return len(self._loans) + len(self._late)

    def lend_bytes(self, slot: int, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A slot's memory, on loan: the slot is free again when the last array on it is garbage."""
        # Numpy lets every view refer to the first array over foreign memory. A fresh one of
        # those stands for the loan, and lives exactly as long as any array or tensor on it.
        loan = np.frombuffer(memory.data, dtype=np.uint8)

        def returned(_: object) -> None:
            if self._loans.pop(slot, None) is not None:
                if slot in self._kept:
                    self._late.add(slot)
                else:
                    self._free.append(slot)

        self._loans[slot] = weakref.ref(loan, returned)
        return loan

    def keep(self) -> list[int]:
        """A child of this process now holds whatever is on loan: which slots that are."""
        slots = list(self._loans)
        for slot in slots:
            self._kept[slot] = self._kept.get(slot, 0) + 1
        return slots

    def let_go(self, slots: list[int]) -> None:
        """The child is gone."""
        for slot in slots:
            self._kept[slot] -= 1
            if not self._kept[slot]:
                del self._kept[slot]
                if slot in self._late:
                    self._late.remove(slot)
                    self._free.append(slot)

    def reclaim(self) -> None:
        """Make every slot free that is not on loan: for when none is being filled or read."""
        away = self._late.union(self._loans)
        self._free = deque(slot for slot in range(self.slots) if slot not in away)

    def close(self) -> None:
        """Hand none out any more. What is on loan keeps its own hold of its memory."""
        self._free.clear()


class OwnFork:
    """A fork, within a `with`, of a process whose end is known: what it holds comes back then."""

    _under_way: ClassVar[OwnFork | None] = None

    def __init__(self) -> None:
        self._held: list[tuple[Slots, list[int]]] = []

    def __enter__(self) -> OwnFork:
        OwnFork._under_way = self
        return self

    def __exit__(self, *_: object) -> None:
        OwnFork._under_way = None

    def ended(self) -> None:
        """The process is gone."""
        held, self._held = self._held, []
        for slots, numbers in held:
            slots.let_go(numbers)

    @classmethod
    def tell_all(cls) -> None:
        """A fork has happened, feedline's own or any other."""
        for slots in list(_all):
            numbers = slots.keep()
            if cls._under_way is not None:
                cls._under_way._held.append((slots, numbers))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=OwnFork.tell_all)
