"""Batch buffers: the memory of batches, in slots. A slot is free, being filled, or exported.

`RowBuffers` have arrays one after another, each on its own cache lines; `WholeBatchBuffers` have
batches packed into a `BatchAllocator`.
An exported slot is read by the user's tensors, as in Python's buffer protocol.
Guarantees: an exported slot is free again when the last array on it is garbage, in any thread, and
when every process that was forked while it was exported has ended. So a returned batch is safe to
keep.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from feedline.engine.messages import BLOCK_HEADER_BYTES
from feedline.engine.shared_memory import SharedFile
from feedline.order.batch_spec import Field

PAGE_BYTES = 4096
CACHE_LINE_BYTES = 64
_HEADROOM_DIVISOR = 8
"""Memory of batches is an eighth larger, so that few batches of varying size need new memory."""


def align(offset: int, to: int) -> int:
    """Round `offset` up to a multiple of `to`."""
    return -(-offset // to) * to


_ArrayLayout = tuple[tuple[int, ...], np.dtype[Any], int]


@lru_cache(maxsize=64)  # most batches of a run have the same one
def _layout(fields: tuple[Field, ...], rows: int) -> tuple[tuple[_ArrayLayout, ...], int]:
    """Shape, dtype and offset of each array of a batch, and the bytes of all, in whole pages."""
    layouts: list[_ArrayLayout] = []
    offset = 0
    for field in fields:
        dtype = np.dtype(field.dtype)
        layouts.append(((rows, *field.shape), dtype, offset))
        offset += align(rows * dtype.itemsize * prod(field.shape), CACHE_LINE_BYTES)
    return tuple(layouts), align(offset, PAGE_BYTES)


def batch_bytes(fields: tuple[Field, ...], rows: int) -> int:
    """Bytes of a batch of `rows` rows, a whole number of pages."""
    return _layout(fields, rows)[1]


def arrays(
    slot: NDArray[np.uint8], fields: tuple[Field, ...], rows: int
) -> tuple[NDArray[np.generic], ...]:
    """Arrays of a batch as views of its slot, each of shape (rows, *field.shape)."""
    layouts, _ = _layout(fields, rows)
    return tuple([np.ndarray(shape, dtype, slot, offset) for shape, dtype, offset in layouts])


class BatchAllocator:
    """Memory of a whole batch while it is packed, allocated in parts.

    Parts that do not fit into the existing memory, shape (bytes,), are allocated separately and
    copied by `copy_to_larger`.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._overflow: list[tuple[int, NDArray[np.uint8]]] = []
        self.used = 0

    def allocate(self, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
        """Allocate bytes on their own cache lines. Return their offset and the bytes."""
        start = align(self.used, CACHE_LINE_BYTES)
        self.used = start + nbytes
        if self.used <= len(self._memory):
            return start, self._memory[start : self.used]
        part = np.empty(nbytes, np.uint8)
        self._overflow.append((start, part))
        return start, part

    def offset_of(self, address: int) -> int | None:
        """Offset of an address in the allocated parts; None for other memory."""
        for start, part in [(0, self._memory[: self.used]), *self._overflow]:
            within = address - part.ctypes.data
            if 0 <= within < len(part):
                return start + within
        return None

    @property
    def fits(self) -> bool:
        """True if all parts are in the existing memory."""
        return not self._overflow

    def copy_to_larger(self, allocate: Callable[[int], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Copy all parts into larger memory, allocated by `allocate(bytes)`."""
        larger = allocate(align(self.used + self.used // _HEADROOM_DIVISOR, PAGE_BYTES))
        first = min(self._overflow[0][0], len(self._memory)) if self._overflow else self.used
        larger[:first] = self._memory[:first]
        for start, part in self._overflow:
            larger[start : start + len(part)] = part
        return larger


class SlotTooSmallError(Exception):
    """A batch needs larger slots, of `nbytes` bytes; the loader then starts new workers."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"a batch needs {nbytes} bytes")
        self.nbytes = nbytes


class BatchBuffers:
    """A number of slots."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        # Appending and popping are atomic: slots may come back from any thread.
        self._free: deque[int] = deque(range(num_slots))
        self._exports: dict[int, weakref.ref[object]] = {}
        self._children: dict[_ForkedChild, list[int]] = {}  # slots exported at the fork
        self._read_by_children: set[int] = set()  # no longer exported here
        _all.add(self)

    def acquire(self) -> int | None:
        """Acquire a free slot, or None."""
        if self._read_by_children and not self._free:
            self._release_after_children()
        return self._free.popleft() if self._free else None

    def release(self, slot: int) -> None:
        """Release an acquired slot."""
        self._free.append(slot)

    def grow(self, num_slots: int) -> None:
        """Increase the number of slots; existing ones stay."""
        more = range(self.num_slots, max(self.num_slots, num_slots))
        self.num_slots += len(more)
        self._free.extend(more)

    @property
    def num_exported(self) -> int:
        """Number of slots that arrays refer to, or that a child process may read."""
        if self._read_by_children:
            self._release_after_children()
        return len(self._exports) + len(self._read_by_children)

    def export_bytes(self, slot: int, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Export a slot: return its memory; the last array on it releases the slot."""
        exporter: Any = (ctypes.c_char * len(memory)).from_buffer(cast(Any, memory))

        def released(_: object) -> None:
            if self._exports.pop(slot, None) is not None:
                if any(slot in slots for slots in list(self._children.values())):
                    self._read_by_children.add(slot)
                else:
                    self._free.append(slot)

        self._exports[slot] = weakref.ref(exporter, released)
        array: NDArray[np.uint8] = np.frombuffer(exporter, np.uint8)
        return array

    def add_child(self, child: _ForkedChild) -> None:
        """Record a forked child, which has inherited the exported slots."""
        self._release_after_children()  # closes the pipes of ended children
        if slots := list(self._exports):
            self._children[child] = slots

    def forget_children(self) -> None:
        """Drop all children, in a forked child."""
        for child in self._children:
            child.forget()
        self._children.clear()

    def _release_after_children(self) -> None:
        """Release the slots whose children have ended."""
        for child in list(self._children):
            if child.has_ended():
                self._children.pop(child, None)
        for slot in list(self._read_by_children):
            if not any(slot in slots for slots in list(self._children.values())):
                self._read_by_children.remove(slot)
                self._free.append(slot)

    def reclaim(self) -> None:
        """Release every slot that is not exported. Call it when no worker uses one."""
        unavailable = self._read_by_children.union(self._exports)
        self._free = deque(slot for slot in range(self.num_slots) if slot not in unavailable)

    def close(self) -> None:
        """End the use of slots. Exported slots keep their memory alive."""
        self._free.clear()


class RowBuffers(BatchBuffers):
    """Slots of equal size, whole pages, after the heartbeat table in one block, for rows."""

    def __init__(self, block: NDArray[np.uint8], slot_bytes: int, num_slots: int) -> None:
        super().__init__(num_slots)
        self._block = block
        self.slot_bytes = slot_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of all slots."""
        return self.num_slots * self.slot_bytes

    def offset(self, slot: int) -> int:
        """Offset of a slot in the block, in bytes."""
        return BLOCK_HEADER_BYTES + slot * self.slot_bytes

    def _bytes(self, slot: int) -> NDArray[np.uint8]:
        start = self.offset(slot)
        return self._block[start : start + self.slot_bytes]

    def view(
        self, slot: int, fields: tuple[Field, ...], rows: int
    ) -> tuple[NDArray[np.generic], ...]:
        """Arrays of a batch in a slot, each of shape (rows, *field.shape)."""
        return arrays(self._bytes(slot), fields, rows)

    def export(
        self, slot: int, fields: tuple[Field, ...], rows: int
    ) -> tuple[NDArray[np.generic], ...]:
        """Export a slot: like `view`, and the last array releases the slot."""
        return arrays(self.export_bytes(slot, self._bytes(slot)), fields, rows)

    def close(self) -> None:
        """End the use of slots; the last array on the block frees it."""
        super().close()
        self._block = np.empty(0, np.uint8)


class WholeBatchBuffers(BatchBuffers):
    """Slots of whole batches: their memory comes from the workers and grows when needed."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._memory: list[SharedFile | None] = [None] * num_slots

    def grow(self, num_slots: int) -> None:
        """Increase the number of slots; new ones have no memory yet."""
        self._memory += [None] * (num_slots - self.num_slots)
        super().grow(num_slots)

    @property
    def memory_bytes(self) -> int:
        """Current memory of the slots."""
        return sum(memory.nbytes for memory in self._memory if memory is not None)

    def memory(self, slot: int) -> int:
        """Descriptor of a slot's memory; -1 if it has none yet."""
        memory = self._memory[slot]
        return -1 if memory is None else memory.fd

    def set_memory(self, slot: int, memory: SharedFile) -> None:
        """Use a worker's new memory for a slot; the last reader frees the previous memory."""
        self._memory[slot] = memory

    def view(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """First `nbytes` bytes of a slot, which has memory."""
        memory = self._memory[slot]
        assert memory is not None
        return memory.array[:nbytes]

    def export(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Export a slot: like `view`, and the last array releases the slot."""
        memory = self._memory[slot]
        assert memory is not None
        return self.export_bytes(slot, memory.array)[:nbytes]

    def close(self) -> None:
        """Release the memory; exported slots keep theirs alive."""
        super().close()
        for slot, memory in enumerate(self._memory):
            if memory is not None:
                memory.close()
                self._memory[slot] = None


class _ForkedChild:
    """A process forked from this one, which maps the same batches.

    `fd` is the reading end of a pipe whose other end only the child holds; closed by this object.
    None if no pipe could be created: the child then never counts as ended.
    """

    def __init__(self, fd: int | None) -> None:
        self._close = None if fd is None else weakref.finalize(self, os.close, fd)
        self._fd = fd

    def has_ended(self) -> bool:
        """Return True if the child has ended or runs another program."""
        if self._fd is None or self._close is None:
            return False
        if self._close.alive:
            pipe = select.poll()
            pipe.register(self._fd, 0)  # 0: the hang-up is reported anyway
            if pipe.poll(0):
                self._close()
        return not self._close.alive

    def forget(self) -> None:
        """Close the pipe."""
        if self._close is not None:
            self._close()


_all: weakref.WeakSet[BatchBuffers] = weakref.WeakSet()
_forks = threading.local()  # `pipe` of this thread's current fork


def _before_fork() -> None:
    _forks.pipe = ()
    if any(buffers.num_exported for buffers in list(_all)):
        try:
            _forks.pipe = os.pipe()
        except OSError:  # too many open files
            _forks.pipe = (None, None)


def _after_fork_in_parent() -> None:
    if _forks.pipe:
        reading, writing = _forks.pipe
        if writing is not None:
            os.close(writing)
        child = _ForkedChild(reading)
        for buffers in list(_all):
            buffers.add_child(child)


def _after_fork_in_child() -> None:
    # The writing end stays open while this process or a child of it runs: both map the parent's
    # batches. Slots are managed by the parent.
    for buffers in list(_all):
        buffers.forget_children()
    _all.clear()
    if _forks.pipe and _forks.pipe[0] is not None:
        os.close(_forks.pipe[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
