"""Division of a batch into tasks (rows `start:stop`) for the workers.

A task is long enough that its message and waking up the trainer for it (0.2 ms together, taken
from a worker if no core is idle) are negligible, and short enough that all workers share the oldest
batch and a slow image delays few others. The division does not change the contents of a batch.
"""

from __future__ import annotations

from itertools import pairwise

__all__ = ["PIECE_NS", "divide", "rows_per_piece"]

PIECE_NS = 50_000_000
"""Default work per task: the 0.2 ms for its message are 0.4% of it."""

MAX_ROWS_PER_PIECE = 256
"""Upper limit of rows per task, which keeps messages small."""


def rows_per_piece(
    batch_rows: int, workers: int, row_ns: float, batches: int = 1, piece_ns: int = PIECE_NS
) -> int:
    """Rows of a task: about `piece_ns` of work, but few enough that every worker has some.

    If rows are quick, messages and waking up dominate, so tasks are as long as possible: with
    `batches` in flight every worker has a task and a queued one even if each batch is a single
    task, as long as there are few workers.

    Args:
        batch_rows: rows of the batch.
        workers: number of workers.
        row_ns: time per row, as measured recently, in ns.
        batches: number of similar batches in the queue.
        piece_ns: target work per task, in ns.
    """
    workers = max(1, workers)
    share = max(-(-batch_rows // workers), batch_rows * batches // (workers + 1))
    enough = round(piece_ns / max(1.0, row_ns))
    return max(1, min(batch_rows, share, enough, MAX_ROWS_PER_PIECE))


def divide(rows: int, piece_rows: int) -> list[tuple[int, int]]:
    """Split rows 0 .. rows into (start, count) runs of at most piece_rows, nearly equal."""
    pieces = -(-rows // piece_rows)
    edges = [rows * k // pieces for k in range(pieces + 1)] if pieces else []
    return [(start, stop - start) for start, stop in pairwise(edges)]
