"""A worker's work: fill the rows of one task. The same code in a worker and in the trainer.

Guarantees: every row of the task is tried; a failed row is always reported; nothing outside the
task's rows is written.
"""

from __future__ import annotations

import contextlib
import time

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import ROW, SINCE
from feedline.engine.layout import arrays
from feedline.engine.messages import Failure, Piece, Report
from feedline.engine.source import Source
from feedline.order.batch_spec import Item
from feedline.order.seeds import extend, mix
from feedline.stores.reading import reading
from feedline.trace import stage_timer
from feedline.trace.stage_timings import StagePage

__all__ = ["fill"]


def fill(
    piece: Piece,
    source: Source,
    block: NDArray[np.uint8],
    line: NDArray[np.int64],
    seat: int,
    page: StagePage | None = None,
) -> Report:
    """Make the rows of `piece` in `block`.

    Args:
        piece: task: what to make and where.
        source: makes the rows.
        block: shared memory, shape (bytes,).
        line: this worker's line of the heartbeat table; its row is updated.
        seat: worker id, for the report.
        page: page for stage timings; None if they are not recorded.
    """
    noted = stage_timer.begin_task(page)
    try:
        return _filled(piece, source, block, line, seat, stage_timer.each_sample)
    finally:
        if noted:
            stage_timer.end_task()


def _filled(
    piece: Piece,
    source: Source,
    block: NDArray[np.uint8],
    line: NDArray[np.int64],
    seat: int,
    each: bool,
) -> Report:
    samples = piece.samples.tolist()
    if (prepare := getattr(source, "prepare", None)) is not None:
        with reading, contextlib.suppress(Exception):
            prepare(samples, piece.image_size)
        stage_timer.end_stage("fetch")
    # To wait for another machine is no work: pieces that wait long must not become shorter for it.
    started_ns = time.monotonic_ns()
    failures: list[Failure] = []
    slot = block[piece.offset : piece.offset + piece.slot_bytes]
    views = arrays(slot, source.fields(piece.image_size), piece.batch_rows)
    seed = mix(piece.seed)
    clock, before_ns, slow_ns = time.monotonic_ns, started_ns, 0
    for k, sample in enumerate(samples):
        line[SINCE] = clock()
        line[ROW] = k
        row = piece.start + k
        own = extend(seed, sample)
        if piece.stride:
            own = extend(own, piece.place + row * piece.stride)
        item = Item(sample, piece.image_size, own, piece.strength)
        try:
            source.load(item, tuple([view[row, ...] for view in views]))
        except (Exception, SystemExit) as error:
            failures.append(Failure.of(row, error))
        if each:  # by hand, as for small rows a call is felt
            now_ns = clock()
            if now_ns - before_ns > slow_ns or stage_timer.timed:
                slow_ns = stage_timer.note_sample(sample, now_ns - before_ns)
            before_ns = now_ns
    return Report(seat, piece.id, started_ns, time.monotonic_ns(), tuple(failures))
