"""Connections of one worker pool: to the queue its workers read, and to its fork server.

Guarantees: no call waits for a worker or the fork server to read. After `close` no process is left
that could write to the pool's memory.
Relies on: SEQPACKET sockets, which keep messages whole and deliver each to one reader.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from feedline.engine.messages import (
    MAX_MESSAGE_BYTES,
    BatchTask,
    Report,
    Task,
    receive,
    send,
    task_id,
)
from feedline.engine.server import ForkServer
from feedline.errors import WorkerError

__all__ = ["CrewSockets"]

_SEND_BUFFER_BYTES = 4 << 20
_END_DEADLINE_S = 5.0


class CrewSockets:
    """Sockets of a worker pool, connected to a fork server.

    Args:
        server: forks the workers; its death is reported by `news`.
        fds: further descriptors for it: the block, and the pickled payload if there is one.
    """

    def __init__(self, server: ForkServer, fds: list[int]) -> None:
        self._server = server
        pair = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tasks, self._tasks_end = socket.socketpair(*pair)
        self._tasks.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._results, results_end = socket.socketpair(*pair)
        self._control, control_end = socket.socketpair(*pair)
        with results_end, control_end, contextlib.suppress(OSError):
            ends = (control_end, self._tasks_end, results_end)
            server.adopt([*[end.fileno() for end in ends], *fds])
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
        """Wait for reports or news. Return True if there are news."""
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
        with contextlib.suppress(OSError):  # a dead server shows in `news`
            self._control.send(json.dumps(command).encode())

    def news(self) -> Iterator[dict[str, Any]]:
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
        # Closing alone would not end it: a child forked meanwhile holds a copy.
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
            self._server.kill()  # it was stopped, or is stuck, and did not see us go
            if not self._ended():
                raise WorkerError(
                    f"workers {pids} did not end within {_END_DEADLINE_S:.0f} s after they were "
                    "killed; they may hang in the kernel (an unreachable network disk?)"
                )
        for connection in (self._tasks, self._tasks_end, self._results):
            connection.close()

    def _ended(self) -> bool:
        """Wait for the end of the results: it comes when no process can write to them."""
        deadline = time.monotonic() + _END_DEADLINE_S
        with contextlib.suppress(TimeoutError):
            while (left_s := deadline - time.monotonic()) > 0:
                self._results.settimeout(left_s)
                if not self._results.recv(MAX_MESSAGE_BYTES):
                    return True
        return False
