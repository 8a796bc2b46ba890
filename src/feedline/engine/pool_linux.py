"""Worker pool of processes forked by a fork server, all reading one socket. Linux.

This module runs in the trainer; `fork_server` has the code of the other processes. The shared fork
server is a new Python process, one per trainer, which runs while a worker pool uses it. A forked
server is a fork of the trainer with its dataset, one per worker pool. A process forked from the
trainer neither uses nor stops the shared server of its parent.
Guarantees: an idle worker receives a task without the trainer's help; no call waits for a worker or
the fork server to read; the task of a dead worker is known exactly. If the fork server dies, new
workers repeat all outstanding tasks. After `close` no process can write to the pool's memory.
Relies on: SEQPACKET sockets, which deliver each message whole to one reader; memfd; record locks,
which the kernel releases at death.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil

from feedline.engine.fork_server import MAX_FDS, claim_lock, receive, send, serve
from feedline.engine.load_samples import AnySource
from feedline.engine.messages import (
    BLOCK_HEADER_BYTES,
    ID_BYTES,
    MAX_MESSAGE_BYTES,
    TASK,
    BatchTask,
    Report,
    Task,
    read_task_id,
)
from feedline.engine.payload import Payload
from feedline.engine.pool import NOT_PYTHON, WorkerDeath, WorkerPool, is_kill
from feedline.engine.process import WORKER_ENVIRONMENT, block_interrupt, signals_to_ignore
from feedline.engine.shared_memory import SharedFile
from feedline.errors import ResourceError, StartError, WorkerError
from feedline.system import code_command, describe_exit, flush_standard_streams

_SOCKETS = socket.AF_UNIX, socket.SOCK_SEQPACKET
_SEND_BUFFER_BYTES = 4 << 20
END_DEADLINE_S = 5.0
_LOCK_DEADLINE_S = 5.0
_STOP_DEADLINE_S = 0.3
_FORK_WITH_THREADS = (
    "The workers were forked while the training process ran other threads; a lock held by one of "
    'them stays locked in the workers. Use multiprocessing_context="forkserver"'
)
_BOOT = (
    # -c puts the working directory first in sys.path: replace the path before any import.
    "import sys; sys.path[:] = sys.argv[2:]; import json; "
    "from feedline.engine.fork_server import serve; serve(*json.loads(sys.argv[1]))"
)


class LinuxPool(WorkerPool):
    """Worker pool forked by a fork server; if `forked`, by a fork of this process.

    `ForkingPool` has no fork server.
    """

    def __init__(
        self,
        source: AnySource,
        slots_bytes: int,
        *,
        runs_user_code: bool = False,
        forked: bool = False,
    ) -> None:
        self._source = source
        self._payload: Payload[SharedFile] | None = None  # None: the source is forked
        self._server: ForkServer | None = None
        self._outstanding: dict[int, Task] = {}  # by id: submitted, not yet returned
        self._workers: set[int] = set()
        self._events: list[Report | WorkerDeath] = []
        with contextlib.ExitStack() as cleanup:  # after an error or interrupt
            self._memory = SharedFile.create(BLOCK_HEADER_BYTES + slots_bytes)
            cleanup.callback(self._memory.close)
            super().__init__(self._memory.array)
            if not forked:
                self._payload = Payload(source, SharedFile.create, runs_user_code=runs_user_code)
                cleanup.callback(self._payload.close)
            cleanup.callback(self._release_server)
            self._connect()
            cleanup.pop_all()

    def _connect(self) -> None:
        """Create the sockets, and connect a fork server to them."""
        fds, preload = [self._memory.fd], list[str]()
        if self._payload is not None:
            server = shared_server()  # the same one, unless it has died
            self._release_server()
            self._server = server
            fds += [self._payload.memory.fd, *self._payload.resources.fds]
            preload = self._payload.library_modules
        else:
            self._release_server()  # before the next: two would hold the memory
            self.advice = advice_on_threads()
            # Fork before the sockets exist: the server must not inherit the trainer's ends.
            self._server = ForkServer.fork(self._source)
        results_end = self._open_sockets()
        self._control, control_end = socket.socketpair(*_SOCKETS)
        self._poll.register(self._control, select.POLLIN)
        with results_end, control_end, contextlib.suppress(OSError):  # the server's death follows
            ends = (control_end, self._tasks_end, results_end)
            self._server.register_pool([*[end.fileno() for end in ends], *fds], preload)

    def _open_sockets(self) -> socket.socket:
        """Open the sockets for tasks and results. Return the workers' end of the results."""
        self._tasks, self._tasks_end = socket.socketpair(*_SOCKETS)
        self._tasks.setblocking(False)
        self._tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._results, results_end = socket.socketpair(*_SOCKETS)
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        return results_end

    def _start_worker(self, worker_id: int) -> None:
        self._workers.add(worker_id)
        self._command(do="fork", worker_id=worker_id, workers=self._target)

    def submit(self, task: Task) -> bool:
        try:
            self._send(task)
        except BlockingIOError:
            return False
        self._outstanding[task.id] = task
        return True

    def _send(self, task: Task) -> None:
        message = task.pack()
        if len(message) <= MAX_MESSAGE_BYTES:
            memory = task.memory if isinstance(task, BatchTask) else -1
            send(self._tasks, message, memory)
            return
        # The message's descriptor replaces the slot's, so the worker makes the batch in new memory.
        with contextlib.closing(SharedFile.create(len(message))) as file:
            file.array[:] = np.frombuffer(message, np.uint8)
            send(self._tasks, message[:ID_BYTES], file.fd)

    def _empty_queue(self) -> list[int]:
        """Remove all tasks from the queue. Return their ids, in order."""
        queued = []
        with contextlib.suppress(BlockingIOError):
            while message := self._tasks_end.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                queued.append(read_task_id(message))
        return queued

    def wait(self, timeout_s: float) -> list[Report | WorkerDeath]:
        if not self._events:
            results = self._results.fileno()
            has_messages = any(fd != results for fd, _ in self._poll.poll(timeout_s * 1000))
            self._read_reports()
            if has_messages:
                self._read_messages()
        events, self._events = self._events, []
        return events

    def _read_messages(self) -> None:
        """Process the messages of the workers' parent."""
        try:
            for message in self._server_messages():
                self._on_worker_exit(**message)
        except EOFError:
            self._replace_server()

    def _read_reports(self) -> None:
        while True:
            try:
                message, memory = receive(self._results, MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            if not message:
                return
            report = Report.unpack(message)
            report.memory = None if memory < 0 else _map_memory(memory)
            self._events.append(self._check_report(report))
            self._outstanding.pop(report.id, None)

    def _command(self, **command: object) -> None:
        """Send a command to the fork server."""
        with contextlib.suppress(OSError):  # `_server_messages` reports a dead server
            self._control.send(json.dumps(command).encode())

    def _server_messages(self) -> Iterator[dict[str, Any]]:
        """Receive the fork server's messages, or raise EOFError if it has ended."""
        try:
            while message := self._control.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                yield json.loads(message)
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        raise EOFError

    def _on_worker_exit(
        self, worker_id: int, pid: int = 0, status: int = 0, failed: str = ""
    ) -> None:
        if failed:
            raise fork_error(failed)
        self._workers.remove(worker_id)
        lost = self._remove_lost_tasks()
        self._events += self._replace_worker(worker_id, pid, status, lost)

    def _remove_lost_tasks(self) -> set[int]:
        """Remove the unfinished task of a dead worker, if any. Return its id.

        An outstanding task is in the queue, on a live worker's line of the heartbeat table, in the
        results, or lost. Queue and table are read under the claim lock, so no worker has taken a
        task without entering it in the table. A worker sends its report before it clears its line,
        so a task that is no longer in the table is in the results, which are read last.
        """
        try:
            with claim_lock(self._memory.fd, _LOCK_DEADLINE_S):
                queued = self._empty_queue()
                in_table = {int(self._heartbeats[worker_id, TASK]) for worker_id in self._workers}
        except TimeoutError:
            raise WorkerError(
                f"a worker has held the task queue for {_LOCK_DEADLINE_S:.0f} s; one of "
                f"{[*self.pids.values()]} may be stopped (SIGSTOP). Continue or kill it"
            ) from None
        self._read_reports()
        lost = set(self._outstanding) - set(queued) - in_table
        for task_id in lost:
            del self._outstanding[task_id]
        for task_id in queued:
            # The queue has room: it held these tasks, and only the trainer writes to it.
            self._send(self._outstanding[task_id])
        return lost

    def cancel(self) -> list[int]:
        cancelled = self._empty_queue()
        for task_id in cancelled:
            del self._outstanding[task_id]
        return cancelled

    def kill(self, worker_id: int, reason: str) -> None:
        self._kill_reasons[worker_id] = reason
        self._command(do="kill", worker_id=worker_id)

    def restart(self) -> None:
        self._disconnect()
        self._outstanding.clear()
        self._workers.clear()
        self._kill_reasons.clear()
        self._events.clear()
        self._connect()
        self._start_missing()

    def _replace_server(self) -> None:
        """Start another fork server and workers after the fork server died."""
        self._raise_if_closing()  # `close` ends the server itself
        assert self._server is not None
        status, name = None, self._server.name
        with contextlib.suppress(psutil.Error):
            status = self._server.process.wait(END_DEADLINE_S)
        cause = f"{name} ended" if status is None else describe_exit(name, status)
        if status is not None and status >= 0 and not self.pids:
            raise StartError(f"{cause} before it started a worker", hint=NOT_PYTHON)
        reports, self._events = self._events, []  # `restart` would drop them
        lost = tuple(self._outstanding)
        death = WorkerDeath(cause, lost, is_kill=status is not None and is_kill(status))
        self._count_death(death)
        self.restart()
        self._events = [*reports, death]

    def close(self) -> None:
        self._closing = True
        try:
            self._disconnect(release_server=True)
        finally:
            self._events.clear()
            self._release_memory()
            self._memory.close()
            if self._payload is not None:
                self._payload.close()

    def _disconnect(self, *, release_server: bool = False) -> None:
        """End the workers and close the sockets. May be called again after an interrupt."""
        if not self._end_workers(release_server):
            raise WorkerError(
                f"workers {[*self.pids.values()]} did not end within {END_DEADLINE_S:.0f} s after "
                "they were killed; they may hang in the kernel (an unreachable network disk?)"
            )
        for connection in (self._tasks, self._tasks_end, self._results):
            connection.close()

    def _end_workers(self, release_server: bool) -> bool:
        """End the workers. Return False if some are left at the deadline."""
        # The fork server then kills the workers. close() alone is not enough: a child forked in
        # the meantime may hold a copy.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        process = None if self._server is None else self._server.process
        if release_server:  # before the wait: it may be starting
            self._release_server()
        if self._have_workers_ended():
            return True
        if process is not None:
            _kill(process)  # it is stopped or stuck, and does not read its connections
        return self._have_workers_ended()

    def _release_server(self) -> None:
        if self._server is not None:
            self._server.release()
            self._server = None

    def _have_workers_ended(self) -> bool:
        """Wait until no process can write results. Return False at the deadline."""
        if self._results.fileno() < 0:
            return True
        deadline = time.monotonic() + END_DEADLINE_S
        with contextlib.suppress(TimeoutError):
            while (left_s := deadline - time.monotonic()) > 0:
                self._results.settimeout(left_s)
                if not self._results.recv(MAX_MESSAGE_BYTES):
                    return True
        return False


def advice_on_threads() -> str:
    """Advice if threads run while workers are forked; else ""."""
    return _FORK_WITH_THREADS if threading.active_count() > 1 else ""


def fork_error(reason: object) -> ResourceError:
    """Error for a worker that could not be forked."""
    return ResourceError(
        f"cannot start a worker: {reason}; lower num_workers, or raise the limit on processes "
        "(ulimit -u) or memory"
    )


def fork_child(run: Callable[[list[int]], object]) -> int:
    """Fork this process. The child calls `run` with the signals to ignore, and never returns."""
    ignored = signals_to_ignore(is_new_program=False)
    flush_standard_streams()
    with block_interrupt(ignored):  # until `run` ignores them
        pid = os.fork()
        if pid == 0:
            try:
                run(ignored)
            finally:
                os._exit(1)
    return pid


def _map_memory(fd: int) -> SharedFile:
    """Map the memory of a descriptor, which the mapping then owns."""
    try:
        return SharedFile(fd)
    except OSError as error:  # Python's mmap duplicates the descriptor
        os.close(fd)
        raise ResourceError(
            f"cannot receive a batch: {error}. If this process has too many open files, raise the "
            "limit (ulimit -n), or use fewer num_workers or a smaller prefetch_factor"
        ) from error


class ForkServer:
    """A running fork server, a child of this process.

    It is ended when its last user releases it, or when this object is garbage.
    """

    def __init__(
        self, connection: socket.socket, process: psutil.Process, program: str = ""
    ) -> None:
        self._connection = connection
        self.process = process
        self.name = f"fork server ({program + ', ' if program else ''}pid {process.pid})"
        self.users = 1  # changed under `_lock`
        self._end = partial(_end_server, connection, process, os.getpid())
        self._finalizer = weakref.finalize(self, self._end)
        self._finalizer.atexit = False  # it ends with its trainer in any case

    @classmethod
    def start(cls) -> ForkServer:
        """Start a new Python process."""
        ignored = signals_to_ignore(is_new_program=True)
        connection, server_end = socket.socketpair(*_SOCKETS)
        with server_end:
            arguments = server_end.fileno(), os.getpid(), is_main_thread(), ignored
            command = code_command(_BOOT, json.dumps(arguments))
            try:
                with block_interrupt(ignored):  # until `serve` ignores them
                    process = psutil.Popen(
                        command,
                        pass_fds=[server_end.fileno()],
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, **WORKER_ENVIRONMENT},
                    )
            except OSError as error:
                connection.close()
                raise StartError(f"cannot run {command[0]}: {error}", hint=NOT_PYTHON) from error
        return cls(connection, process, command[0])

    @classmethod
    def fork(cls, source: AnySource) -> ForkServer:
        """Fork this process into a server, which has the source without pickling."""
        connection, server_end = socket.socketpair(*_SOCKETS)
        with server_end:
            arguments = server_end.fileno(), os.getpid(), is_main_thread()
            pid = fork_child(partial(serve, *arguments, source=source))
        return cls(connection, psutil.Process(pid))

    def alive(self) -> bool:
        """Return True if it is running. A server closes its connection before it exits."""
        try:
            self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # open: the server sends nothing
            with contextlib.suppress(psutil.NoSuchProcess):
                return self.process.status() != psutil.STATUS_ZOMBIE
        except OSError:
            pass
        return False

    def release(self) -> None:
        """End the server unless others use it. May be called again after an interrupt."""
        with _lock:
            if self.users == 1:
                self._end()
                self._finalizer.detach()
            self.users -= 1

    def register_pool(self, fds: Sequence[int], preload: Sequence[str]) -> None:
        """Register a worker pool by its descriptors, or raise OSError if the server has ended.

        `preload`: modules to import before the first worker is forked; errors are ignored.
        """
        for first in range(0, len(fds), MAX_FDS):
            part = fds[first : first + MAX_FDS]
            message = {"descriptors": len(part), "of": len(fds), "preload": list(preload)}
            socket.send_fds(self._connection, [json.dumps(message).encode()], list(part))


