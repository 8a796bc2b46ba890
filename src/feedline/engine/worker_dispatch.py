"""Dispatch of a worker's messages, for all start methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import READING, pages_of
from feedline.engine.fill import fill
from feedline.engine.make_batch import SlotMemory, make_batch
from feedline.engine.messages import BatchTask, Piece, Report
from feedline.engine.process import keep_freed_memory
from feedline.engine.source import AnySource, BatchSource, Source, packs
from feedline.stores.reading import reading
from feedline.trace import is_recording_enabled
from feedline.trace.stage_timings import StagePage

__all__ = ["Work", "work_for"]

Work: TypeAlias = Callable[[bytes, int], Report]
"""Function of a message and its descriptor, -1 for none."""


def work_for(
    source: AnySource,
    block: NDArray[np.uint8],
    line: NDArray[np.int64],
    memory: SlotMemory,
    seat: int,
    workers: int,
) -> Work:
    """Start as a worker.

    Args:
        source: makes rows or batches.
        block: memory of the pool, shape (bytes,), for rows and stage timings.
        line: this worker's line of the heartbeat table.
        memory: memory for whole batches.
        seat: worker id.
        workers: number of workers.
    """
    reading.show_in(line[READING : READING + 1])
    page = StagePage(pages_of(block)[seat]) if is_recording_enabled() else None
    if not packs(source):
        rows = cast(Source, source)
        if (begin := getattr(rows, "open", None)) is not None:
            begin(seat, workers)
        return lambda message, _: fill(Piece.unpack(message), rows, block, line, seat, page)
    whole = cast(BatchSource, source)
    keep_freed_memory()
    whole.open(seat, workers)
    return lambda message, fd: make_batch(
        BatchTask.unpack(message, fd), whole, memory, line, seat, page
    )
