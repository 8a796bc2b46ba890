"""What workers are asked for: pieces of rows, or whole batches.

The feed queues and counts tasks; what a task is, and what its end means for a batch, is said
here. `PieceTasks` are for a `Source` of rows, `BatchTasks` for a `BatchSource`. Both have the same
methods: `resize` gets the slots ready for other settings, and `depth` says how many batches may be
under way with them; `begin` divides a new flight into spans, `task` is what is sent to a worker for
a span, `done` takes what a report says besides its failures, and `again` is what to ask for after a
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
from feedline.plan.batches import NO_NUMBER, Batch
from feedline.plan.pieces import divide, rows_per_piece
from feedline.plan.row import Field

__all__ = ["BatchTasks", "PieceTasks", "Span", "Tasks"]

Span: TypeAlias = tuple[int, int]
"""Rows of a batch that one task is for: the first, and how many."""

Tasks: TypeAlias = "PieceTasks | BatchTasks"
"""How batches are asked for."""


class PieceTasks:
    """Pieces of rows.

    Args:
        slots: where they are made.
        fields: the arrays of a row at an image size.
    """

    def __init__(
        self, slots: FixedSlots, fields: Callable[[int | None], tuple[Field, ...]]
    ) -> None:
        self.slots = slots
        self._fields = fields

    def resize(self, settings: LiveSettings) -> None:
        """The slots stay: their memory is allocated once, and all workers share each batch."""

    def depth(self, settings: LiveSettings) -> int:
        """How many batches may be under way."""
        return settings.depth(self.slots.slots)

    def begin(self, flight: InFlightBatch, settings: LiveSettings, row_ns: float) -> list[Span]:
        """As many pieces as `rows_per_piece` finds right.

        Raises:
            SlotTooSmall: the batch is larger than a slot.
            UsageError: the batch has other keys than numbers.
        """
        batch = flight.batch
        if batch.drawn and NO_NUMBER in batch.samples:
            batch = flight.batch = _indexed(batch)
        flight.fields = self._fields(batch.image_size)
        if batch_bytes(flight.fields, batch.rows) > self.slots.slot_bytes:
            raise SlotTooSmall(batch_bytes(flight.fields, batch.rows))
        # One slot is with the user; the others are under way.
        ahead = settings.depth(max(1, self.slots.slots - 1))
        rows = rows_per_piece(batch.rows, settings.workers, row_ns, ahead, settings.piece_ns)
        return divide(batch.rows, rows)

    def task(self, id: int, flight: InFlightBatch, span: Span) -> Piece:
        """A piece."""
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
        """The rows lie where they belong."""

    def again(self, span: Span, row: int, hopeless: bool) -> list[Span]:
        """The row by itself, so that nothing else dies with it, and the rest apart."""
        start, count = span
        parts = [
            (start, row - start),
            (row, 0 if hopeless else 1),
            (row + 1, start + count - row - 1),
        ]
        return [part for part in parts if part[1]]


class BatchTasks:
    """Whole batches, one task for each.

    Args:
        slots: where they are made.
        kept: how many batches a user may hold besides those that are under way.
        shares_memory: whether workers can read and write them; else all goes by messages.
    """

    def __init__(self, slots: GrowingSlots, *, kept: int, shares_memory: bool) -> None:
        self.slots = slots
        self._kept = kept
        self._shares_memory = shares_memory

    def resize(self, settings: LiveSettings) -> None:
        """Have slots for as many batches as may be under way, and for those that are kept."""
        usual, asked = self._usual(settings), settings.prefetch
        self.slots.grow(usual if asked is None else max(usual, asked + self._kept))

    def depth(self, settings: LiveSettings) -> int:
        """How many batches may be under way: by default as many as that takes slots for."""
        return self._usual(settings) if settings.prefetch is None else settings.prefetch

    def _usual(self, settings: LiveSettings) -> int:
        # A batch is one worker's: more of them make more batches at a time. Where the user keeps
        # none, those that could be kept are made ahead as well.
        return settings.usual + self._kept

    def begin(self, flight: InFlightBatch, settings: LiveSettings, row_ns: float) -> list[Span]:
        """One."""
        return [(0, flight.batch.rows)]

    def task(self, id: int, flight: InFlightBatch, span: Span) -> BatchTask:
        """The whole batch."""
        batch = flight.batch
        # Pickled by this process for its own workers.
        keys = pickle.dumps(batch.asked)
        kept = len(keys) if self._shares_memory and len(keys) > MAX_KEY_BYTES else 0
        if kept:
            self.slots.write(flight.slot, keys)
        return BatchTask(
            id=id,
            slot=flight.slot,
            image_size=batch.image_size,
            seed=batch.whole_seed,
            row_seed=batch.seed,
            place=batch.place,
            stride=batch.stride,
            strength=batch.phase.strength,
            keys=b"" if kept else keys,
            kept=kept,
            memory=self.slots.memory(flight.slot),
        )

    def done(self, flight: InFlightBatch, report: Report) -> None:
        """The batch is in the slot's memory, in new memory, or in the report.

        Raises:
            ResourceError: there is no room for the new memory.
        """
        flight.used, flight.shell = report.used, report.shell
        if report.memory >= 0:
            self.slots.adopt(flight.slot, _mapped(report.memory))
        elif report.data is not None:
            self.slots.put(flight.slot, report.data)

    def again(self, span: Span, row: int, hopeless: bool) -> list[Span]:
        """All of it, or nothing: who collates wants every sample."""
        return [] if hopeless else [span]


def _indexed(batch: Batch) -> Batch:
    """A batch whose keys are used as indices of a list, as True and False can be.

    Raises:
        UsageError: they are no indices.
    """
    try:
        samples = np.array([operator.index(key) for key in cast(Any, batch.keys)], np.int64)
    except TypeError as error:
        raise UsageError(
            f"the sampler gave {batch.keys!r} for a batch (epoch {batch.epoch}, step "
            f"{batch.step}), and this dataset has samples by whole numbers; let the sampler "
            "give indices"
        ) from error
    return replace(batch, samples=samples)


def _mapped(fd: int) -> Memfd:
    """The memory behind a descriptor, which is taken over."""
    try:
        return Memfd(fd)
    except OSError as error:  # a mapping of Python's has a descriptor of its own
        os.close(fd)
        raise ResourceError(
            f"a batch cannot be taken: {error}. If this process has no file descriptors left, "
            "raise the limit (ulimit -n), or use fewer num_workers or a smaller prefetch_factor"
        ) from error
