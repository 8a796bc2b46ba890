"""What trainer and workers tell each other: a piece down, a report up.

A piece is a fixed head and its sample numbers; an order, for a whole batch, is a fixed head and
keys that only the source understands; a report is a fixed head and, where rows failed, JSON. All
stay far below the size that one message may have: what is longer goes through memory.
"""

from __future__ import annotations

import json
import struct
import traceback
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_KEY_BYTES",
    "MAX_MESSAGE_BYTES",
    "BatchTask",
    "Failure",
    "Piece",
    "Report",
    "Task",
    "leave",
    "said",
    "task_id",
]

MAX_MESSAGE_BYTES = 64 * 1024
MAX_KEY_BYTES = 32 * 1024
"""Keys beyond this go through the slot's memory."""

_ID = struct.Struct("<q")
_PIECE = struct.Struct("<qqqiiiQd?")
_ORDER = struct.Struct("<qiiQQ?dqq")
_REPORT = struct.Struct("<iqqqqq")
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
        image_size: in pixels; None where none was asked for, 0 in a message.
        seed: of the epoch; a row's seed is mix(seed, sample),
        by_place: and where a sample may come twice, mix(seed, sample, row).
        strength: of the augmentation.
        samples: sample numbers, shape (rows,), int64.
    """

    id: int
    samples: NDArray[np.int64]
    offset: int = 0
    slot_bytes: int = 0
    batch_rows: int = 0
    start: int = 0
    image_size: int | None = None
    seed: int = 0
    by_place: bool = False
    strength: float = 1.0

    def pack(self) -> bytes:
        """As one message."""
        head = _PIECE.pack(
            self.id,
            self.offset,
            self.slot_bytes,
            self.batch_rows,
            self.start,
            self.image_size or 0,
            self.seed,
            self.strength,
            self.by_place,
        )
        return head + self.samples.tobytes()

    @classmethod
    def unpack(cls, message: bytes) -> Piece:
        """The inverse of `pack`."""
        values = _PIECE.unpack_from(message)
        id, offset, slot_bytes, batch_rows, start, image_size, seed, strength, by_place = values
        return cls(
            id=id,
            offset=offset,
            slot_bytes=slot_bytes,
            batch_rows=batch_rows,
            start=start,
            image_size=image_size or None,
            seed=seed,
            by_place=by_place,
            strength=strength,
            samples=np.frombuffer(message, dtype=np.int64, offset=_PIECE.size),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchTask:
    """A whole batch, to be packed into a slot's own memory.

    Args:
        id: positive, unique within a crew.
        slot: whose memory it is; a worker keeps what it has mapped by this number.
        image_size: in pixels; None where none was asked for, 0 in a message.
        seed: of the batch.
        row_seed: of the epoch; a sample's seed follows from it as a row's does, see `Piece`,
        by_place: and where a sample may come twice, from its place in the batch as well.
        strength: of the augmentation.
        keys: which samples, in a form that the source understands.
        kept: how many bytes of keys lie at the head of the slot's memory instead.
        memory_bytes: the size of the slot's memory; 0 where it has none.
        memory: its descriptor here, which goes along; -1 for none. Not part of the message.
    """

    id: int
    slot: int = 0
    image_size: int | None = None
    seed: int = 0
    row_seed: int = 0
    by_place: bool = False
    strength: float = 1.0
    keys: bytes = b""
    kept: int = 0
    memory_bytes: int = 0
    memory: int = -1

    def pack(self) -> bytes:
        """As one message."""
        head = _ORDER.pack(
            self.id,
            self.slot,
            self.image_size or 0,
            self.seed,
            self.row_seed,
            self.by_place,
            self.strength,
            self.kept,
            self.memory_bytes,
        )
        return head + self.keys

    @classmethod
    def unpack(cls, message: bytes) -> BatchTask:
        """The inverse of `pack`."""
        values = _ORDER.unpack_from(message)
        id, slot, image_size, seed, row_seed, by_place, strength, kept, memory_bytes = values
        return cls(
            id=id,
            slot=slot,
            image_size=image_size or None,
            seed=seed,
            row_seed=row_seed,
            by_place=by_place,
            strength=strength,
            keys=message[_ORDER.size :],
            kept=kept,
            memory_bytes=memory_bytes,
        )


Task: TypeAlias = Piece | BatchTask


def task_id(message: bytes) -> int:
    """The id of the piece or order in a message; negative asks the worker to leave."""
    id: int = _ID.unpack_from(message)[0]
    return id


def leave(id: int = -1) -> BatchTask:
    """What asks a worker to leave; ids of such tasks are negative."""
    return BatchTask(id=id)


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


@dataclass(slots=True)
class Report:
    """A task is done: by whom, when (on the monotonic clock, ns), and which rows failed.

    For an order also: `used` bytes of the slot's memory hold the batch, the last `shell` of them
    how it is put together; `memory` is a descriptor of new memory that came along, -1 for none,
    and `data` the batch itself where it came by a pipe.
    """

    seat: int
    id: int
    started_ns: int
    ended_ns: int
    failures: tuple[Failure, ...] = ()
    used: int = 0
    shell: int = 0
    memory: int = -1
    data: NDArray[np.uint8] | None = None

    @classmethod
    def start_failure(cls, seat: int, error: BaseException) -> Report:
        """What a worker says that could not open its source: piece 0 stands for no piece."""
        trace = "".join(traceback.format_exception(error)[-20:])
        return cls(seat, 0, 0, 0, (Failure(-1, type(error).__name__, said(error), trace),))

    def pack(self) -> bytes:
        """As one message, shortened where many long failures would not fit."""
        head = _REPORT.pack(
            self.seat, self.id, self.started_ns, self.ended_ns, self.used, self.shell
        )
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
        seat, id, started_ns, ended_ns, used, shell = _REPORT.unpack_from(message)
        text = message[_REPORT.size :]
        failures = tuple(Failure(*row) for row in json.loads(text)) if text else ()
        return cls(seat, id, started_ns, ended_ns, failures, used, shell)
