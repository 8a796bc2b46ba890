"""The workers as a set: what the feed asks of them, whatever their start method.

Three crews keep this protocol:
    SocketCrew   fork server, one SEQPACKET socket, memfd: Linux, the default there
    PipeCrew     spawn, a pipe for each worker, named shared memory: everywhere
    InlineCrew   no process at all: num_workers=0

Guarantees, of each: a task, be it a piece or a whole batch, that was submitted comes
back exactly once, in a `Report`, in the `lost` of a `Death`, or from `recall`. A dead worker is
replaced by the crew itself, and its death logged.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.engine.board import MAX_SEATS, PID, PIECE, READING, ROW, SINCE, board_of
from feedline.engine.memory import Memfd, Named
from feedline.engine.messages import Report, Task
from feedline.errors import ClosedError, StartError, UsageError, WorkerError

__all__ = ["MAX_FRUITLESS_DEATHS", "UNGUARDED", "Crew", "CurrentRow", "Death", "ProcessCrew"]

MAX_FRUITLESS_DEATHS = 8
"""Workers that end one after another, before any has finished anything, until this is an error."""

UNGUARDED = (
    "your script builds a loader with workers when it is imported, and workers import it: put "
    'that code under `if __name__ == "__main__":`'
)

_log = logging.getLogger("feedline")


@dataclass(frozen=True, slots=True)
class Death:
    """A worker died.

    Args:
        how: what ended it, for a message, e.g. "DataLoader worker (pid 7) is killed by signal:
            SIGKILL".
        lost: ids of the pieces it held, not made.
        piece: the one of them that it was working on; 0 where none is to blame.
        row: the row of that piece that it was on, counted from 0.
        hung: `kill` was called.
    """

    how: str
    lost: tuple[int, ...] = ()
    piece: int = 0
    row: int = 0
    hung: bool = False


class CurrentRow(NamedTuple):
    """The row that a worker is on.

    Args:
        piece: id of its task.
        row: counted from 0 within the task.
        since_ns: when it was begun (of a whole batch: the task), on the monotonic clock.
        pid: of the worker.
    """

    piece: int
    row: int
    since_ns: int = 0
    pid: int = 0


class Crew(Protocol):
    """A set of workers that fill pieces in one block of memory."""

    shares_memory: bool
    """Whether workers can be handed memory by its descriptor."""

    advice: str
    """A sentence for errors about workers that hang; empty if nothing is known to be wrong."""

    @property
    def block(self) -> NDArray[np.uint8]:
        """The shared memory, shape (bytes,); its head is the board."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""

    def resize(self, workers: int) -> None:
        """Grow or shrink to so many workers. Those that leave finish their piece first."""

    def submit(self, task: Task) -> bool:
        """Queue a task; False where there is no room now. Never blocks."""

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """What has happened; blocks until something has, or for `timeout_s` at most."""

    def recall(self) -> list[int]:
        """Take back the pieces that no worker has begun; their ids."""

    def busy(self) -> dict[int, CurrentRow]:
        """Workers that are at a task, by seat."""

    def idle(self) -> set[int]:
        """Seats of the workers that are ready for a task and have none."""

    def waits_for_storage(self, seat: int) -> bool:
        """True if a worker is inside a read of its store, or in the kernel's disk sleep."""

    def kill(self, seat: int, why: str) -> None:
        """Kill a worker; its `Death` will say why."""

    def restart(self) -> None:
        """Replace all workers at once and forget all tasks: for a trainer that lost count."""

    def close(self) -> None:
        """End all workers and free all they used. No process is left when this returns."""


class ProcessCrew:
    """A crew whose workers are processes, one on each seat that is taken.

    Args:
        memory: for the board and all slots.
    """

    advice = ""

    _workers: Mapping[int, object]
    """The workers that live or are being started, by seat."""

    def __init__(self, memory: Memfd | Named) -> None:
        self._memory = memory
        self._board = board_of(memory.array)
        self._target = 0
        self._closing = False
        self._killed: dict[int, str] = {}  # by seat: why
        self._fruitless_deaths = 0  # since a worker has finished anything

    @property
    def block(self) -> NDArray[np.uint8]:
        """The shared memory, shape (bytes,); its head is the board."""
        return self._memory.array

    def busy(self) -> dict[int, CurrentRow]:
        """Workers that are at a task, by seat."""
        lines = {seat: self._board[seat].tolist() for seat in self._workers}
        return {
            seat: CurrentRow(line[PIECE], line[ROW], line[SINCE], line[PID])
            for seat, line in lines.items()
            if line[PIECE] > 0
        }

    def idle(self) -> set[int]:
        """Seats of the workers that are ready for a task and have none."""
        return {s for s in self._workers if self._board[s, PID] and not self._board[s, PIECE]}

    def waits_for_storage(self, seat: int) -> bool:
        """True if a worker is inside a read of its store, or in the kernel's disk sleep."""
        return bool(self._board[seat, READING]) or _in_disk_sleep(int(self._board[seat, PID]))

    def _not_started(self, report: Report) -> StartError:
        """What a report with id 0 means: a worker could not open its source."""
        failure = report.failures[0]
        return StartError(
            f"a worker could not open the dataset: {failure.kind}: {failure.message}. "
            f"In the worker:\n{failure.trace}"
        )

    def _set_target(self, workers: int) -> None:
        if not 1 <= workers <= MAX_SEATS:
            raise UsageError(f"num_workers must be from 1 to {MAX_SEATS} here, got {workers}")
        self._target = workers

    def _death(self, seat: int, pid: int, status: int, lost: Collection[int]) -> Death:
        """What there is to say of a worker that has ended.

        Raises:
            ClosedError: another thread is closing the crew.
            WorkerError: too many in a row ended, and none of them finished anything.
        """
        killed = self._killed.pop(seat, None)
        how = killed or _how_it_ended(pid, status)
        self._count_death(how)
        piece, row = self._board[seat, [PIECE, ROW]].tolist()
        return Death(how, tuple(lost), piece if piece in lost else 0, row, hung=killed is not None)

    def _count_death(self, how: str) -> None:
        self._raise_if_closing()
        _log.warning("%s; another worker does its work again", how)
        self._fruitless_deaths += 1
        if self._fruitless_deaths >= MAX_FRUITLESS_DEATHS:
            raise WorkerError(
                f"{self._fruitless_deaths} workers in a row ended before finishing anything (the "
                f"last was {how}); see their output above, or load one sample with num_workers=0"
            )

    def _raise_if_closing(self) -> None:
        """Raise ClosedError if another thread is ending the workers."""
        if self._closing:
            raise ClosedError("the workers were ended by close()")

    def _free(self) -> None:
        """Let go of the memory."""
        self._board = np.empty((0, 8), np.int64)
        self._memory.close()


def _in_disk_sleep(pid: int) -> bool:
    """True if the kernel says that a process waits for a disk or server, as in a page fault."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"D"]
    except OSError:  # no /proc here, or the process has ended
        return False


def _how_it_ended(pid: int, status: int) -> str:
    """An exit status in words, those that torch's DataLoader uses; negative is a signal."""
    if status >= 0:
        return f"DataLoader worker (pid {pid}) exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"DataLoader worker (pid {pid}) is killed by signal: {name}{hint}"
