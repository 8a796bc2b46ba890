"""The division of a batch into pieces, the unit a worker takes.

A piece is long enough that a message and the trainer's waking up for it (some 0.2 ms together,
taken from a worker where there is no idle core) are lost in its work, and short enough that all
workers share the oldest batch and a slow image delays few others. How a batch is divided changes
nothing in what it holds.
"""

from __future__ import annotations

from itertools import pairwise

__all__ = ["PIECE_NS", "divide", "rows_per_piece"]

PIECE_NS = 50_000_000
"""Usual work in a piece: 0.2 ms for its message are 0.4% of it."""

MAX_ROWS_PER_PIECE = 256
"""So that a message stays small."""


def rows_per_piece(
    batch_rows: int, workers: int, row_ns: float, batches: int = 1, piece_ns: int = PIECE_NS
) -> int:
    """Rows of a piece: about `piece_ns` of work, but few enough that all workers have some.

    Where rows are quick, a message and the waking up are what counts, so pieces are as long as
    they can be: with `batches` under way at once there is a piece for each worker and another to
    go on with even if each batch is a single piece, as long as workers are few.

    Args:
        batch_rows: rows of the batch.
        workers: how many share it.
        row_ns: how long a row takes, as measured lately, in ns.
        batches: how many like it are queued at a time.
        piece_ns: how much work a piece is to hold, in ns.
    """
    workers = max(1, workers)
    share = max(-(-batch_rows // workers), batch_rows * batches // (workers + 1))
    enough = round(piece_ns / max(1.0, row_ns))
    return max(1, min(batch_rows, share, enough, MAX_ROWS_PER_PIECE))


def divide(rows: int, piece_rows: int) -> list[tuple[int, int]]:
    """Split 0 .. rows into (start, count) runs of at most piece_rows, in order, near equal."""
    pieces = -(-rows // piece_rows)
    edges = [rows * k // pieces for k in range(pieces + 1)] if pieces else []
    return [(start, stop - start) for start, stop in pairwise(edges)]
