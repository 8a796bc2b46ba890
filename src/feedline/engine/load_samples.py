"""Work of a worker, for all pools: fill the rows of a task, or make a whole batch.

Samples are loaded, and their errors caught, in two places: `fill` here for image rows, and
`dataset_fetch.DatasetFetcher` for any other map-style dataset.
A `Source` makes rows of a known size, which all workers write side by side into one batch: an image
folder, a cache. A `BatchSource` makes whole batches of unknown size, one worker each: any dataset
with any `collate_fn`.
Guarantees: every row of a task is tried, every failure is reported, and nothing outside the task's
rows is written.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import ParamSpec, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from feedline.engine.buffers import BatchAllocator, arrays
from feedline.engine.messages import (
    PID,
    READING,
    READY,
    ROW,
    SINCE,
    TASK,
    BatchTask,
    Failure,
    Report,
    RowTask,
    heartbeat_table,
    stage_pages,
)
from feedline.engine.process import (
    ignore_signals,
    keep_freed_memory,
    limit_decoder_threads,
    limit_threads,
)
from feedline.engine.shared_memory import SharedFile
from feedline.order.batch_spec import Field, Item, Items
from feedline.order.seeds import mix, row_seeds
from feedline.sources.files import storage_read
from feedline.timing import is_recording_enabled
from feedline.timing.stage_page import StagePage
from feedline.timing.stage_timer import stage_timer

P = ParamSpec("P")
Row = tuple[NDArray[np.generic], ...]


class Source(Protocol):
    """Makes rows. Pickled once, mapped by every worker, called from its main thread only.

    A worker first calls the optional `open(worker_id, workers)`. For each task it calls the
    optional `prepare(samples, image_size)`, then `load` for each row. Errors of `prepare` are
    ignored, because `load` reports them, and its time does not count as work. A source that makes
    rows faster together has `load_rows(items, rows, begin_row, end_row)`: it fills as many rows as
    it can, calls `begin_row(k)` and, unless it is None, `end_row(k)` for each, and returns the
    numbers of the others, which `load` then makes. The trainer also calls `fields`, `name` and
    `fingerprint`. Without workers it calls the optional `close()` when an epoch ends, after which
    further rows may be made.
    Results must depend on the arguments alone: a row may be made twice, by different workers, and
    must be equal.
    """

    def __len__(self) -> int:
        """Number of samples."""

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Fields of a row at an image size in pixels; None is the samples' own size."""

    def load(self, item: Item, row: Row) -> None:
        """Fill one row: arrays of the fields' shapes and dtypes, to be written in place.

        Raises:
            Exception: any; it is reported with the sample's name.
        """

    def name(self, sample: int) -> str:
        """Name of a sample for the user: its path, if it has one."""

    def fingerprint(self) -> str:
        """Short text that differs if the samples or their order differ."""


class BatchSource(Protocol):
    """Makes whole batches. Called from a worker's main thread only."""

    def open(self, worker: int, workers: int) -> None:
        """Start a worker with its id and the number of workers. Called once, first."""

    def fetch_into(
        self, task: BatchTask, space: BatchAllocator, on_sample: Callable[[int], None]
    ) -> int:
        """Make a batch of the task's samples and write it, or its error, to `space`.

        `on_sample` is called with the index of each sample before it is made, counted from 0.
        Return the number of bytes at the end of `space` that describe the batch's structure.
        """


AnySource: TypeAlias = Source | BatchSource


def makes_whole_batches(source: AnySource) -> bool:
    """Return True if a source makes whole batches."""
    return hasattr(source, "fetch_into")


def do_tasks(
    load: Callable[[], AnySource],
    receive: Callable[[NDArray[np.int64]], tuple[bytes, int] | None],
    send: Callable[[Report], object],
    block: NDArray[np.uint8],
    memory: MappedMemory | PrivateMemory,
    worker_id: int,
    workers: int,
) -> None:
    """Open the source of a worker, and do its tasks until it is to exit.

    `load` unpickles the source; if it cannot be opened, one report is sent, which says so.
    `receive` waits for a task, notes it on the worker's line of the heartbeat table, and returns
    its message and descriptor (-1 for none); None if the worker is to exit. `block` is the memory
    of the pool, and `memory` that of whole batches.
    """
    line = heartbeat_table(block)[worker_id]
    line[PID] = os.getpid()
    try:
        source = load()
        ignore_signals()  # the user's script may have set its handlers again
        limit_threads()  # of libraries that the source imported
        storage_read.show_in(line[READING : READING + 1])
        whole_batches = makes_whole_batches(source)
        if whole_batches:
            keep_freed_memory()
        if (open_ := getattr(source, "open", None)) is not None:
            open_(worker_id, workers)
    except BaseException as error:
        send(Report(worker_id, 0, 0, 0, (Failure.of(-1, error),)))
        return
    line[READY] = 1
    page = StagePage(stage_pages(block)[worker_id]) if is_recording_enabled() else None
    while (received := receive(line)) is not None:
        if whole_batches:
            batch_task = BatchTask.unpack(*received)
            batches = cast(BatchSource, source)
            report = record_stages(page, make_batch, batch_task, batches, memory, line, worker_id)
        else:
            row_task = RowTask.unpack(received[0])
            rows = cast(Source, source)
            report = record_stages(page, fill, row_task, rows, block, line, worker_id)
        send(report)
        # After the report: a task that is in neither the table nor a report counts as lost.
        line[TASK] = 0
        limit_decoder_threads()


