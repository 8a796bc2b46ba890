"""Worker pool of spawned processes, each with its own pipe. Works on every platform.

Guarantees: those of every worker pool. The trainer assigns tasks, so it knows the tasks of each
worker. The two ends of a pipe never wait for each other: the trainer never blocks in sending,
because the tasks in a pipe are fewer bytes than any platform's pipe holds, and a larger task is
sent through named memory; so a worker may block in sending a report or a batch of any size, until
the trainer reads it in `wait`.
Costs: workers start as slowly as spawn does (seconds), each has its own copy of the libraries and
of the source, and tasks are assigned while the trainer is inside `wait`, a few ahead.
Relies on: a pipe that holds 8 KB, as on macOS and Windows; Linux pipes hold more.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.reduction as mp_reduction
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np

from feedline.engine import pipe_worker, shipment
from feedline.engine.board import BOARD_BYTES, MAX_SEATS
from feedline.engine.crew import UNGUARDED, Death, ProcessCrew
from feedline.engine.memory import Named
from feedline.engine.messages import Report, Task, leave
from feedline.engine.process import UNGUARDED_STATUS, WORKER_NAME
from feedline.engine.sharing import SharedResources
from feedline.engine.source import AnySource, packs
from feedline.errors import UsageError

__all__ = ["PipeCrew"]

_DEPTH = 4  # pieces a worker has in its pipe: enough to bridge a training step
_PIPE_BYTES = 4 << 10  # of tasks in a pipe: half of the smallest, which has to hold a leave as well
_END_DEADLINE_S = 5.0


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection[bytes, bytes]
    held: dict[int, int] = field(default_factory=dict)  # by id: bytes of its message in the pipe
    memories: dict[int, Named] = field(default_factory=dict)  # by id: of tasks too large for it
    leaving: bool = False

    def hold(self, id: int, message: bytes) -> bytes:
        """Record a task. Return the message for the pipe, or a reference to the task.

        Raises:
            ResourceError: not enough memory for it.
        """
        if sum(self.held.values()) + len(message) > _PIPE_BYTES:
            memory = self.memories[id] = Named(None, len(message))
            memory.array[:] = np.frombuffer(message, np.uint8)
            message = pipe_worker.reference_to(memory)
        self.held[id] = len(message)
        return message

    def finish(self, id: int) -> None:
        """Remove a reported task, and free its memory."""
        self.held.pop(id, None)
        if (memory := self.memories.pop(id, None)) is not None:
            memory.close()

    def close(self) -> None:
        """Close the pipe and free the memory of all tasks."""
        self.pipe.close()
        for memory in self.memories.values():
            memory.close()
        self.memories.clear()


class PipeCrew(ProcessCrew):
    """Worker pool started with multiprocessing.

    Args:
        source: makes the rows; pickled here, once.
        slots_bytes: memory of all slots.

    Raises:
        ResourceError: not enough memory.
        UsageError: the user's script has no file. From `resize`: the source cannot be pickled.
    """

    shares_memory = False

    def __init__(self, source: AnySource, slots_bytes: int) -> None:
        self._context: Any = multiprocessing.get_context("spawn")
        shipment.main_module()  # multiprocessing has each of its children import the script
        self._resources = SharedResources()
        self._refused: UsageError | None = None
        parts: Sequence[memoryview | bytes] = []
        try:
            parts = shipment.pack(source, self._resources)
        except UsageError as refused:
            self._refused = refused
        self._batches_follow = packs(source)
        with contextlib.ExitStack() as undo:  # if the rest fails
            undo.callback(self._resources.close)
            memory = Named(None, BOARD_BYTES + slots_bytes)
            undo.callback(memory.close)
            super().__init__(memory)
            self._block_name = memory.name, memory.nbytes
            self._shipment = Named(None, shipment.size_bytes(parts))
            undo.callback(self._shipment.close)
            shipment.lay(parts, self._shipment.array)
            undo.pop_all()
        # On Windows locks, values and queues pickle as arguments of a process only.
        self._shipped = source if self._refused else (self._shipment.name, self._shipment.nbytes)
        self._workers: dict[int, _Worker] = {}

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker id."""
        return {seat: w.process.pid for seat, w in sorted(self._workers.items()) if w.process.pid}

    def resize(self, workers: int) -> None:
        """Set the number of workers. Workers that leave finish their tasks first."""
        self._set_target(workers)
        for worker in self._staying()[workers:]:
            worker.leaving = True
            with contextlib.suppress(OSError):
                worker.pipe.send_bytes(leave().pack())
        self._spawn_missing()

    def _staying(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if not worker.leaving]

    def _spawn_missing(self) -> None:
        free = (seat for seat in range(MAX_SEATS) if seat not in self._workers)
        for _ in range(self._target - len(self._staying())):
            seat = next(free)
            self._board[seat] = 0
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=pipe_worker.run,
                args=(
                    theirs,
                    self._block_name,
                    self._shipped,
                    _Descriptors(self._resources.fds),
                    seat,
                    self._target,
                ),
                daemon=True,
                name=WORKER_NAME,
            )
            try:
                process.start()
            except Exception:  # a pickle calls the user's own code: anything may come
                if self._refused is not None:
                    raise self._refused from None
                raise
            theirs.close()  # so that the pipe ends with the worker
            self._workers[seat] = _Worker(process, ours)

    def submit(self, task: Task) -> bool:
        """Give a task to the worker with the fewest tasks; False if all have enough."""
        worker = min(self._staying(), key=lambda w: len(w.held), default=None)
        if worker is None or len(worker.held) >= _DEPTH:
            return False
        message = worker.hold(task.id, task.pack())
        with contextlib.suppress(OSError):  # it died: `wait` says so and hands the piece back
            worker.pipe.send_bytes(message)
        return True

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Return new events; blocks until there is one, or for `timeout_s` at most.

        Raises:
            UsageError: a worker's import of the user's script started a loader with workers.
        """
        seats = {worker.pipe: seat for seat, worker in self._workers.items()}
        news: list[Report | Death] = []
        for pipe in wait(list(seats), timeout_s):
            seat = seats[pipe]  # type: ignore[index]
            worker = self._workers[seat]
            try:
                report = Report.unpack(worker.pipe.recv_bytes())
                if not report.id:
                    raise self._not_started(report)
                if self._batches_follow:
                    report.data = np.empty(report.used, np.uint8)  # which may be written to
                    worker.pipe.recv_bytes_into(report.data)
            except (EOFError, OSError):
                news += self._on_exit(seat)
            else:
                worker.finish(report.id)
                self._fruitless_deaths = 0
                news.append(report)
        return news

    def _on_exit(self, seat: int) -> list[Death]:
        self._raise_if_closing()
        worker = self._workers.pop(seat)
        worker.process.join()  # its pipe has ended: it is dead or dying
        worker.close()
        pid, status = worker.process.pid or 0, worker.process.exitcode or 0
        _close(worker.process)
        if status == UNGUARDED_STATUS:
            raise UsageError(UNGUARDED) from None  # that its pipe ended says nothing
        if worker.leaving and not worker.held:
            return []
        death = self._death(seat, pid, status, worker.held)
        self._spawn_missing()
        return [death]

    def recall(self) -> list[int]:
        """Return nothing: tasks in a pipe cannot be cancelled."""
        return []

    def kill(self, seat: int, why: str) -> None:
        """Kill a worker; its `Death` contains the reason."""
        self._killed[seat] = why
        self._workers[seat].process.kill()

    def restart(self) -> None:
        """Replace all workers at once; nothing is outstanding afterwards."""
        self._end_all()
        self._spawn_missing()

    def _end_all(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join(_END_DEADLINE_S)
            _close(worker.process)
            worker.close()
        self._workers.clear()
        self._killed.clear()

    def close(self) -> None:
        """End all workers and free all resources. No process is left when this returns."""
        self._closing = True
        self._end_all()
        self._free()
        self._shipment.close()
        self._resources.close()


class _Descriptors:
    """Descriptors as an argument of a process, which gets its own duplicates."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def __reduce__(self) -> Any:
        # Windows has no such function, and no descriptors here.
        duplicate: Any = getattr(mp_reduction, "DupFd", None)
        return _detached, ([duplicate(fd) for fd in self._fds],)


def _detached(duplicates: list[Any]) -> list[int]:
    return [duplicate.detach() for duplicate in duplicates]


def _close(process: SpawnProcess) -> None:
    """Release a process that has ended."""
    # Something else may have waited for it, as psutil does: multiprocessing takes it for alive.
    with contextlib.suppress(ValueError):
        process.close()
