"""Heartbeat table: the current task, row and process id of every worker, in shared memory.

Each worker writes its own line and the trainer reads it, so if a worker dies or hangs, the trainer
knows its sample. A page of stage timings for each worker follows the lines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.trace.stage_timings import PAGE_BYTES, PAGE_WORDS

__all__ = ["HEARTBEAT_BYTES", "MAX_WORKERS", "heartbeat_table", "stage_pages"]


MAX_WORKERS = 512
_WORDS = 8  # 64 bytes, one cache line per worker: no false sharing
_LINES_BYTES = MAX_WORKERS * _WORDS * 8
HEARTBEAT_BYTES = _LINES_BYTES + MAX_WORKERS * PAGE_BYTES
"""Size of the table at the head of a block; the slots follow."""

TASK, ROW, PID, SINCE, READING = range(5)
"""Columns: id of the current task (0 for none); its current row, counted from 0; process id (0
until ready); start of the row (of a whole batch: of the task), on the monotonic clock in ns; 1
while the worker reads from storage."""


def heartbeat_table(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Heartbeat table at the head of a block: shape (MAX_WORKERS, 8), int64."""
    return block[:_LINES_BYTES].view(np.int64).reshape(MAX_WORKERS, _WORDS)


def stage_pages(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Pages of stage timings: shape (MAX_WORKERS, PAGE_WORDS), int64; see `trace.stage_timings`."""
    return block[_LINES_BYTES:HEARTBEAT_BYTES].view(np.int64).reshape(MAX_WORKERS, PAGE_WORDS)
