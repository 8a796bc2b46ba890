"""Batches in flight and their tasks: some rows, or whole batches.

`RowTasks` are for a `Source`, `BatchTasks` for a `BatchSource`; the feed queues and counts them.
Both have the same methods: `resize` prepares the slots for new settings and returns the maximum
number of batches in flight, `begin` divides a batch into spans, `task` creates a span's message,
`store_result` stores a report's data, and `retry_spans` lists the spans to repeat after a death.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np

from feedline.engine.buffers import RowBuffers, SlotTooSmallError, WholeBatchBuffers, batch_bytes
from feedline.engine.defaults import LiveSettings
from feedline.engine.messages import BatchTask, Failure, Report, RowTask
from feedline.errors import UsageError
from feedline.order.batch_spec import NO_SAMPLE_INDEX, BatchSpec, Field, divide_rows, rows_per_task


@dataclass(eq=False, slots=True)
class InFlightBatch:
    """A batch in flight, in its slot."""

    number: int  # within the feed; smaller numbers have priority
    batch: BatchSpec
    slot: int
    fields: tuple[Field, ...] = ()  # layout of its arrays; empty for a whole batch
    report: Report | None = None  # of a whole batch
    open_tasks: int = 0  # number of unfinished tasks
    failures: list[Failure] = field(default_factory=list)  # rows that could not be made
    deaths: dict[int, int] = field(default_factory=dict)  # by row: workers that failed on it
    cancelled: bool = False  # the batch is not returned; its last task frees the slot


Span: TypeAlias = tuple[int, int]
"""Rows of a task: first row within the batch, number of rows."""

Tasks: TypeAlias = "RowTasks | BatchTasks"


class RowTasks:
    """Tasks of some rows. `fields(image_size)` are the arrays of a row."""

    def __init__(
        self, slots: RowBuffers, fields: Callable[[int | None], tuple[Field, ...]]
    ) -> None:
        self.slots = slots
        self._fields = lru_cache(maxsize=64)(fields)

    def resize(self, settings: LiveSettings) -> int:
        """Return the maximum in flight. Memory is allocated once."""
        return settings.max_in_flight(self.slots.num_slots)

    def begin(self, in_flight: InFlightBatch, settings: LiveSettings, row_ns: float) -> list[Span]:
        """Divide a batch as computed by `rows_per_task`, or raise SlotTooSmallError."""
        batch = in_flight.batch
        if batch.is_sampled and NO_SAMPLE_INDEX in batch.samples:
            batch = in_flight.batch = _with_integer_keys(batch)
        in_flight.fields = self._fields(batch.image_size)
        if (nbytes := batch_bytes(in_flight.fields, batch.rows)) > self.slots.slot_bytes:
            raise SlotTooSmallError(nbytes)
        # The user holds one slot; the others are in flight.
        max_in_flight = settings.max_in_flight(max(1, self.slots.num_slots - 1))
        rows = rows_per_task(batch.rows, settings.workers, row_ns, max_in_flight, settings.task_ns)
        return divide_rows(batch.rows, rows)

    def task(self, task_id: int, in_flight: InFlightBatch, span: Span) -> RowTask:
        """Create the task of a span."""
        batch = in_flight.batch
        start, count = span
        return RowTask(
            id=task_id,
            offset=self.slots.offset(in_flight.slot),
            slot_bytes=self.slots.slot_bytes,
            batch_rows=batch.rows,
            start=start,
            image_size=batch.image_size,
            seed=batch.seed,
            first_position=batch.first_position,
            stride=batch.stride,
            strength=batch.phase.strength,
            samples=batch.samples[start : start + count],
        )

    def store_result(self, in_flight: InFlightBatch, report: Report) -> None:
        """Do nothing: the rows are in place."""

    def retry_spans(self, span: Span, row: int | None, give_up: bool) -> list[Span]:
        """Split off the row, so that no other is lost with it; if it is unknown, each row."""
        start, count = span
        if row is None:
            return [(start + k, 1) for k in range(count)]
        parts = [
            (start, row - start),
            (row, 0 if give_up else 1),
            (row + 1, start + count - row - 1),
        ]
        return [part for part in parts if part[1]]


class BatchTasks:
    """Tasks of whole batches, one each. `max_user_batches` may be kept without a copy.

    With `skips_failures`, a batch is made without the rows that kill their workers.
    """

    def __init__(
        self, slots: WholeBatchBuffers, *, max_user_batches: int, skips_failures: bool = False
    ) -> None:
        self.slots = slots
        self._skips_failures = skips_failures
        self._max_user_batches = max_user_batches
        self.dataset_changes = b""  # sent with each task, so that replacement workers have them

    def resize(self, settings: LiveSettings) -> int:
        """Provide slots for batches in flight and for those the user holds."""
        # Slots that the user could hold but does not are used for batches ahead.
        max_in_flight = settings.default_prefetch + self._max_user_batches
        self.slots.grow(max_in_flight)
        return max_in_flight

    def begin(self, in_flight: InFlightBatch, settings: LiveSettings, row_ns: float) -> list[Span]:
        """Return one span."""
        return [(0, in_flight.batch.rows)]

    def task(self, task_id: int, in_flight: InFlightBatch, span: Span) -> BatchTask:
        """Create the task of the batch."""
        return BatchTask.for_batch(in_flight.batch, in_flight.batch.batch_seed)._replace(
            id=task_id,
            keys=pickle.dumps(in_flight.batch.dataset_keys),
            memory=self.slots.memory(in_flight.slot),
            slot=in_flight.slot,
            skipped_rows=tuple((each.row, each.message) for each in in_flight.failures),
            dataset_changes=self.dataset_changes,
        )

    def store_result(self, in_flight: InFlightBatch, report: Report) -> None:
        """Keep the report of the batch, and the new memory that came with it."""
        in_flight.report = report
        if report.memory is not None:
            self.slots.set_memory(in_flight.slot, report.memory)

    def retry_spans(self, span: Span, row: int | None, give_up: bool) -> list[Span]:
        """Return the whole batch, or nothing if it cannot be made without the row."""
        return [] if give_up and not self._skips_failures else [span]


def _with_integer_keys(batch: BatchSpec) -> BatchSpec:
    """Convert the keys of a batch to list indices; True and False are 1 and 0."""
    try:
        samples = np.array([operator.index(key) for key in cast(Any, batch.keys)], np.int64)
    except TypeError as error:
        raise UsageError(
            f"the sampler returned {batch.keys!r} for a batch (epoch {batch.epoch + 1}, step "
            f"{batch.step + 1}), but this dataset needs integer indices"
        ) from error
    return batch._replace(samples=samples)
