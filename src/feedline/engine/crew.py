"""Protocol of worker pools, for all start methods.

Three worker pools implement it:
    SocketCrew   fork server, one SEQPACKET socket, memfd: Linux, the default there
    PipeCrew     spawn, a pipe for each worker, named shared memory: everywhere
    InlineCrew   no process: num_workers=0

Guarantees, of each: a submitted task (some rows, or a whole batch) comes back exactly once, in a
`Report`, in the `lost` of a `Death`, or from `recall`. The pool replaces a dead worker itself and
logs its death.
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
"""Consecutive deaths of workers, without a finished task in between, until an error is raised."""

UNGUARDED = (
    "your script starts a loader with workers at import, and worker processes import it: put that "
    'code under `if __name__ == "__main__":`'
)

_log = logging.getLogger("feedline")


@dataclass(frozen=True, slots=True)
class Death:
    """Death of a worker.

    Args:
        how: cause of death as text, e.g. "DataLoader worker (pid 7) is killed by signal: SIGKILL".
        lost: ids of the tasks it held, not done.
        piece: the task it was working on; 0 if unknown.
        row: row of that task it was working on, counted from 0.
        hung: True if `kill` was called.
    """

    how: str
    lost: tuple[int, ...] = ()
    piece: int = 0
    row: int = 0
    hung: bool = False


class CurrentRow(NamedTuple):
    """Row a worker is working on.

    Args:
        piece: id of its task.
        row: row within the task, counted from 0.
        since_ns: start of the row (of a whole batch: the task), on the monotonic clock.
        pid: process id of the worker.
    """

    piece: int
    row: int
    since_ns: int = 0
    pid: int = 0


class Crew(Protocol):
    """Pool of workers that do tasks in one block of memory."""

    shares_memory: bool
    """Whether workers can receive memory as a file descriptor."""

    advice: str
    """Sentence for errors about hung workers; empty if no cause is known."""

    @property
    def block(self) -> NDArray[np.uint8]:
        """Shared memory, shape (bytes,); the heartbeat table is at its head."""

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that have started, by worker id."""

    def resize(self, workers: int) -> None:
        """Set the number of workers. Workers that leave finish their task first."""

    def submit(self, task: Task) -> bool:
        """Queue a task; False if the queue is full. Never blocks."""

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Return new events; blocks until there is one, or for `timeout_s` at most."""

    def recall(self) -> list[int]:
        """Cancel the tasks that no worker has started. Return their ids."""

    def busy(self) -> dict[int, CurrentRow]:
        """Workers with a task, by worker id."""

    def idle(self) -> set[int]:
        """Ids of the workers that are ready and have no task."""

    def waits_for_storage(self, seat: int) -> bool:
        """True if a worker is inside a read of its store, or in the kernel's disk sleep."""

    def kill(self, seat: int, why: str) -> None:
        """Kill a worker; its `Death` contains the reason."""

    def restart(self) -> None:
        """Replace all workers at once and forget all tasks, for a trainer that lost count."""

    def close(self) -> None:
        """End all workers and free all resources. No process is left when this returns."""


class ProcessCrew:
    """Worker pool of processes, one per worker id.

    Args:
        memory: memory of the heartbeat table and all slots.
    """

    advice = ""

    _workers: Mapping[int, object]
    """Workers that are alive or starting, by worker id."""

    def __init__(self, memory: Memfd | Named) -> None:
        self._memory = memory
        self._board = board_of(memory.array)
        self._target = 0
        self._closing = False
        self._killed: dict[int, str] = {}  # by seat: why
        self._fruitless_deaths = 0  # since a worker has finished anything

    @property
    def block(self) -> NDArray[np.uint8]:
        """Shared memory, shape (bytes,); the heartbeat table is at its head."""
        return self._memory.array

    def busy(self) -> dict[int, CurrentRow]:
        """Workers with a task, by worker id."""
        lines = {seat: self._board[seat].tolist() for seat in self._workers}
        return {
            seat: CurrentRow(line[PIECE], line[ROW], line[SINCE], line[PID])
            for seat, line in lines.items()
            if line[PIECE] > 0
        }

    def idle(self) -> set[int]:
        """Ids of the workers that are ready and have no task."""
        return {s for s in self._workers if self._board[s, PID] and not self._board[s, PIECE]}

    def waits_for_storage(self, seat: int) -> bool:
        """True if a worker is inside a read of its store, or in the kernel's disk sleep."""
        return bool(self._board[seat, READING]) or _in_disk_sleep(int(self._board[seat, PID]))

    def _not_started(self, report: Report) -> StartError:
        """Error for a report with id 0: a worker could not open its source."""
        failure = report.failures[0]
        return StartError(
            f"a worker could not open the dataset: {failure.kind}: {failure.message}. "
            f"In the worker:\n{failure.trace}",
            hint=failure.hint,
        )

    def _set_target(self, workers: int) -> None:
        if not 1 <= workers <= MAX_SEATS:
            raise UsageError(f"num_workers must be from 1 to {MAX_SEATS}, got {workers}")
        self._target = workers

    def _death(self, seat: int, pid: int, status: int, lost: Collection[int]) -> Death:
        """Record the end of a worker.

        Raises:
            ClosedError: another thread is closing the pool.
            WorkerError: too many workers ended in a row without finishing a task.
        """
        killed = self._killed.pop(seat, None)
        how = killed or _how_it_ended(pid, status)
        self._count_death(how)
        piece, row = self._board[seat, [PIECE, ROW]].tolist()
        return Death(how, tuple(lost), piece if piece in lost else 0, row, hung=killed is not None)

    def _count_death(self, how: str) -> None:
        self._raise_if_closing()
        _log.warning("%s; another worker repeats its work", how)
        self._fruitless_deaths += 1
        if self._fruitless_deaths >= MAX_FRUITLESS_DEATHS:
            raise WorkerError(
                f"{self._fruitless_deaths} workers in a row ended without finishing a task (the "
                f"last: {how}); see their output above, or load one sample with num_workers=0"
            )

    def _raise_if_closing(self) -> None:
        """Raise ClosedError if another thread is closing the pool."""
        if self._closing:
            raise ClosedError("the workers were ended by close()")

    def _free(self) -> None:
        """Release the memory."""
        self._board = np.empty((0, 8), np.int64)
        self._memory.close()


def _in_disk_sleep(pid: int) -> bool:
    """Return True if the kernel reports that a process waits for a disk or server."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"D"]
    except OSError:  # no /proc here, or the process has ended
        return False


def _how_it_ended(pid: int, status: int) -> str:
    """Describe an exit status in the words of torch's DataLoader; negative is a signal."""
    if status >= 0:
        return f"DataLoader worker (pid {pid}) exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"DataLoader worker (pid {pid}) is killed by signal: {name}{hint}"
