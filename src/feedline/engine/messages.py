"""What trainer and workers tell each other: a piece down, a report up.

A piece is a fixed head and its sample numbers; a batch task is a fixed head and keys that only the
source understands; a report is a fixed head and, where rows failed, JSON. All stay far below the
size that one message may have: what is longer goes through memory, whose descriptor is sent along.
"""

from __future__ import annotations

import array
import json
import socket
import struct
import traceback
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.errors import ResourceError

__all__ = [
    "HUNG",
    "MAX_KEY_BYTES",
    "MAX_MESSAGE_BYTES",
    "BatchTask",
    "Failure",
    "Piece",
    "Report",
    "Task",
    "leave",
    "receive",
    "said",
    "send",
    "task_id",
]

HUNG = "WorkerHung"
"""`Failure.kind` of a row whose workers were killed as they made no progress."""

MAX_MESSAGE_BYTES = 64 * 1024
MAX_KEY_BYTES = 32 * 1024
"""Keys beyond this go through the slot's memory."""

# The fields in their order, without what has a length of its own.
_ID = struct.Struct("<q")
_PIECE = struct.Struct("<qqqiiiQqid")
_BATCH_TASK = struct.Struct("<qiiQQqidq")
_REPORT = struct.Struct("<iqqqqq")
_TEXT_CHARS = 2000
_FD_BYTES = array.array("i").itemsize
# For `send` and `receive`, which only Linux calls: other platforms lack some of these names.
_FD_ROOM_BYTES = socket.CMSG_LEN(_FD_BYTES) if hasattr(socket, "CMSG_LEN") else 0
# Plain numbers: Python's enums take microseconds to be joined.
_AT_ONCE = int(getattr(socket, "MSG_DONTWAIT", 0))
_RECEIVE = _AT_ONCE | int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))


def said(error: BaseException) -> str:
    """An exception's message, also where its own class fails to give one."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"


class Piece(NamedTuple):
    """Some rows of one batch.

    Args:
        id: positive, unique within a crew.
        samples: sample numbers, shape (rows,), int64.
        offset: where the batch's slot begins in the block, in bytes.
        slot_bytes: how long the slot is.
        batch_rows: rows of the whole batch; they decide where its arrays lie.
        start: the piece's first row within the batch.
        image_size: in pixels; None where none was asked for, 0 in a message.
        seed: of the epoch; a row's seed is mix(seed, sample),
        place, stride: or, with a stride above 0, mix(seed, sample, place + row * stride), by its
            row within the batch.
        strength: of the augmentation.
    """

    id: int
    samples: NDArray[np.int64]
    offset: int = 0
    slot_bytes: int = 0
    batch_rows: int = 0
    start: int = 0
    image_size: int | None = None
    seed: int = 0
    place: int = 0
    stride: int = 0
    strength: float = 1.0

    def pack(self) -> bytes:
        """As one message."""
        id, samples, offset, slot_bytes, rows, start, size, *rest = self
        head = _PIECE.pack(id, offset, slot_bytes, rows, start, size or 0, *rest)
        return head + samples.tobytes()

    @classmethod
    def unpack(cls, message: bytes) -> Piece:
        """The inverse of `pack`."""
        id, offset, slot_bytes, rows, start, size, *rest = _PIECE.unpack_from(message)
        samples = np.frombuffer(message, np.int64, offset=_PIECE.size)
        return cls(id, samples, offset, slot_bytes, rows, start, size or None, *rest)


class BatchTask(NamedTuple):
    """A whole batch, to be packed into a slot's own memory.

    Args:
        id: positive, unique within a crew.
        keys: which samples, in a form that the source understands.
        memory: the descriptor of the slot's memory, -1 for none. It goes along with the message.
        slot: whose memory it is; a worker keeps what it has mapped by this number.
        image_size: in pixels; None where none was asked for, 0 in a message.
        seed: of the batch.
        row_seed: of the epoch; a sample's seed follows from it as a row's does, see `Piece`,
        place, stride: likewise.
        strength: of the augmentation.
        kept: how many bytes of keys lie at the head of the slot's memory instead.
    """

    id: int
    keys: bytes = b""
    memory: int = -1
    slot: int = 0
    image_size: int | None = None
    seed: int = 0
    row_seed: int = 0
    place: int = 0
    stride: int = 0
    strength: float = 1.0
    kept: int = 0

    def pack(self) -> bytes:
        """As one message."""
        id, keys, _, *rest = self._replace(image_size=self.image_size or 0)
        return _BATCH_TASK.pack(id, *rest) + keys

    @classmethod
    def unpack(cls, message: bytes, memory: int = -1) -> BatchTask:
        """The inverse of `pack`; `memory` is the descriptor that came along."""
        id, *rest = _BATCH_TASK.unpack_from(message)
        task = cls(id, message[_BATCH_TASK.size :], memory, *rest)
        return task._replace(image_size=task.image_size or None)


Task: TypeAlias = Piece | BatchTask


def task_id(message: bytes) -> int:
    """The id of the task in a message; negative asks the worker to leave."""
    return int(_ID.unpack_from(message)[0])


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

    @classmethod
    def of(cls, row: int, error: BaseException) -> Failure:
        """What was raised for a row, with the innermost 20 frames."""
        trace = "".join(traceback.format_exception(error, limit=-20))
        return cls(row, type(error).__name__, said(error), trace)


@dataclass(slots=True)
class Report:
    """A task is done: by whom, when (on the monotonic clock, ns), and which rows failed.

    For a batch task also: `used` bytes of the slot's memory hold the batch, the last `shell` of
    them how it is put together; `memory` is a descriptor of new memory that came along, -1 for
    none, and `data` the batch itself where it came by a pipe.
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
        """What a worker says that could not open its source: id 0 stands for no task."""
        return cls(seat, 0, 0, 0, (Failure.of(-1, error),))

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


def send(connection: socket.socket, message: bytes, fd: int = -1, *, wait: bool) -> None:
    """Send a message, and a descriptor along with it unless it is -1.

    Python's `socket.send_fds` and `recv_fds` do the same but ignore the flags they are given.

    Raises:
        BlockingIOError: there is no room now, and it was not to `wait` for some.
    """
    flags = 0 if wait else _AT_ONCE
    if fd < 0:
        connection.send(message, flags)
    else:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        connection.sendmsg([message], [rights], flags)


def receive(connection: socket.socket, max_bytes: int) -> tuple[bytes, int]:
    """A message, empty at the end, and the descriptor that came along, -1 for none. Never waits.

    Raises:
        BlockingIOError: there is no message now.
        ResourceError: this process has no room for the descriptor; the kernel has closed it.
    """
    message, extras, flags, _ = connection.recvmsg(max_bytes, _FD_ROOM_BYTES, _RECEIVE)
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            return message, array.array("i", data[:_FD_BYTES])[0]
    if flags & socket.MSG_CTRUNC:
        raise ResourceError(
            "this process has no file descriptors left for batches; raise the limit (ulimit -n) or "
            "use fewer num_workers or a smaller prefetch_factor"
        )
    return message, -1
