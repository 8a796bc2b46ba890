"""A worker's work on a whole batch: make it in one slot's memory.

Guarantees: failures are always reported; memory is mapped once for as long as a slot has it.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import ROW
from feedline.engine.memory import Memfd
from feedline.engine.messages import BatchTask, Failure, Report
from feedline.engine.source import BatchSource
from feedline.engine.space import Space
from feedline.trace import stage_timer
from feedline.trace.stage_timings import StagePage

__all__ = ["MappedMemory", "PrivateMemory", "SlotMemory", "make_batch"]


class MappedMemory:
    """Memory of slots as file descriptors, which come with tasks or are sent with reports."""

    def __init__(self) -> None:
        # By slot: device and inode, bytes.
        self._mapped: dict[int, tuple[tuple[int, int], NDArray[np.uint8]]] = {}
        self._new = -1

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Memory of a task's slot, shape (bytes,), mapped once; empty if it has none."""
        self._new = -1
        if task.memory < 0:
            return np.empty(0, np.uint8)
        file = _identity(task.memory)
        known, memory = self._mapped.get(task.slot, (None, None))
        if known == file and memory is not None:
            os.close(task.memory)
            return memory
        memory = Memfd(task.memory).array
        os.close(task.memory)  # the mapping stays
        self._mapped[task.slot] = file, memory
        return memory

    def larger(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Allocate new memory for a slot, to be sent with the report.

        Raises:
            ResourceError: not enough memory.
        """
        made = Memfd.create(nbytes)
        self._new = made.fd
        self._mapped[slot] = _identity(made.fd), made.array
        return made.array

    def attach(self, report: Report) -> None:
        """Add new memory to a report, if any; the sender then closes the descriptor."""
        report.memory, self._new = self._new, -1


def _identity(fd: int) -> tuple[int, int]:
    """Device and inode: unique while the file is mapped."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class PrivateMemory:
    """One memory for all slots, private to this process: batches are sent through a pipe."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Return the memory, for any slot."""
        return self._memory

    def larger(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Allocate more memory."""
        self._memory = np.empty(nbytes, np.uint8)
        return self._memory

    def attach(self, report: Report) -> None:
        """Add the batch itself to the report."""
        report.data = self._memory[: report.used]


SlotMemory: TypeAlias = MappedMemory | PrivateMemory
"""Memory of slots in a worker."""


def make_batch(
    task: BatchTask,
    source: BatchSource,
    memory: SlotMemory,
    line: NDArray[np.int64],
    seat: int,
    page: StagePage | None = None,
) -> Report:
    """Make the batch of a task.

    Args:
        task: what to make.
        source: makes the batch.
        memory: memory of the slots.
        line: this worker's line of the heartbeat table; its row is updated.
        seat: worker id, for the report.
        page: page for stage timings; None if they are not recorded.
    """
    noted = stage_timer.begin_task(page)
    try:
        return _made(task, source, memory, line, seat)
    finally:
        if noted:
            stage_timer.end_task()


def _made(
    task: BatchTask, source: BatchSource, memory: SlotMemory, line: NDArray[np.int64], seat: int
) -> Report:
    def at(row: int) -> None:
        line[ROW] = row

    report = Report(seat, task.id, time.monotonic_ns(), 0)
    try:
        there = memory.of(task)
        keys = task.keys or there[: task.kept].tobytes()
        space = Space(there)
        shell = source.pack(keys, task, space, at)
        stage_timer.end_stage("pack")
        if not space.fits:
            space.move(partial(memory.larger, task.slot))
        report.used, report.shell = space.used, shell
    except (Exception, SystemExit) as error:
        report.failures = (Failure.of(0, error),)
    report.ended_ns = time.monotonic_ns()
    memory.attach(report)
    return report
