"""Worker pool of processes forked by the fork server, all reading one socket. Linux.

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
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from feedline.engine import fork_server
from feedline.engine.fork_server import ForkServer
from feedline.engine.heartbeat import HEARTBEAT_BYTES, MAX_WORKERS, PID, TASK
from feedline.engine.messages import MAX_MESSAGE_BYTES, BatchTask, Report, Task, exit_task, task_id
from feedline.engine.payload import Payload
from feedline.engine.pool import Death, WorkerPool
from feedline.engine.shared_memory import SharedFile
from feedline.engine.source import AnySource
from feedline.engine.worker_linux import claim_lock, receive, send
from feedline.errors import ResourceError, WorkerError

__all__ = ["LinuxPool", "PoolSockets"]


_SEND_BUFFER_BYTES = 4 << 20
_END_DEADLINE_S = 5.0


class PoolSockets:
    """Sockets of a worker pool, connected to a fork server.

    Args:
        server: forks the workers; its death is reported by `server_messages`.
        fds: further descriptors for it: the block, and the pickled payload if there is one.
        preload: modules that it imports for all workers.
    """

    def __init__(self, server: ForkServer, fds: list[int], preload: Sequence[str]) -> None:
        self._server = server
        pair = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tasks, self._tasks_end = socket.socketpair(*pair)
        self._tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._results, results_end = socket.socketpair(*pair)
        self._control, control_end = socket.socketpair(*pair)
        with results_end, control_end, contextlib.suppress(OSError):
            ends = (control_end, self._tasks_end, results_end)
            server.adopt([*[end.fileno() for end in ends], *fds], preload)
        self._poll = select.poll()
        self._poll.register(self._results, select.POLLIN)
        self._poll.register(self._control, select.POLLIN)

    def send(self, task: Task) -> None:
        """Queue a task.

        Raises:
            BlockingIOError: the queue is full.
        """
        memory = task.memory if isinstance(task, BatchTask) else -1
        send(self._tasks, task.pack(), memory, wait=False)

    def drain(self) -> list[int]:
        """Empty the queue. Return the ids of the tasks in it, in order."""
        queued = []
        with contextlib.suppress(BlockingIOError):
            while message := self._tasks_end.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                queued.append(task_id(message))
        return queued

    def wait(self, timeout_s: float) -> bool:
        """Wait for reports or messages of the fork server. Return True if there are messages."""
        control = self._control.fileno()
        return any(fd == control for fd, _ in self._poll.poll(timeout_s * 1000))

    def reports(self) -> Iterator[Report]:
        """Receive the available reports."""
        while True:
            try:
                message, memory = receive(self._results, MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            if not message:
                return
            report = Report.unpack(message)
            report.memory = memory
            yield report

    def command(self, **command: object) -> None:
        """Send a command to the fork server."""
        with contextlib.suppress(OSError):  # `server_messages` reports a dead server
            self._control.send(json.dumps(command).encode())

    def server_messages(self) -> Iterator[dict[str, Any]]:
        """Receive the fork server's messages.

        Raises:
            EOFError: it has ended.
        """
        try:
            while message := self._control.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                yield json.loads(message)
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        raise EOFError

    def hang_up(self) -> None:
        """Close the control connection; the fork server then kills the workers."""
        # close() alone is not enough: a child forked in the meantime may hold a copy.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def close(self, pids: list[int]) -> None:
        """End the workers and close the sockets. May be called again after an interrupt.

        Args:
            pids: process ids of the workers, for the error.

        Raises:
            WorkerError: they are still alive.
        """
        self.hang_up()
        if self._results.fileno() >= 0 and not self._ended():
            self._server.kill()  # it is stopped or stuck, and does not read its connections
            if not self._ended():
                raise WorkerError(
                    f"workers {pids} did not end within {_END_DEADLINE_S:.0f} s after they were "
                    "killed; they may hang in the kernel (an unreachable network disk?)"
                )
        for connection in (self._tasks, self._tasks_end, self._results):
            connection.close()

    def _ended(self) -> bool:
        """Wait until no process can write results. Return False at the deadline."""
        deadline = time.monotonic() + _END_DEADLINE_S
        with contextlib.suppress(TimeoutError):
            while (left_s := deadline - time.monotonic()) > 0:
                self._results.settimeout(left_s)
                if not self._results.recv(MAX_MESSAGE_BYTES):
                    return True
        return False


_LOCK_DEADLINE_S = 5.0
_FORK_WITH_THREADS = (
    "The workers were forked while the training process ran other threads; a lock held by one of "
    'them stays locked in the workers. Use multiprocessing_context="forkserver"'
)


class LinuxPool(WorkerPool):
    """Worker pool forked by a fork server.

    Args:
        source: makes rows or batches; pickled here, once, unless it is forked.
        slots_bytes: memory of all slots.
        runs_user_code: see `Payload`.
        forked: the fork server is a fork of this process, with its source.

    Raises:
        UsageError: the source cannot be pickled, and is not forked.
        ResourceError: not enough memory.
    """

    shares_memory = True

    def __init__(
        self,
        source: AnySource,
        slots_bytes: int,
        *,
        runs_user_code: bool = False,
        forked: bool = False,
    ) -> None:
        self._forked_source = source if forked else None
        self._forked_server: ForkServer | None = None
        self._next_exit_id = -1  # negative, unlike those of other tasks
        self._outstanding: dict[int, Task] = {}  # by id: submitted, not yet returned
        self._exit_tasks: set[int] = set()  # ids
        self._workers: dict[int, int] = {}  # by worker id: process id, 0 until it is known
        self._events: list[Report | Death] = []
        with contextlib.ExitStack() as cleanup:  # after an error or interrupt
            self._memory = SharedFile.create(HEARTBEAT_BYTES + slots_bytes)
            cleanup.callback(self._memory.close)
            super().__init__(self._memory.array)
            self._fds = [self._memory.fd]
            self._payload: Payload[SharedFile] | None = None
            if not forked:
                self._payload = Payload(source, SharedFile.create, runs_user_code=runs_user_code)
                cleanup.callback(self._payload.close)
                self._fds += [self._payload.memory.fd, *self._payload.resources.fds]
            cleanup.callback(self._release_server)
            self._sockets = self._connect()
            cleanup.pop_all()

    def _connect(self) -> PoolSockets:
        """Create sockets and connect a fork server to them."""
        if self._forked_source is None:
            assert self._payload is not None
            server = fork_server.acquire(self)
            return PoolSockets(server, self._fds, self._payload.library_modules)
        self._release_server()
        self.advice = _FORK_WITH_THREADS if threading.active_count() > 1 else ""
        # Fork before the sockets exist: the server must not inherit the trainer's ends.
        self._forked_server = ForkServer.fork(self._forked_source)
        return PoolSockets(self._forked_server, self._fds, ())

    def _release_server(self) -> None:
        if self._forked_source is None:
            fork_server.release(self)
        elif self._forked_server is not None:
            self._forked_server.stop()

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker id, at least of every worker that has reported."""
        return {worker_id: pid for worker_id, pid in sorted(self._workers.items()) if pid}

    def resize(self, workers: int) -> None:
        """Set the number of workers. Surplus workers finish their task before they exit."""
        self._set_target(workers)
        self._fork_missing()
        for _ in range(len(self._workers) - len(self._exit_tasks) - workers):
            task = exit_task(self._next_exit_id)
            if self.submit(task):  # if the queue is full, the next resize tries again
                self._exit_tasks.add(task.id)
                self._next_exit_id -= 1

    def _fork_missing(self) -> None:
        free = (worker_id for worker_id in range(MAX_WORKERS) if worker_id not in self._workers)
        while len(self._workers) - len(self._exit_tasks) < self._target:
            worker_id = next(free, None)
            if worker_id is None:
                return  # exiting workers hold the ids; each exit calls this again
            self._heartbeats[worker_id] = 0
            self._workers[worker_id] = 0
            self._sockets.command(do="fork", worker_id=worker_id, workers=self._target)

    def submit(self, task: Task) -> bool:
        """Queue a task; False if the queue is full. Never blocks."""
        try:
            self._sockets.send(task)
        except BlockingIOError:
            return False
        self._outstanding[task.id] = task
        return True

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """Return new events; blocks until there is one, or for `timeout_s` at most."""
        if not self._events:
            has_messages = self._sockets.wait(timeout_s)
            self._read_reports()
            try:
                for message in self._sockets.server_messages() if has_messages else ():
                    self._on_server_message(**message)
            except EOFError:
                self._replace_server()
        events, self._events = self._events, []
        return events

    def _read_reports(self) -> None:
        for report in self._sockets.reports():
            self._events.append(self._check_report(report))
            self._outstanding.pop(report.id, None)
            if 0 in self._workers.values():
                # The heartbeat table has process ids before the fork server reports them.
                for worker_id, pid in self._workers.items():
                    self._workers[worker_id] = pid or int(self._heartbeats[worker_id, PID])

    def _on_server_message(
        self, worker_id: int, pid: int = 0, status: int | None = None, failed: str = ""
    ) -> None:
        if failed:
            raise ResourceError(
                f"cannot start a worker: {failed}; lower num_workers, or raise the limit on "
                "processes (ulimit -u) or memory"
            )
        if status is None:
            self._workers[worker_id] = pid
            return
        del self._workers[worker_id]
        lost = self._remove_lost_tasks()
        if lost & self._exit_tasks:  # an exit requested by `resize`
            self._exit_tasks -= lost
            self._kill_reasons.pop(worker_id, None)
        else:
            self._events.append(self._record_death(worker_id, pid, status, lost))
        self._fork_missing()

    def _remove_lost_tasks(self) -> set[int]:
        """Remove the unfinished task of a dead worker, if any. Return its id.

        An outstanding task is in the queue, on a live worker's line of the heartbeat table, in the
        results, or lost. While this process holds the claim lock, no worker is between queue and
        table; and a task that leaves the table later is already in the results.
        """
        try:
            with claim_lock(self._memory.fd, _LOCK_DEADLINE_S):
                queued = self._sockets.drain()
                in_table = {int(self._heartbeats[worker_id, TASK]) for worker_id in self._workers}
        except TimeoutError:
            raise WorkerError(
                f"a worker has held the task queue for {_LOCK_DEADLINE_S:.0f} s; one of "
                f"{[*self.pids.values()]} may be stopped (SIGSTOP). Continue or kill it"
            ) from None
        self._read_reports()
        lost = set(self._outstanding) - set(queued) - in_table
        for id in lost:
            del self._outstanding[id]
        for id in queued:
            # The queue has room: it held these tasks, and only the trainer writes to it.
            self._sockets.send(self._outstanding[id])
        return lost

    def cancel(self) -> list[int]:
        """Cancel the tasks that no worker has started. Return their ids."""
        cancelled = []
        for id in self._sockets.drain():
            if id in self._exit_tasks:
                self._sockets.send(self._outstanding[id])
            else:
                del self._outstanding[id]
                cancelled.append(id)
        return cancelled

    def kill(self, worker_id: int, why: str) -> None:
        """Kill a worker; its `Death` contains the reason."""
        self._kill_reasons[worker_id] = why
        self._sockets.command(do="kill", worker_id=worker_id)

    def restart(self) -> None:
        """Replace all workers at once; nothing is outstanding afterwards."""
        self._sockets.close([*self.pids.values()])
        self._outstanding.clear()
        self._exit_tasks.clear()
        self._workers.clear()
        self._kill_reasons.clear()
        for event in self._events:
            if isinstance(event, Report) and event.memory >= 0:
                os.close(event.memory)
        self._events.clear()
        self._sockets = self._connect()
        self._fork_missing()

    def _replace_server(self) -> None:
        """Start another fork server and workers after the fork server died."""
        how = "lost because the fork server died"
        reports, self._events = self._events, []  # `restart` would drop them
        lost = tuple(id for id in self._outstanding if id not in self._exit_tasks)
        self._count_death(how)
        self.restart()
        self._events = [*reports, Death(how, lost)]

    def close(self) -> None:
        """End all workers and free all resources. No process is left when this returns."""
        self._closing = True
        try:
            self._sockets.hang_up()
            self._release_server()  # before the wait in `close`: it may be starting
            self._sockets.close([*self.pids.values()])
        finally:
            self._drop_block()
            self._memory.close()
            if self._payload is not None:
                self._payload.close()
