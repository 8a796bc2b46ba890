"""Buffer slots: the memory of batches. Each slot is free, being filled or being read.

Rows use `FixedSlots`, whole batches `GrowingSlots`.

Guarantees: an acquired slot is released when the last array on it is garbage, in whichever thread
that happens; so a returned batch is safe to keep. A process forked from the trainer may hold
batches too, unseen: slots on loan at a fork are not used again, unless the process was feedline's
own and has ended.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import BOARD_BYTES
from feedline.engine.layout import arrays
from feedline.engine.memory import Memfd
from feedline.order.batch_spec import Field

__all__ = ["FixedSlots", "GrowingSlots", "OwnFork", "SlotTooSmall", "Slots"]

_all: weakref.WeakSet[Slots] = weakref.WeakSet()


class SlotTooSmall(Exception):
    """A batch needs larger slots. They come with new workers: see `loader.session`.

    Args:
        nbytes: size of the batch, in bytes.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"a batch needs {nbytes} bytes")
        self.nbytes = nbytes


class Slots:
    """A number of slots.

    Args:
        slots: number of slots.
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
        """Acquire a free slot, or None."""
        return self._free.popleft() if self._free else None

    def release(self, slot: int) -> None:
        """Release a slot."""
        self._free.append(slot)

    def grow(self, slots: int) -> None:
        """Increase the number of slots; existing ones stay."""
        more = range(self.slots, max(self.slots, slots))
        self.slots += len(more)
        self._free.extend(more)

    @property
    def lent(self) -> int:
        """Number of slots on loan, or held by a child process."""
        return len(self._loans) + len(self._late)

    def lend_bytes(self, slot: int, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Lend a slot's memory: the slot is free again when the last array on it is garbage."""
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
        """Record that a child of this process holds the slots on loan. Return these slots."""
        slots = list(self._loans)
        for slot in slots:
            self._kept[slot] = self._kept.get(slot, 0) + 1
        return slots

    def let_go(self, slots: list[int]) -> None:
        """Record that the child has ended."""
        for slot in slots:
            self._kept[slot] -= 1
            if not self._kept[slot]:
                del self._kept[slot]
                if slot in self._late:
                    self._late.remove(slot)
                    self._free.append(slot)

    def reclaim(self) -> None:
        """Release every slot that is not on loan, when none is being filled or read."""
        away = self._late.union(self._loans)
        self._free = deque(slot for slot in range(self.slots) if slot not in away)

    def close(self) -> None:
        """Lend no more slots. Slots on loan keep their memory alive."""
        self._free.clear()


class FixedSlots(Slots):
    """Slots of rows of a known size: of equal size, after the heartbeat table in one block.

    Args:
        block: shared memory, shape (bytes,).
        slot_bytes: size of a slot, a whole number of pages.
        slots: number of slots.
    """

    def __init__(self, block: NDArray[np.uint8], slot_bytes: int, slots: int) -> None:
        super().__init__(slots)
        self._block = block
        self.slot_bytes = slot_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of all slots."""
        return self.slots * self.slot_bytes

    def offset(self, slot: int) -> int:
        """Offset of a slot in the block, in bytes."""
        return BOARD_BYTES + slot * self.slot_bytes

    def _bytes(self, slot: int) -> NDArray[np.uint8]:
        start = self.offset(slot)
        return self._block[start : start + self.slot_bytes]

    def view(
        self, slot: int, fields: tuple[Field, ...], rows: int
    ) -> tuple[NDArray[np.generic], ...]:
        """Arrays of a batch in a slot, each of shape (rows, *field.shape)."""
        return arrays(self._bytes(slot), fields, rows)

    def lend(
        self, slot: int, fields: tuple[Field, ...], rows: int
    ) -> tuple[NDArray[np.generic], ...]:
        """Lend the same arrays: the slot is free again when the last of them is garbage."""
        return arrays(self.lend_bytes(slot, self._bytes(slot)), fields, rows)

    def close(self) -> None:
        """Release the memory; slots on loan keep it alive."""
        super().close()
        self._block = np.empty(0, np.uint8)


class GrowingSlots(Slots):
    """Slots of whole batches of unknown size: their memory grows on demand.

    A slot begins without memory. If a batch is too large for its slot, the worker allocates memory
    and sends it with its report; from then on it is the slot's. So every batch arrives, and after
    the first few none is copied. Descriptors and memory are bounded by the number of slots. Without
    memfd a batch comes through a pipe and is private.

    Args:
        slots: number of slots.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._memory: list[Memfd | None] = [None] * slots
        self._private: dict[int, NDArray[np.uint8]] = {}  # came by a pipe, for this batch only

    def grow(self, slots: int) -> None:
        """Increase the number of slots; new ones begin without memory."""
        self._memory += [None] * (slots - self.slots)
        super().grow(slots)

    @property
    def memory_bytes(self) -> int:
        """Current memory of the slots."""
        return sum(memory.nbytes for memory in self._memory if memory is not None)

    def memory(self, slot: int) -> int:
        """Descriptor of a slot's memory; -1 if it has none yet."""
        memory = self._memory[slot]
        return -1 if memory is None else memory.fd

    def adopt(self, slot: int, memory: Memfd) -> None:
        """Use a worker's new memory for a slot; the last reader frees the previous memory."""
        before, self._memory[slot] = self._memory[slot], memory
        if before is not None:
            before.close()

    def put(self, slot: int, data: NDArray[np.uint8]) -> None:
        """Store a batch that came through a pipe."""
        self._private[slot] = data

    def write(self, slot: int, data: bytes) -> None:
        """Write bytes at the head of a slot, which a worker reads before it writes there."""
        memory = self._memory[slot]
        if memory is None or memory.nbytes < len(data):
            memory = Memfd.create(len(data))
            self.adopt(slot, memory)
        memory.array[: len(data)] = np.frombuffer(data, np.uint8)

    def view(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """First `nbytes` bytes of a slot."""
        private = self._private.get(slot)
        if private is not None:
            return private[:nbytes]
        memory = self._memory[slot]
        return np.empty(0, np.uint8) if memory is None else memory.array[:nbytes]

    def lend(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Lend the same bytes: the slot is free again when the last array on it is garbage."""
        view = self.view(slot, nbytes)
        if self._private.pop(slot, None) is not None:
            super().release(slot)
            return view
        return self.lend_bytes(slot, view)

    def release(self, slot: int) -> None:
        """Release a slot."""
        self._private.pop(slot, None)
        super().release(slot)

    def close(self) -> None:
        """Release the memory; slots on loan keep it alive."""
        super().close()
        self._private.clear()
        for slot, memory in enumerate(self._memory):
            if memory is not None:
                memory.close()
                self._memory[slot] = None


class OwnFork:
    """Context manager for a fork of a process whose end will be known and frees its slots."""

    _under_way: ClassVar[OwnFork | None] = None

    def __init__(self) -> None:
        self._held: list[tuple[Slots, list[int]]] = []

    def __enter__(self) -> OwnFork:
        OwnFork._under_way = self
        return self

    def __exit__(self, *_: object) -> None:
        OwnFork._under_way = None

    def ended(self) -> None:
        """Record that the process has ended."""
        held, self._held = self._held, []
        for slots, numbers in held:
            slots.let_go(numbers)

    @classmethod
    def tell_all(cls) -> None:
        """Record a fork, by feedline or not."""
        for slots in list(_all):
            numbers = slots.keep()
            if cls._under_way is not None:
                cls._under_way._held.append((slots, numbers))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=OwnFork.tell_all)
