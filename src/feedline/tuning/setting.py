"""What is tried: how many workers, how far ahead they work, and in pieces of which size."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Setting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A loader's settings that change how fast batches come, and nothing in them.

    Args:
        workers: processes, at least 1.
        prefetch: batches made ahead: of rows by all workers together, else by each of them, as
            torch's `prefetch_factor`.
        piece_ms: work in a piece, in milliseconds; None where whole batches are made.
        pin: batches are copied into page-locked memory; None where that is not for trying.
    """

    workers: int
    prefetch: int
    piece_ms: float | None = None
    pin: bool | None = None
