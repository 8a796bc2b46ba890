"""Worker pool of spawned processes, each with its own pipe. Works on every platform.

Workers start slowly, as with spawn (seconds), and each has its own copy of libraries and source.
The trainer assigns tasks inside `wait`, a few ahead for each worker. It never blocks when it
sends a task: the tasks in a pipe fit into the smallest pipe buffer of any platform, and larger
tasks are sent as named memory. So a worker may block while it sends a report, until the trainer
reads it, without a deadlock.
Relies on: a pipe buffer of 8 KB, as on macOS and Windows; Linux's is larger.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.reduction as mp_reduction
import os
import signal
import struct
import threading
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.engine.load_samples import AnySource, PrivateMemory, do_tasks, makes_whole_batches
from feedline.engine.messages import (
    BLOCK_HEADER_BYTES,
    EXIT,
    PID,
    Report,
    Task,
    read_task_id,
    start_task,
)
from feedline.engine.payload import Payload, main_module, unpickle_source
from feedline.engine.pool import MISSING_MAIN_GUARD, WorkerDeath, WorkerPool
from feedline.engine.process import (
    MISSING_MAIN_GUARD_STATUS,
    WORKER_NAME,
    become_worker,
    block_interrupt,
    ignore_signals,
    signals_to_ignore,
)
from feedline.engine.shared_memory import NamedMemory
from feedline.errors import UsageError
from feedline.system import python_program

_REFERENCE = struct.Struct("<qq")  # id 0 (no task), size in bytes; then the memory's name
_MAX_TASKS_PER_WORKER = 4  # enough work for one training step
_PIPE_BYTES = 4 << 10  # of tasks in a pipe: half the smallest buffer
_EXIT_CHECK_S = 1.0  # interval at which an idle worker checks whether to exit
_END_DEADLINE_S = 5.0


def run_worker(
    pipe: Connection,
    block: tuple[str, int],
    source: tuple[str, int] | AnySource,
    resources: list[int],
    worker_id: int,
    workers: int,
    ignored_signals: list[int],
) -> None:
    """Do tasks until asked to exit or until the trainer is gone.

    Tasks come through the pipe; reports go back, each followed by its batch, if it has one. `block`
    and `source` are names and sizes in bytes of memory, or the source itself; `resources` are the
    descriptors of the payload; `ignored_signals`, handled by the trainer, are blocked.
    """
    become_worker()
    ignore_signals(ignored_signals)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, *ignored_signals})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    memory = NamedMemory(*block)

    def load() -> AnySource:
        if not isinstance(source, tuple):
            return source
        # A private copy: Python cannot map named memory copy-on-write.
        return unpickle_source(NamedMemory(*source).array.copy(), resources)

    def receive_task(line: NDArray[np.int64]) -> tuple[bytes, int] | None:
        while True:
            is_exiting = line[EXIT]  # read first: no task follows
            if pipe.poll(_EXIT_CHECK_S):
                message = _next_task(pipe)
                start_task(line, read_task_id(message))
                return message, -1
            if is_exiting:
                return None

    def send_report(report: Report) -> None:
        pipe.send_bytes(report.pack())
        if report.data is not None:
            pipe.send_bytes(report.data.data)

    with contextlib.suppress(EOFError, ConnectionError):  # the trainer is gone
        do_tasks(load, receive_task, send_report, memory.array, PrivateMemory(), worker_id, workers)


def _next_task(pipe: Connection) -> bytes:
    """Receive the message of the next task, from the pipe or from named memory."""
    message: bytes = pipe.recv_bytes()
    if read_task_id(message):
        return message
    _, nbytes = _REFERENCE.unpack_from(message)
    memory = NamedMemory(message[_REFERENCE.size :].decode(), nbytes)
    try:
        return memory.array.tobytes()
    finally:
        memory.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@dataclass(eq=False)
class _SpawnedWorker:
    process: SpawnProcess
    pipe: Connection[bytes, bytes]
    outstanding: dict[int, int] = field(default_factory=dict)  # by task id: bytes in the pipe
    memories: dict[int, NamedMemory] = field(default_factory=dict)  # of large tasks, by task id

    def add(self, task_id: int, message: bytes) -> bytes:
        """Record a task. Return the message for the pipe; for a large task, a reference."""
        if sum(self.outstanding.values()) + len(message) > _PIPE_BYTES:
            memory = self.memories[task_id] = NamedMemory(None, len(message))
            memory.array[:] = np.frombuffer(message, np.uint8)
            message = _REFERENCE.pack(0, memory.nbytes) + memory.name.encode()
        self.outstanding[task_id] = len(message)
        return message

    def finish(self, task_id: int) -> None:
        self.outstanding.pop(task_id, None)
        if (memory := self.memories.pop(task_id, None)) is not None:
            memory.close()

    def end(self) -> tuple[int, int]:
        """Free the resources of an ending worker. Return its process id and exit status."""
        if not wait([self.process.sentinel], _END_DEADLINE_S):
            self.process.kill()  # it has closed its pipe and does not end
        self.process.join(_END_DEADLINE_S)
        pid, status = self.process.pid or 0, self.process.exitcode or 0
        self.pipe.close()
        for memory in self.memories.values():
            memory.close()
        # Raises if other code, such as psutil, has waited for the process.
        with contextlib.suppress(ValueError):
            self.process.close()
        return pid, status


class PortablePool(WorkerPool):
    """Worker pool started with multiprocessing."""

    def __init__(self, source: AnySource, slots_bytes: int) -> None:
        self._context: Any = multiprocessing.get_context("spawn")
        main_module()  # raises if workers cannot import the user's script
        self._makes_whole_batches = makes_whole_batches(source)
        self._memory = NamedMemory(None, BLOCK_HEADER_BYTES + slots_bytes)
        super().__init__(self._memory.array)
        self._source: AnySource | None = None
        self._payload: Payload[NamedMemory] | None = None
        self._pickling_error: UsageError | None = None
        try:
            self._payload = Payload(source, partial(NamedMemory, None), runs_user_code=False)
        except UsageError as error:
            # On Windows, locks, values and queues can only be pickled as process arguments.
            self._source, self._pickling_error = source, error
        except BaseException:
            self._memory.close()
            raise
        self._workers: dict[int, _SpawnedWorker] = {}

    def _start_worker(self, worker_id: int) -> None:
        pipe, worker_end = self._context.Pipe()
        block = self._memory.name, self._memory.nbytes
        source: Any = self._source
        fds: list[int] = []
        if self._payload is not None:
            source = self._payload.memory.name, self._payload.memory.nbytes
            fds = self._payload.resources.fds
        ignored = signals_to_ignore(is_new_program=True)
        self.program = python_program()
        process = self._context.Process(
            target=run_worker,
            args=(worker_end, block, source, _SharedFds(fds), worker_id, self._target, ignored),
            daemon=True,
            name=WORKER_NAME,
        )
        try:
            with block_interrupt(ignored):  # until the worker ignores them
                process.start()
        except Exception:  # pickling runs user code
            if self._pickling_error is not None:
                raise self._pickling_error from None
            raise
        worker_end.close()  # so that the pipe ends with the worker
        self._heartbeats[worker_id, PID] = process.pid
        self._workers[worker_id] = _SpawnedWorker(process, pipe)

    def submit(self, task: Task) -> bool:
        """Send a task to the worker with the fewest tasks; False if all have enough."""
        active = [self._workers[worker_id] for worker_id in self._active_ids()]
        worker = min(active, key=lambda w: len(w.outstanding), default=None)
        if worker is None or len(worker.outstanding) >= _MAX_TASKS_PER_WORKER:
            return False
        message = worker.add(task.id, task.pack())
        with contextlib.suppress(OSError):  # it died: `wait` reports it and returns the task
            worker.pipe.send_bytes(message)
        return True

    def wait(self, timeout_s: float) -> list[Report | WorkerDeath]:
        worker_ids: dict[Any, int] = {w.pipe: worker_id for worker_id, w in self._workers.items()}
        events: list[Report | WorkerDeath] = []
        for pipe in wait(list(worker_ids), timeout_s):
            worker = self._workers[worker_ids[pipe]]
            try:
                report = self._check_report(Report.unpack(worker.pipe.recv_bytes()))
                if self._makes_whole_batches:
                    report.data = np.empty(report.used, np.uint8)  # writable, unlike bytes
                    worker.pipe.recv_bytes_into(report.data)
            except (EOFError, OSError):
                events += self._on_exit(worker_ids[pipe])
            else:
                worker.finish(report.id)
                events.append(report)
        return events

    def _on_exit(self, worker_id: int) -> list[WorkerDeath]:
        self._raise_if_closing()
        worker = self._workers.pop(worker_id)
        pid, status = worker.end()
        if status == MISSING_MAIN_GUARD_STATUS:
            raise UsageError(MISSING_MAIN_GUARD) from None
        return self._replace_worker(worker_id, pid, status, worker.outstanding)

    def cancel(self) -> list[int]:
        return []  # tasks in a pipe cannot be cancelled

    def kill(self, worker_id: int, reason: str) -> None:
        self._kill_reasons[worker_id] = reason
        self._workers[worker_id].process.kill()

    def restart(self) -> None:
        self._end_workers()
        self._start_missing()

    def _end_workers(self) -> None:
        # A closed process raises ValueError: an interrupted call has ended that worker.
        for worker in self._workers.values():
            with contextlib.suppress(ValueError):
                worker.process.kill()
        for worker in self._workers.values():
            with contextlib.suppress(ValueError):
                worker.end()
        self._workers.clear()
        self._kill_reasons.clear()

    def close(self) -> None:
        self._closing = True
        self._end_workers()
        self._release_memory()
        self._memory.close()
        if self._payload is not None:
            self._payload.close()


class _SharedFds:
    """Process argument that duplicates descriptors into the new process."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def __reduce__(self) -> Any:
        # Windows has no DupFd, and the list is empty there.
        duplicate: Any = getattr(mp_reduction, "DupFd", None)
        return _detach, ([duplicate(fd) for fd in self._fds],)


def _detach(duplicates: list[Any]) -> list[int]:
    return [duplicate.detach() for duplicate in duplicates]
