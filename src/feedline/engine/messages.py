"""Messages between trainer and workers: tasks down, reports up, and the heartbeat table.

Messages are pickled, because both ends are processes of one loader; a task's id precedes its
fields. Longer data is sent as memory, by its descriptor or name.

The heartbeat table has the current task, row and process id of every worker, in shared memory. Each
worker writes its own line and the trainer reads it, so if a worker dies or hangs, the trainer knows
its sample. The trainer writes one column, which asks a worker to exit. A page of stage timings for
each worker follows the lines.
"""

from __future__ import annotations

import pickle
import struct
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.engine.transform_errors import describe_code_error
from feedline.errors import FeedlineError
from feedline.sources.files import is_storage_failure
from feedline.throughput.step_model import MAX_WORKERS
from feedline.timing.stage_page import PAGE_BYTES, PAGE_WORDS

if TYPE_CHECKING:
    from feedline.engine.shared_memory import SharedFile
    from feedline.order.batch_spec import BatchSpec

_WORDS = 8  # 64 bytes, one cache line per worker: no false sharing
_HEARTBEAT_BYTES = MAX_WORKERS * _WORDS * 8
BLOCK_HEADER_BYTES = _HEARTBEAT_BYTES + MAX_WORKERS * PAGE_BYTES
"""Size of the table at the head of a block; the slots follow."""

TASK, ROW, PID, READY, SINCE, READING, EXIT = range(7)
"""Columns: id of the current task (0 for none); its current row, counted from 0, or -1 while
the task is prepared; process id (0 until it runs); 1 once the source is open; start of the row (of
a whole batch: of the task), on the monotonic clock in ns; 1 while the worker reads from storage; 1
if it is to exit."""


