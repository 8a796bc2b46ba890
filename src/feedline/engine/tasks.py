"""Tasks of the workers: some rows, or whole batches.

The feed queues and counts tasks; this module defines what a task is, and what its end means for a
batch. `PieceTasks` are for a `Source` of rows, `BatchTasks` for a `BatchSource`. Both have the same
methods: `resize` prepares the slots for other settings, and `depth` is the maximum number of
batches in flight with them; `begin` divides a new flight into spans, `task` is the message to a
worker for a span, `done` processes a report's data, and `again` lists the spans to repeat after a
worker died on a row of a span; `hopeless` means that this row is given up.
"""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np

from feedline.engine.in_flight import InFlightBatch
from feedline.engine.layout import batch_bytes
from feedline.engine.live_settings import LiveSettings
from feedline.engine.memory import Memfd
from feedline.engine.messages import MAX_KEY_BYTES, BatchTask, Piece, Report
from feedline.engine.slots import FixedSlots, GrowingSlots, SlotTooSmall
from feedline.errors import ResourceError, UsageError
from feedline.order.batch_spec import NO_NUMBER, BatchSpec, Field, divide_rows, rows_per_task

__all__ = ["BatchTasks", "PieceTasks", "Span", "Tasks"]

Span: TypeAlias = tuple[int, int]
"""Rows of a batch of one task: the first, and their number."""

Tasks: TypeAlias = "PieceTasks | BatchTasks"
"""Kind of tasks."""


class PieceTasks:
    """Tasks of some rows.

    Args:
        slots: slots of the batches.
        fields: arrays of a row at an image size.
    """

    def __init__(
        self, slots: FixedSlots, fields: Callable[[int | None], tuple[Field, ...]]
    ) -> None:
        self.slots = slots
        self._fields = fields

    def resize(self, settings: LiveSettings) -> None:
        """Do nothing: memory is allocated once, and all workers share each batch."""

    def depth(self, settings: LiveSettings) -> int:
        """Maximum number of batches in flight."""
        return settings.depth(self.slots.slots)

    def begin(self, flight: InFlightBatch, settings: LiveSettings, row_ns: float) -> list[Span]:
        """Divide a batch as computed by `rows_per_task`.

        Raises:
            SlotTooSmall: the batch is larger than a slot.
            UsageError: the batch has keys that are not indices.
        """
        batch = flight.batch
        if batch.is_sampled and NO_NUMBER in batch.samples:
            batch = flight.batch = _indexed(batch)
        flight.fields = self._fields(batch.image_size)
        if batch_bytes(flight.fields, batch.rows) > self.slots.slot_bytes:
            raise SlotTooSmall(batch_bytes(flight.fields, batch.rows))
        # One slot is with the user; the others are under way.
        ahead = settings.depth(max(1, self.slots.slots - 1))
        rows = rows_per_task(batch.rows, settings.workers, row_ns, ahead, settings.task_ns)
        return divide_rows(batch.rows, rows)

    def task(self, id: int, flight: InFlightBatch, span: Span) -> Piece:
        """Create a task of rows."""
        batch = flight.batch
        start, count = span
        return Piece(
            id=id,
            offset=self.slots.offset(flight.slot),
            slot_bytes=self.slots.slot_bytes,
            batch_rows=batch.rows,
            start=start,
            image_size=batch.image_size,
            seed=batch.seed,
            place=batch.place,
            stride=batch.stride,
            strength=batch.phase.strength,
            samples=batch.samples[start : start + count],
        )

    def done(self, flight: InFlightBatch, report: Report) -> None:
        """Do nothing: the rows are in place."""

    def again(self, span: Span, row: int, hopeless: bool) -> list[Span]:
        """The row by itself, so that nothing else is lost with it, and the other rows."""
        start, count = span
        parts = [
            (start, row - start),
            (row, 0 if hopeless else 1),
            (row + 1, start + count - row - 1),
        ]
        return [part for part in parts if part[1]]


class BatchTasks:
    """Tasks of whole batches, one each.

    Args:
        slots: slots of the batches.
        kept: number of batches a user may hold besides those in flight.
        shares_memory: workers can read and write the slots; otherwise everything is sent in
            messages.
    """

    def __init__(self, slots: GrowingSlots, *, kept: int, shares_memory: bool) -> None:
        self.slots = slots
        self._kept = kept
        self._shares_memory = shares_memory

    def resize(self, settings: LiveSettings) -> None:
        """Provide slots for the maximum in flight and for those the user holds."""
        usual, asked = self._usual(settings), settings.prefetch
        self.slots.grow(usual if asked is None else max(usual, asked + self._kept))

    def depth(self, settings: LiveSettings) -> int:
        """Maximum number of batches in flight; by default as many as slots are provided for."""
        return self._usual(settings) if settings.prefetch is None else settings.prefetch

    def _usual(self, settings: LiveSettings) -> int:
        # A batch is one worker's: more of them make more batches at a time. Where the user keeps
        # none, those that could be kept are made ahead as well.
        return settings.usual + self._kept

    def begin(self, flight: InFlightBatch, settings: LiveSettings, row_ns: float) -> list[Span]:
        """Return one span."""
        return [(0, flight.batch.rows)]

    def task(self, id: int, flight: InFlightBatch, span: Span) -> BatchTask:
        """Create a task of the whole batch."""
        batch = flight.batch
        # Pickled by this process for its own workers.
        keys = pickle.dumps(batch.dataset_keys)
        kept = len(keys) if self._shares_memory and len(keys) > MAX_KEY_BYTES else 0
        if kept:
            self.slots.write(flight.slot, keys)
        return BatchTask(
            id=id,
            slot=flight.slot,
            image_size=batch.image_size,
            seed=batch.batch_seed,
            row_seed=batch.seed,
            place=batch.place,
            stride=batch.stride,
            strength=batch.phase.strength,
            keys=b"" if kept else keys,
            kept=kept,
            memory=self.slots.memory(flight.slot),
        )

    def done(self, flight: InFlightBatch, report: Report) -> None:
        """Store the batch from the slot's memory, from new memory, or from the report.

        Raises:
            ResourceError: no room for the new memory.
        """
        flight.used, flight.shell = report.used, report.shell
        if report.memory >= 0:
            self.slots.adopt(flight.slot, _mapped(report.memory))
        elif report.data is not None:
            self.slots.put(flight.slot, report.data)

    def again(self, span: Span, row: int, hopeless: bool) -> list[Span]:
        """The whole batch, or nothing: `collate_fn` needs every sample."""
        return [] if hopeless else [span]


def _indexed(batch: BatchSpec) -> BatchSpec:
    """Batch whose keys are used as list indices, as True and False can be.

    Raises:
        UsageError: they are not indices.
    """
    try:
        samples = np.array([operator.index(key) for key in cast(Any, batch.keys)], np.int64)
    except TypeError as error:
        raise UsageError(
            f"the sampler returned {batch.keys!r} for a batch (epoch {batch.epoch + 1}, step "
            f"{batch.step + 1}), but this dataset needs integer indices"
        ) from error
    return replace(batch, samples=samples)


def _mapped(fd: int) -> Memfd:
    """Map the memory of a descriptor and take ownership of it."""
    try:
        return Memfd(fd)
    except OSError as error:  # a mapping of Python's has a descriptor of its own
        os.close(fd)
        raise ResourceError(
            f"cannot receive a batch: {error}. If this process has too many open files, raise the "
            "limit (ulimit -n), or use fewer num_workers or a smaller prefetch_factor"
        ) from error
