"""The slots of whole batches whose size is not known ahead: memory that grows where it must.

A slot begins with no memory. The worker that finds a batch too large for its slot makes memory
that is large enough, and sends it along with its report; from then on that is the slot's. So
every batch arrives, and after the first few none is copied.

Guarantees: descriptors and memory are bounded by the number of slots; a loan is as good as a
`FixedSlots`'s. Relies on memfd; where there is none, a batch comes by a pipe and is private.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.engine.memory import Memfd
from feedline.engine.slots import Slots

__all__ = ["GrowingSlots"]


class GrowingSlots(Slots):
    """Slots, each with memory of its own.

    Args:
        slots: how many there are.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._memory: list[Memfd | None] = [None] * slots
        self._private: dict[int, NDArray[np.uint8]] = {}  # came by a pipe, for this batch only

    def grow(self, slots: int) -> None:
        """Have at least so many slots; new ones begin with no memory, as all did."""
        self._memory += [None] * (slots - self.slots)
        super().grow(slots)

    @property
    def memory_bytes(self) -> int:
        """What the slots have by now."""
        return sum(memory.nbytes for memory in self._memory if memory is not None)

    def memory(self, slot: int) -> int:
        """The descriptor of a slot's memory; -1 where it has none yet."""
        memory = self._memory[slot]
        return -1 if memory is None else memory.fd

    def adopt(self, slot: int, memory: Memfd) -> None:
        """Take what a worker made for a slot; what the slot had goes with its last reader."""
        before, self._memory[slot] = self._memory[slot], memory
        if before is not None:
            before.close()

    def put(self, slot: int, data: NDArray[np.uint8]) -> None:
        """Take a batch that came by a pipe."""
        self._private[slot] = data

    def write(self, slot: int, data: bytes) -> None:
        """Lay bytes at the head of a slot, for a worker to read before it writes there."""
        memory = self._memory[slot]
        if memory is None or memory.nbytes < len(data):
            memory = Memfd.create(len(data))
            self.adopt(slot, memory)
        memory.array[: len(data)] = np.frombuffer(data, np.uint8)

    def view(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """The first `nbytes` bytes of a slot."""
        private = self._private.get(slot)
        if private is not None:
            return private[:nbytes]
        memory = self._memory[slot]
        return np.empty(0, np.uint8) if memory is None else memory.array[:nbytes]

    def lend(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """The same, on loan: the slot is free again when the last array on it is garbage."""
        view = self.view(slot, nbytes)
        if self._private.pop(slot, None) is not None:
            super().release(slot)
            return view
        return self.lend_bytes(slot, view)

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._private.pop(slot, None)
        super().release(slot)

    def close(self) -> None:
        """Let go of the memory: what is on loan keeps its own hold of it."""
        super().close()
        self._private.clear()
        for slot, memory in enumerate(self._memory):
            if memory is not None:
                memory.close()
                self._memory[slot] = None