def heartbeat_table(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Heartbeat table at the head of a block: shape (MAX_WORKERS, 8), int64."""
    return block[:_HEARTBEAT_BYTES].view(np.int64).reshape(MAX_WORKERS, _WORDS)


def stage_pages(block: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Pages of stage timings: shape (MAX_WORKERS, PAGE_WORDS), int64; see `trace.stage_timings`."""
    return (
        block[_HEARTBEAT_BYTES:BLOCK_HEADER_BYTES].view(np.int64).reshape(MAX_WORKERS, PAGE_WORDS)
    )


def start_task(line: NDArray[np.int64], task_id: int) -> None:
    """Note a task on its worker's line."""
    line[SINCE] = time.monotonic_ns()
    line[ROW] = -1  # before the id: a worker killed in between must not name a row of its last task
    line[TASK] = task_id


HUNG = "WorkerHung"
"""`Failure.kind` of a row whose workers were killed because they made no progress."""

MAX_MESSAGE_BYTES = 64 * 1024
"""A longer task is sent as memory."""

_ID = struct.Struct("<q")
ID_BYTES = _ID.size
_TEXT_CHARS = 2000


def error_message(error: BaseException) -> str:
    """Message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "(the exception's __str__ failed)"


class RowTask(NamedTuple):
    """Task: some rows of one batch."""

    id: int  # positive, unique within a worker pool
    samples: NDArray[np.int64]  # sample indices, shape (rows,)
    offset: int = 0  # of the batch's slot in the block, in bytes
    slot_bytes: int = 0
    batch_rows: int = 0  # rows of the whole batch, which determine the offsets of its arrays
    start: int = 0  # first row of the task within the batch
    image_size: int | None = None  # in pixels; None if no size is set
    seed: int = 0  # of the epoch
    first_position: int = 0  # and `stride`: see `order.seeds.row_seed`
    stride: int = 0
    strength: float = 1.0  # of augmentation

    def pack(self) -> bytes:
        """Serialise to one message."""
        return _ID.pack(self.id) + pickle.dumps((self.samples.tobytes(), self[2:]))

    @classmethod
    def unpack(cls, message: bytes) -> RowTask:
        """The inverse of `pack`."""
        samples, rest = pickle.loads(memoryview(message)[ID_BYTES:])
        return cls(read_task_id(message), np.frombuffer(samples, np.int64), *rest)


class BatchTask(NamedTuple):
    """Task: a whole batch, to be packed into a slot's own memory."""

    id: int  # positive, unique within a worker pool
    keys: bytes = b""  # sample keys, in a form that the source understands
    memory: int = -1  # descriptor of the slot's memory, -1 for none; sent with the message
    slot: int = 0  # a worker caches its mapping by this number
    image_size: int | None = None  # in pixels; None if no size is set
    seed: int = 0  # of the batch
    row_seed: int = 0  # of the epoch
    first_position: int = 0  # and `stride`: see `order.seeds.row_seed`
    stride: int = 0
    strength: float = 1.0  # of augmentation
    skipped_rows: tuple[tuple[int, str], ...] = ()  # rows that must not be made, with the reasons
    dataset_changes: bytes = b""  # pickled changes of the dataset since the workers' payload

    @classmethod
    def for_batch(cls, batch: BatchSpec, seed: int) -> BatchTask:
        """Task of a planned batch with its seed, without id, keys and slot."""
        first, stride, strength = batch.first_position, batch.stride, batch.phase.strength
        return cls(0, b"", -1, 0, batch.image_size, seed, batch.seed, first, stride, strength)

    def pack(self) -> bytes:
        """Serialise to one message."""
        return _ID.pack(self.id) + pickle.dumps((self.keys, self[3:]))

    @classmethod
    def unpack(cls, message: bytes, memory: int = -1) -> BatchTask:
        """The inverse of `pack`; `memory` is the descriptor received with the message."""
        keys, rest = pickle.loads(memoryview(message)[ID_BYTES:])
        return cls(read_task_id(message), keys, memory, *rest)


Task: TypeAlias = RowTask | BatchTask


def read_task_id(message: bytes) -> int:
    """Id of the task in a message."""
    return int(_ID.unpack_from(message)[0])


class SkippedSample(NamedTuple):
    """A sample left out of a batch (`on_error="skip"`)."""

    row: int  # within the batch
    name: str
    reason: str
    is_code_error: bool = False  # a transform or other code failed, and its file is fine


class Failure(NamedTuple):
    """A row that could not be made."""

    row: int  # within the batch
    kind: str  # class name of the exception
    message: str  # without a hint
    trace: str = ""  # the worker's traceback
    hint: str = ""  # how to fix it
    is_storage: bool = False  # the storage failed, which proves nothing about the sample
    is_code_error: bool = False  # a transform or other code failed, as `hint` describes

    @classmethod
    def of(cls, row: int, error: BaseException) -> Failure:
        """Failure of a row from its exception, with the innermost 20 frames."""
        trace = "".join(traceback.format_exception(error, limit=-20))
        kind, is_storage = type(error).__name__, is_storage_failure(error)
        if isinstance(error, FeedlineError):
            return cls(row, kind, error.message, trace, error.advice, is_storage)
        hint = describe_code_error(error)
        return cls(row, kind, error_message(error), trace, hint, is_storage, bool(hint))

    def shortened(self, chars: int) -> Failure:
        """Failure with texts of at most this length; without traceback if it is 100 or less."""
        trace = self.trace[-chars:] if chars > 100 else ""
        return self._replace(
            kind=self.kind[:40],
            message=self.message[:chars],
            trace=trace,
            hint=self.hint[:chars],
        )


@dataclass(slots=True)
class Report:
    """Report of a finished task. Times are of the monotonic clock."""

    worker_id: int
    id: int  # of the task; 0 if the worker could not open its source
    started_ns: int
    ended_ns: int
    failures: tuple[Failure, ...] = ()
    used: int = 0  # bytes of the slot used by a whole batch
    structure_bytes: int = 0  # bytes at their end that describe its structure
    memory: SharedFile | None = None  # new memory of the slot; its descriptor is sent as well
    data: NDArray[np.uint8] | None = None  # the batch, if it was sent through a pipe

    def pack(self) -> bytes:
        """Serialise to one message. Failure texts are shortened until they fit."""
        times = self.started_ns, self.ended_ns
        for chars in (_TEXT_CHARS, 100, 0):
            failures = tuple([failure.shortened(chars) for failure in self.failures])
            sizes = self.used, self.structure_bytes
            message = pickle.dumps((self.worker_id, self.id, *times, failures, *sizes))
            if len(message) <= MAX_MESSAGE_BYTES:
                break
        return message

    @classmethod
    def unpack(cls, message: bytes) -> Report:
        """The inverse of `pack`."""
        return cls(*pickle.loads(message))