def record_stages(
    page: StagePage | None, do: Callable[P, Report], *arguments: P.args, **options: P.kwargs
) -> Report:
    """Do a task by `fill` or `make_batch`, and record the time of its stages if there is a page."""
    is_recorded = stage_timer.begin_task(page)
    try:
        return do(*arguments, **options)
    finally:
        if is_recorded:
            stage_timer.end_task()


def fill(
    task: RowTask, source: Source, block: NDArray[np.uint8], line: NDArray[np.int64], worker_id: int
) -> Report:
    """Make the rows of a task in shared memory, `block`, and note each on the worker's line."""
    times_samples = stage_timer.each_sample
    samples = task.samples.tolist()
    if (prepare := getattr(source, "prepare", None)) is not None:
        with storage_read, contextlib.suppress(Exception):
            prepare(samples, task.image_size)
        stage_timer.begin_samples("fetch")
    # Start the clock after `prepare`: waiting for a server would raise the measured time per row,
    # and the feed would put fewer rows into later tasks.
    started_ns = time.monotonic_ns()
    failures: list[Failure] = []
    slot = block[task.offset : task.offset + task.slot_bytes]
    views = arrays(slot, source.fields(task.image_size), task.batch_rows)
    seeds = row_seeds(mix(task.seed), task.samples, task.start, task.first_position, task.stride)
    clock, before_ns, slow_ns = time.monotonic_ns, started_ns, 0
    words = line.data  # indexing it is twice as fast as an array

    def begin_row(k: int) -> None:
        words[SINCE] = clock()
        words[ROW] = k

    def end_row(k: int) -> None:
        nonlocal before_ns, slow_ns
        now_ns = clock()
        if now_ns - before_ns > slow_ns or stage_timer.timed:
            slow_ns = stage_timer.note_sample(samples[k], now_ns - before_ns)
        before_ns = now_ns

    left: Iterable[int] = range(len(samples))
    if (load_rows := getattr(source, "load_rows", None)) is not None:
        items = Items(task.samples, task.image_size, seeds, task.strength)
        rows = tuple(view[task.start : task.start + len(samples)] for view in views)
        left = load_rows(items, rows, begin_row, end_row if times_samples else None)
    each_seed = seeds.tolist()
    for k in left:
        begin_row(k)
        row = task.start + k
        item = Item(samples[k], task.image_size, each_seed[k], task.strength)
        try:
            source.load(item, tuple([view[row, ...] for view in views]))
        except (Exception, SystemExit) as error:
            failures.append(Failure.of(row, error))
        if times_samples:
            end_row(k)
    return Report(worker_id, task.id, started_ns, time.monotonic_ns(), tuple(failures))


class MappedMemory:
    """Memory of slots, by descriptors received with tasks or sent with reports."""

    def __init__(self) -> None:
        # By slot: device and inode, bytes.
        self._mapped: dict[int, tuple[tuple[int, int], NDArray[np.uint8]]] = {}

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Memory of a task's slot, shape (bytes,), mapped once; empty if it has none."""
        if task.memory < 0:
            return np.empty(0, np.uint8)
        status = os.fstat(task.memory)
        file = status.st_dev, status.st_ino  # unique while the file is mapped
        mapped_file, memory = self._mapped.get(task.slot, (None, None))
        if mapped_file == file and memory is not None:
            os.close(task.memory)
            return memory
        opened = SharedFile(task.memory)
        memory = opened.array
        opened.close()  # the mapping stays
        self._mapped[task.slot] = file, memory
        return memory

    def allocate(self, slot: int, report: Report, nbytes: int) -> NDArray[np.uint8]:
        """Allocate new memory for a slot, which the sender of the report closes."""
        report.memory = SharedFile.create(nbytes)
        # Mapped again with the slot's next task: workers that only get long tasks, which come
        # without the slot's memory, would each keep a batch per slot.
        self._mapped.pop(slot, None)
        return report.memory.array


class PrivateMemory:
    """Private memory for all slots: batches are sent through a pipe."""

    def __init__(self) -> None:
        self.array = np.empty(0, np.uint8)

    def of(self, task: BatchTask) -> NDArray[np.uint8]:
        """Return the memory, for any slot."""
        return self.array

    def allocate(self, slot: int, report: Report, nbytes: int) -> NDArray[np.uint8]:
        """Allocate new memory, for any slot."""
        self.array = np.empty(nbytes, np.uint8)
        return self.array


def make_batch(
    task: BatchTask,
    source: BatchSource,
    memory: MappedMemory | PrivateMemory,
    line: NDArray[np.int64],
    worker_id: int,
) -> Report:
    """Make the batch of a task in the memory of its slot, and note each sample on the line."""

    def on_sample(row: int) -> None:
        line[ROW] = row

    report = Report(worker_id, task.id, time.monotonic_ns(), 0)
    try:
        space = BatchAllocator(memory.of(task))
        structure_bytes = source.fetch_into(task, space, on_sample)
        stage_timer.end_stage("pack")
        if not space.fits:
            space.copy_to_larger(partial(memory.allocate, task.slot, report))
        report.used, report.structure_bytes = space.used, structure_bytes
    except (Exception, SystemExit) as error:
        report.failures = (Failure.of(0, error),)
    report.ended_ns = time.monotonic_ns()
    if isinstance(memory, PrivateMemory):
        report.data = memory.array[: report.used]
    return report
