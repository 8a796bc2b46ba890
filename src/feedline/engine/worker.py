"""Work of a worker, for all pools: fill the rows of a task, or make a whole batch.

Guarantees: every row of a task is tried, every failure is reported, and nothing outside the task's
rows is written.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from feedline.engine.buffers import Space, arrays
from feedline.engine.heartbeat import READING, ROW, SINCE, stage_pages
from feedline.engine.messages import BatchTask, Failure, Report, RowTask
from feedline.engine.process import keep_freed_memory
from feedline.engine.shared_memory import SharedFile
from feedline.engine.source import AnySource, BatchSource, Source, makes_whole_batches
from feedline.order.batch_spec import Item
from feedline.order.seeds import extend, mix
from feedline.stores.reading import reading
from feedline.trace import is_recording_enabled, stage_timer
from feedline.trace.stage_timings import StagePage

__all__ = ["MappedMemory", "PrivateMemory", "Work", "fill", "make_batch", "recorded", "work_for"]

P = ParamSpec("P")
Work: TypeAlias = Callable[[bytes, int], Report]
"""Function of a message and its descriptor, -1 for none."""


def work_for(
    source: AnySource,
    block: NDArray[np.uint8],
    line: NDArray[np.int64],
    memory: MappedMemory | PrivateMemory,
    worker_id: int,
    workers: int,
) -> Work:
    """Open a source in a worker. Return the function that does its tasks.

    Args:
        source: makes rows or batches.
        block: memory of the pool, shape (bytes,), for rows and stage timings.
        line: this worker's line of the heartbeat table.
        memory: memory for whole batches.
        worker_id: worker id.
        workers: number of workers.
    """
    reading.show_in(line[READING : READING + 1])
    page = StagePage(stage_pages(block)[worker_id]) if is_recording_enabled() else None
    if makes_whole_batches(source):
        batches = cast(BatchSource, source)
        keep_freed_memory()
        batches.open(worker_id, workers)
        return lambda message, fd: recorded(
            page, make_batch, BatchTask.unpack(message, fd), batches, memory, line, worker_id
        )
    rows = cast(Source, source)
    if (open_source := getattr(rows, "open", None)) is not None:
        open_source(worker_id, workers)
    return lambda message, _: recorded(
        page, fill, RowTask.unpack(message), rows, block, line, worker_id
    )


def recorded(
    page: StagePage | None, do: Callable[P, Report], *arguments: P.args, **options: P.kwargs
) -> Report:
    """Do a task, and record the time of its stages.

    Args:
        page: page for stage timings; None if they are not recorded.
        do: `fill` or `make_batch`.
        *arguments, **options: its arguments.
    """
    is_recorded = stage_timer.begin_task(page)
    try:
        return do(*arguments, **options)
    finally:
        if is_recorded:
            stage_timer.end_task()


def fill(
    task: RowTask,
    source: Source,
    block: NDArray[np.uint8],
    line: NDArray[np.int64],
    worker_id: int,
) -> Report:
    """Make the rows of a task in `block`.

    Args:
        task: what to make and where.
        source: makes the rows.
        block: shared memory, shape (bytes,).
        line: this worker's line of the heartbeat table; its row is updated.
        worker_id: worker id, for the report.
    """
    times_samples = stage_timer.each_sample
    samples = task.samples.tolist()
    if (prepare := getattr(source, "prepare", None)) is not None:
        with reading, contextlib.suppress(Exception):
            prepare(samples, task.image_size)
        stage_timer.end_stage("fetch")
    # After `prepare`: waiting for a server must not make later tasks shorter.
    started_ns = time.monotonic_ns()
    failures: list[Failure] = []
    slot = block[task.offset : task.offset + task.slot_bytes]
    views = arrays(slot, source.fields(task.image_size), task.batch_rows)
    seed = mix(task.seed)
    clock, before_ns, slow_ns = time.monotonic_ns, started_ns, 0
    for k, sample in enumerate(samples):
        line[SINCE] = clock()
        line[ROW] = k
        row = task.start + k
        row_seed = extend(seed, sample)
        if task.stride:
            row_seed = extend(row_seed, task.place + row * task.stride)
        item = Item(sample, task.image_size, row_seed, task.strength)
        try:
            source.load(item, tuple([view[row, ...] for view in views]))
        except (Exception, SystemExit) as error:
            failures.append(Failure.of(row, error))
        if times_samples:  # inline, because a call costs too much for small rows
            now_ns = clock()
            if now_ns - before_ns > slow_ns or stage_timer.timed:
                slow_ns = stage_timer.note_sample(sample, now_ns - before_ns)
            before_ns = now_ns
    return Report(worker_id, task.id, started_ns, time.monotonic_ns(), tuple(failures))


class MappedMemory:
    """Memory of slots, by descriptors received with tasks or sent with reports."""

    def __init__(self) -> None:
        # By slot: device and inode, bytes.
        self._mapped: dict[int, tuple[tuple[int, int], NDArray[np.uint8]]] = {}
        self._new_fd = -1

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Memory of a task's slot, shape (bytes,), mapped once; empty if it has none."""
        self._new_fd = -1
        if task.memory < 0:
            return np.empty(0, np.uint8)
        file = _identity(task.memory)
        known, memory = self._mapped.get(task.slot, (None, None))
        if known == file and memory is not None:
            os.close(task.memory)
            return memory
        memory = SharedFile(task.memory).array
        os.close(task.memory)  # the mapping stays
        self._mapped[task.slot] = file, memory
        return memory

    def allocate(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Allocate new memory for a slot, to be sent with the report.

        Raises:
            ResourceError: not enough memory.
        """
        file = SharedFile.create(nbytes)
        self._new_fd = file.fd
        self._mapped[slot] = _identity(file.fd), file.array
        return file.array

    def attach(self, report: Report) -> None:
        """Add new memory to a report, if any; the sender then closes the descriptor."""
        report.memory, self._new_fd = self._new_fd, -1


def _identity(fd: int) -> tuple[int, int]:
    """Device and inode: unique while the file is mapped."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class PrivateMemory:
    """Private memory for all slots: batches are sent through a pipe."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Return the memory, for any slot."""
        return self._memory

    def allocate(self, slot: int, nbytes: int) -> NDArray[np.uint8]:
        """Allocate new memory, for any slot."""
        self._memory = np.empty(nbytes, np.uint8)
        return self._memory

    def attach(self, report: Report) -> None:
        """Add the batch itself to the report."""
        report.data = self._memory[: report.used]


def make_batch(
    task: BatchTask,
    source: BatchSource,
    memory: MappedMemory | PrivateMemory,
    line: NDArray[np.int64],
    worker_id: int,
) -> Report:
    """Make the batch of a task.

    Args:
        task: what to make.
        source: makes the batch.
        memory: memory of the slots.
        line: this worker's line of the heartbeat table; its row is updated.
        worker_id: worker id, for the report.
    """

    def at(row: int) -> None:
        line[ROW] = row

    report = Report(worker_id, task.id, time.monotonic_ns(), 0)
    try:
        slot = memory.of(task)
        keys = task.keys or slot[: task.key_bytes].tobytes()
        space = Space(slot)
        structure_bytes = source.pack(keys, task, space, at)
        stage_timer.end_stage("pack")
        if not space.fits:
            space.move(partial(memory.allocate, task.slot))
        report.used, report.structure_bytes = space.used, structure_bytes
    except (Exception, SystemExit) as error:
        report.failures = (Failure.of(0, error),)
    report.ended_ns = time.monotonic_ns()
    memory.attach(report)
    return report
