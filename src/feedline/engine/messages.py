"""What trainer and workers tell each other: a piece down, a report up.

A piece is a fixed head and its sample numbers; a report is a fixed head and, where rows failed,
JSON. Nothing is pickled. Both stay far below the size that one message may have.
"""

from __future__ import annotations

import json
import struct
import traceback
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_MESSAGE_BYTES", "Failure", "Piece", "Report", "said"]

MAX_MESSAGE_BYTES = 64 * 1024
_PIECE = struct.Struct("<qqqiiiQd")
_REPORT = struct.Struct("<iqqq")
_TEXT_CHARS = 2000


def said(error: BaseException) -> str:
    """An exception's message, also where its own class fails to give one."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """Some rows of one batch.

    Args:
        id: positive, unique within a crew.
        offset: where the batch's slot begins in the block, in bytes.
        slot_bytes: how long the slot is.
        batch_rows: rows of the whole batch; they decide where its arrays lie.
        start: the piece's first row within the batch.
        image_size: in pixels.
        seed: of the epoch; a row's seed is mix(seed, sample).
        strength: of the augmentation.
        samples: sample numbers, shape (rows,), int64. None at all asks a worker to leave.
    """

    id: int
    samples: NDArray[np.int64]
    offset: int = 0
    slot_bytes: int = 0
    batch_rows: int = 0
    start: int = 0
    image_size: int = 0
    seed: int = 0
    strength: float = 1.0

    def pack(self) -> bytes:
        """As one message."""
        head = _PIECE.pack(
            self.id,
            self.offset,
            self.slot_bytes,
            self.batch_rows,
            self.start,
            self.image_size,
            self.seed,
            self.strength,
        )
        return head + self.samples.tobytes()

    @classmethod
    def unpack(cls, message: bytes) -> Piece:
        """The inverse of `pack`."""
        values = _PIECE.unpack_from(message)
        id, offset, slot_bytes, batch_rows, start, image_size, seed, strength = values
        return cls(
            id=id,
            offset=offset,
            slot_bytes=slot_bytes,
            batch_rows=batch_rows,
            start=start,
            image_size=image_size,
            seed=seed,
            strength=strength,
            samples=np.frombuffer(message, dtype=np.int64, offset=_PIECE.size),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that could not be made.

    Args:
        row: within the batch.
        kind: the exception's class name.
        message: what it said.
        trace: the worker's traceback; empty where none exists.
    """

    row: int
    kind: str
    message: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A piece is made: by whom, when (on the monotonic clock, ns), and which rows failed."""

    seat: int
    id: int
    started_ns: int
    ended_ns: int
    failures: tuple[Failure, ...] = ()

    @classmethod
    def start_failure(cls, seat: int, error: BaseException) -> Report:
        """What a worker says that could not open its source: piece 0 stands for no piece."""
        trace = "".join(traceback.format_exception(error)[-20:])
        return cls(seat, 0, 0, 0, (Failure(-1, type(error).__name__, said(error), trace),))

    def pack(self) -> bytes:
        """As one message, shortened where many long failures would not fit."""
        head = _REPORT.pack(self.seat, self.id, self.started_ns, self.ended_ns)
        if not self.failures:
            return head
        room = MAX_MESSAGE_BYTES - len(head)
        for chars in (_TEXT_CHARS, 100, 0):
            rows = [
                (f.row, f.kind[:40], f.message[:chars], f.trace[-chars:] if chars > 100 else "")
                for f in self.failures
            ]
            text = json.dumps(rows).encode()
            if len(text) <= room:
                break
        return head + text

    @classmethod
    def unpack(cls, message: bytes) -> Report:
        """The inverse of `pack`."""
        seat, id, started_ns, ended_ns = _REPORT.unpack_from(message)
        text = message[_REPORT.size :]
        failures = tuple(Failure(*row) for row in json.loads(text)) if text else ()
        return cls(seat, id, started_ns, ended_ns, failures)
