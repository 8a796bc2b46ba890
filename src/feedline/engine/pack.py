"""A worker's work on an order: one whole batch into one slot's memory.

Guarantees: what goes wrong is reported, never left looking like a made batch; memory is mapped
once for as long as a slot keeps it.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import ROW
from feedline.engine.memory import Memfd
from feedline.engine.messages import BatchTask, Failure, Report, said
from feedline.engine.source import BatchSource
from feedline.engine.space import Space

__all__ = ["BatchPacker", "MappedMemory", "Memories", "PrivateMemory"]


class Memories(Protocol):
    """Where a worker finds the memory of slots."""

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """A slot's memory, shape (bytes,); empty where it has none."""
        ...

    def larger(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """New memory for a slot."""
        ...

    def report(self, report: Report) -> Report:
        """Make what was written part of a report."""
        ...


class MappedMemory:
    """Memory behind descriptors: what the trainer sent along, or what goes along to it."""

    def __init__(self) -> None:
        self._mapped: dict[int, tuple[int, NDArray[np.uint8]]] = {}  # by slot: inode, bytes
        self._new = -1

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Map what came with an order, unless it is mapped already."""
        self._new = -1
        if task.memory < 0:
            return np.empty(0, np.uint8)
        inode = os.fstat(task.memory).st_ino
        known, memory = self._mapped.get(task.slot, (0, None))
        if known == inode and memory is not None:
            os.close(task.memory)
            return memory
        memory = Memfd(task.memory, task.memory_bytes).array
        os.close(task.memory)  # the mapping stays
        self._mapped[task.slot] = inode, memory
        return memory

    def larger(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Make new memory, which goes along with the report.

        Raises:
            ResourceError: the machine has not that much.
        """
        made = Memfd.create(nbytes)
        self._new = made.fd
        self._mapped[slot] = os.fstat(made.fd).st_ino, made.array
        return made.array

    def report(self, report: Report) -> Report:
        """Send new memory along, if there is any; the descriptor is then the sender's to close."""
        report.memory, self._new = self._new, -1
        return report


class PrivateMemory:
    """Private memory, for where batches go by a pipe."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """The memory, whatever the slot."""
        return self._memory

    def larger(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """More of it."""
        self._memory = np.empty(nbytes, np.uint8)
        return self._memory

    def report(self, report: Report) -> Report:
        """The batch itself goes along."""
        report.data = self._memory[: report.used]
        return report


class BatchPacker:
    """A worker's hands.

    Args:
        source: makes the batches.
        memories: where batches go.
        line: this worker's line of the board.
        seat: this worker's number.
    """

    def __init__(
        self, source: BatchSource, memories: Memories, line: NDArray[np.int64], seat: int
    ) -> None:
        self._source = source
        self._memories = memories
        self._line = line
        self._seat = seat

    def pack(self, task: BatchTask) -> Report:
        """Carry out an order."""
        started_ns = time.monotonic_ns()
        failures: tuple[Failure, ...] = ()
        used = shell = 0
        try:
            memory = self._memories.of(task)
            keys = task.keys or memory[: task.kept].tobytes()
            space = Space(memory)
            shell = self._source.pack(keys, task, space, self._at)
            used = space.used
            if not space.fits:
                space.move(self._mover(task.slot))
        except (Exception, SystemExit) as error:
            trace = traceback.format_exc(limit=-20)
            failures = (Failure(0, type(error).__name__, said(error), trace),)
            used = shell = 0
        report = Report(self._seat, task.id, started_ns, time.monotonic_ns(), failures, used, shell)
        return self._memories.report(report)

    def _at(self, row: int) -> None:
        self._line[ROW] = row

    def _mover(self, slot: int) -> Callable[[int], NDArray[np.uint8]]:
        return lambda nbytes: self._memories.larger(slot, nbytes)
