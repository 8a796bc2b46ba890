"""A worker's life on the spawn road: read a piece from its own pipe, fill it, report it.

Guarantees: it ends when its trainer ends, even in the middle of a sample, where the platform's
Python lets another thread run.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection, wait

from feedline.engine import shipment
from feedline.engine.board import PIECE, board_of
from feedline.engine.fill import fill
from feedline.engine.memory import Named
from feedline.engine.messages import Piece, Report
from feedline.engine.process import limit_threads, settle

__all__ = ["run"]


def run(pipe: Connection, block: tuple[str, int], parcel: tuple[str, int], seat: int) -> None:
    """Serve until asked to leave or until the trainer is gone.

    Args:
        pipe: pieces come, reports go.
        block: name and size in bytes of the memory for batches.
        parcel: name and size in bytes of the shipped source.
        seat: this worker's number.
    """
    settle()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    memory, shipped = Named(*block), Named(*parcel)
    line = board_of(memory.array)[seat]
    try:
        # A private copy: named memory cannot be mapped copy-on-write through Python's interface.
        source = shipment.unpack(shipped.array.copy())
        limit_threads()  # of whatever came with the source
    except BaseException as error:
        pipe.send_bytes(Report.start_failure(seat, error).pack())
        return
    try:
        while True:
            piece = Piece.unpack(pipe.recv_bytes())
            if not len(piece.samples):
                return
            line[:2] = piece.id, 0
            pipe.send_bytes(fill(piece, source, memory.array, line, seat).pack())
            line[PIECE] = 0
    except (EOFError, ConnectionError):
        return  # the trainer is gone


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
