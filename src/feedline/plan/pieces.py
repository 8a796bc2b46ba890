"""The division of a batch into pieces, the unit a worker takes.

A piece is small enough that all workers share the oldest batch and a slow image delays few
others, and large enough that a message (about 10 us) is lost in its work.
"""

from __future__ import annotations

__all__ = ["MAX_ROWS_PER_PIECE", "divide", "rows_per_piece"]

# 16 rows of full ImageNet decoding are about 20 ms of work: a message costs 0.05% of that.
MAX_ROWS_PER_PIECE = 16


def rows_per_piece(batch_size: int, workers: int) -> int:
    """Rows of a piece: at least two pieces of each batch for every worker where rows allow."""
    return max(1, min(MAX_ROWS_PER_PIECE, batch_size // (2 * max(1, workers))))


def divide(rows: int, piece_rows: int) -> list[tuple[int, int]]:
    """Split 0 .. rows into (start, count) runs of at most piece_rows, in order, near equal."""
    pieces = -(-rows // piece_rows)
    return [
        (rows * k // pieces, rows * (k + 1) // pieces - rows * k // pieces) for k in range(pieces)
    ]