def _end_server(connection: socket.socket, process: psutil.Process, trainer: int) -> None:
    """End a fork server and its workers, unless this process is a fork of its trainer.

    May be called again after an interrupt.
    """
    with connection:
        if os.getpid() != trainer:
            return
        # close() alone is not enough: a child forked in the meantime may hold a copy.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    try:
        process.wait(_STOP_DEADLINE_S)
    except psutil.TimeoutExpired:
        _kill(process)  # it is still importing, or stuck
        process.wait()


def _kill(process: psutil.Process) -> None:
    """Kill a fork server; the kernel then kills its workers. Other users start another server."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def is_main_thread() -> bool:
    """Return True in the main thread. PR_SET_PDEATHSIG refers to the starting thread."""
    return threading.current_thread() is threading.main_thread()


_lock = threading.RLock()  # reentrant: a signal handler may start workers
_shared: weakref.ref[ForkServer] | None = None


def shared_server() -> ForkServer:
    """Return this process's shared server for one more user, who releases it."""
    global _shared
    with _lock:
        server = None if _shared is None else _shared()
        if server is None or not server.alive():
            server = ForkServer.start()
            _shared = weakref.ref(server)
        else:
            server.users += 1
        return server


def _drop_parents_server() -> None:
    global _lock, _shared
    _lock, _shared = threading.RLock(), None


os.register_at_fork(after_in_child=_drop_parents_server)
