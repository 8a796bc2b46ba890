"""Messages between trainer and workers: tasks down, reports up.

A row task is a fixed header and sample indices, a batch task a fixed header and keys in the
source's format, a report a fixed header and, if rows failed, JSON. Longer data is sent as memory,
by its descriptor.
"""

from __future__ import annotations

import json
import struct
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError

if TYPE_CHECKING:
    from feedline.order.batch_spec import BatchSpec

__all__ = [
    "HUNG",
    "MAX_KEY_BYTES",
    "MAX_MESSAGE_BYTES",
    "BatchTask",
    "Failure",
    "Report",
    "RowTask",
    "Task",
    "error_message",
    "exit_task",
    "task_id",
]

HUNG = "WorkerHung"
"""`Failure.kind` of a row whose workers were killed because they made no progress."""

MAX_MESSAGE_BYTES = 64 * 1024
MAX_KEY_BYTES = 32 * 1024
"""Keys longer than this are sent through the slot's memory."""

# Fixed-size fields of each message, in order.
_ID = struct.Struct("<q")
_ROW_TASK = struct.Struct("<qqqiiiQqid")
_BATCH_TASK = struct.Struct("<qiiQQqidq")
_REPORT = struct.Struct("<iqqqqq")
_TEXT_CHARS = 2000


def error_message(error: BaseException) -> str:
    """Message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "(the exception's __str__ failed)"


class RowTask(NamedTuple):
    """Task: some rows of one batch.

    Args:
        id: positive, unique within a worker pool.
        samples: sample indices, shape (rows,), int64.
        offset: offset of the batch's slot in the block, in bytes.
        slot_bytes: size of the slot.
        batch_rows: rows of the whole batch, which determine the offsets of its arrays.
        start: first row of the task within the batch.
        image_size: in pixels; None if no size is set, 0 in a message.
        seed: seed of the epoch; a row's seed is mix(seed, sample).
        place, stride: if stride > 0, a row's seed is mix(seed, sample, place + row * stride), with
            the row within the batch.
        strength: augmentation strength.
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
        """Serialise to one message."""
        id, samples, offset, slot_bytes, rows, start, size, *rest = self
        head = _ROW_TASK.pack(id, offset, slot_bytes, rows, start, size or 0, *rest)
        return head + samples.tobytes()

    @classmethod
    def unpack(cls, message: bytes) -> RowTask:
        """The inverse of `pack`."""
        id, offset, slot_bytes, rows, start, size, *rest = _ROW_TASK.unpack_from(message)
        samples = np.frombuffer(message, np.int64, offset=_ROW_TASK.size)
        return cls(id, samples, offset, slot_bytes, rows, start, size or None, *rest)


class BatchTask(NamedTuple):
    """Task: a whole batch, to be packed into a slot's own memory.

    Args:
        id: positive, unique within a worker pool.
        keys: sample keys, in a form that the source understands.
        memory: descriptor of the slot's memory, -1 for none. It is sent with the message.
        slot: index of the slot; a worker caches its mapping by this number.
        image_size: in pixels; None if no size is set, 0 in a message.
        seed: seed of the batch.
        row_seed: seed of the epoch; a sample's seed follows from it as in `RowTask`,
        place, stride: likewise.
        strength: augmentation strength.
        key_bytes: bytes of keys at the head of the slot's memory instead.
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
    key_bytes: int = 0

    @classmethod
    def for_batch(
        cls,
        batch: BatchSpec,
        *,
        id: int = 0,
        keys: bytes = b"",
        memory: int = -1,
        slot: int = 0,
        key_bytes: int = 0,
    ) -> BatchTask:
        """Task of a planned batch."""
        return cls(
            id=id,
            keys=keys,
            memory=memory,
            slot=slot,
            image_size=batch.image_size,
            seed=batch.batch_seed,
            row_seed=batch.seed,
            place=batch.place,
            stride=batch.stride,
            strength=batch.phase.strength,
            key_bytes=key_bytes,
        )

    def pack(self) -> bytes:
        """Serialise to one message."""
        id, keys, _, *rest = self._replace(image_size=self.image_size or 0)
        return _BATCH_TASK.pack(id, *rest) + keys

    @classmethod
    def unpack(cls, message: bytes, memory: int = -1) -> BatchTask:
        """The inverse of `pack`; `memory` is the descriptor received with the message."""
        id, *rest = _BATCH_TASK.unpack_from(message)
        task = cls(id, message[_BATCH_TASK.size :], memory, *rest)
        return task._replace(image_size=task.image_size or None)


Task: TypeAlias = RowTask | BatchTask


def task_id(message: bytes) -> int:
    """Id of the task in a message; negative asks the worker to exit."""
    return int(_ID.unpack_from(message)[0])


def exit_task(id: int = -1) -> BatchTask:
    """Task that asks a worker to exit; its id is negative."""
    return BatchTask(id=id)


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that could not be made.

    Args:
        row: row within the batch.
        kind: class name of the exception.
        message: its message, without a hint.
        trace: the worker's traceback; empty if there is none.
        hint: how to fix it; empty if unknown.
    """

    row: int
    kind: str
    message: str
    trace: str = ""
    hint: str = ""

    @classmethod
    def of(cls, row: int, error: BaseException) -> Failure:
        """Failure of a row from its exception, with the innermost 20 frames."""
        trace = "".join(traceback.format_exception(error, limit=-20))
        if isinstance(error, FeedlineError):
            return cls(row, type(error).__name__, error.message, trace, error.advice)
        return cls(row, type(error).__name__, error_message(error), trace)


@dataclass(slots=True)
class Report:
    """Report of a finished task: worker, times (monotonic clock, ns) and failed rows.

    For a batch task: the first `used` bytes of the slot are the batch, and the last
    `structure_bytes` of these describe its structure. `memory` is a descriptor of new memory sent
    with the report, or -1; `data` is the batch if it was sent through a pipe.
    """

    worker_id: int
    id: int
    started_ns: int
    ended_ns: int
    failures: tuple[Failure, ...] = ()
    used: int = 0
    structure_bytes: int = 0
    memory: int = -1
    data: NDArray[np.uint8] | None = None

    @classmethod
    def start_failure(cls, worker_id: int, error: BaseException) -> Report:
        """Report of a worker that could not open its source; its id is 0."""
        return cls(worker_id, 0, 0, 0, (Failure.of(-1, error),))

    def pack(self) -> bytes:
        """Serialise to one message. Failure texts are shortened until they fit."""
        head = _REPORT.pack(
            self.worker_id, self.id, self.started_ns, self.ended_ns, self.used, self.structure_bytes
        )
        if not self.failures:
            return head
        room = MAX_MESSAGE_BYTES - len(head)
        for chars in (_TEXT_CHARS, 100, 0):
            rows = [
                (
                    f.row,
                    f.kind[:40],
                    f.message[:chars],
                    f.trace[-chars:] if chars > 100 else "",
                    f.hint[:chars],
                )
                for f in self.failures
            ]
            text = json.dumps(rows).encode()
            if len(text) <= room:
                break
        return head + text

    @classmethod
    def unpack(cls, message: bytes) -> Report:
        """The inverse of `pack`."""
        worker_id, id, started_ns, ended_ns, used, structure_bytes = _REPORT.unpack_from(message)
        text = message[_REPORT.size :]
        failures = tuple(Failure(*row) for row in json.loads(text)) if text else ()
        return cls(worker_id, id, started_ns, ended_ns, failures, used, structure_bytes)
