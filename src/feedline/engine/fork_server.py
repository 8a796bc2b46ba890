"""Fork servers: start, use and stop them, in the trainer.

The shared server is a new Python process, one per trainer, which runs while a worker pool uses it.
A forked server is a fork of the trainer with its dataset, one per worker pool. A process forked
from the trainer neither uses nor stops the shared server of its parent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence

from feedline.engine.payload import search_path
from feedline.engine.process import WORKER_ENVIRONMENT, interrupt_held
from feedline.engine.source import AnySource
from feedline.engine.worker_linux import MAX_FDS, serve

__all__ = ["ForkServer", "acquire", "release"]

_STOP_DEADLINE_S = 0.3
_BOOT = (
    # -c puts the working directory first in sys.path: replace the path before any import.
    "import sys; sys.path[:] = sys.argv[2:]; import json; "
    "from feedline.engine.worker_linux import serve; serve(**json.loads(sys.argv[1]))"
)


class ForkServer:
    """A running fork server, a child process of this one.

    Args:
        connection: connection to the server.
        process: the server's process.
    """

    def __init__(
        self, connection: socket.socket, process: subprocess.Popen[bytes] | _ForkedProcess
    ) -> None:
        self._connection = connection
        self._process = process

    @classmethod
    def start(cls) -> ForkServer:
        """Start a new Python process."""
        connection, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            arguments = {
                "main_fd": server_end.fileno(),
                "trainer": os.getpid(),
                "ends_with_thread": _is_main_thread(),
            }
            with interrupt_held():  # until `serve` ignores it
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, json.dumps(arguments), *search_path()],
                    pass_fds=[server_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **WORKER_ENVIRONMENT},
                )
        return cls(connection, process)

    @classmethod
    def fork(cls, source: AnySource) -> ForkServer:
        """Fork this process into a server, which has the source without pickling.

        As with multiprocessing's fork, locks held by other threads stay locked; but the fork
        happens once, not for each worker and each epoch.

        Args:
            source: source of its workers.
        """
        connection, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trainer, ends_with_thread = os.getpid(), _is_main_thread()
        sys.stdout.flush()  # or both processes would write the buffered text
        sys.stderr.flush()
        with interrupt_held():  # until `serve` ignores it
            pid = os.fork()
            if pid == 0:
                _serve_in_child(server_end, trainer, ends_with_thread, source)
        server_end.close()
        return cls(connection, _ForkedProcess(pid))

    def alive(self) -> bool:
        """Return True if it is running. A server closes its connection before it exits."""
        try:
            self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # open: the server sends nothing
            return self._process.poll() is None
        except OSError:
            pass
        return False

    def kill(self) -> None:
        """Kill it; the kernel then kills its workers. Other users start another server."""
        self._process.kill()

    def adopt(self, fds: Sequence[int], preload: Sequence[str]) -> None:
        """Register a worker pool.

        Args:
            fds: its descriptors: control, tasks, results, block; then, unless the server already
                has the source, the payload and the descriptors of its resources.
            preload: modules to import before the first worker is forked; errors are ignored.

        Raises:
            OSError: the server has ended.
        """
        for first in range(0, len(fds), MAX_FDS):
            part = fds[first : first + MAX_FDS]
            message = {"descriptors": len(part), "of": len(fds), "preload": list(preload)}
            socket.send_fds(self._connection, [json.dumps(message).encode()], list(part))

    def stop(self) -> None:
        """End it and its workers. May be called again."""
        # close() alone is not enough: a child forked in the meantime may hold a copy.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it is still importing, or stuck
            self._process.wait()


class _ForkedProcess:
    """A forked child, with the methods of `subprocess.Popen` that `ForkServer` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._has_ended = False

    def poll(self) -> int | None:
        """Return None while it runs, otherwise 0."""
        if not self._has_ended:
            try:
                self._has_ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                self._has_ended = True  # other code waited for it
        return 0 if self._has_ended else None

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = float("inf")) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(0.001)


def _is_main_thread() -> bool:
    """Return True in the main thread. PR_SET_PDEATHSIG refers to the starting thread."""
    return threading.current_thread() is threading.main_thread()


def _serve_in_child(
    connection: socket.socket, trainer: int, ends_with_thread: bool, source: AnySource
) -> None:
    """Run the server in the forked child. Never returns."""
    try:
        gc.freeze()  # do not finalize the trainer's garbage here
        # Like multiprocessing's children, it must not read the terminal.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # remove a framework's handler
        os.environ.update(WORKER_ENVIRONMENT)
        serve(connection.fileno(), trainer, ends_with_thread, source)
    finally:
        os._exit(1)


# Reentrant: garbage collection of a loader may release the server while this thread holds it.
_lock = threading.RLock()
_server: ForkServer | None = None
_users: set[weakref.ref[object]] = set()


def acquire(user: object) -> ForkServer:
    """Return this process's shared server; start it if needed.

    It runs until every user has released it or is garbage. Acquiring twice has no further effect,
    so an interrupted call can be repeated.
    """
    global _server
    with _lock:
        _users.add(weakref.ref(user, _discard))
        if _server is not None and not _server.alive():
            _server.stop()
            _server = None
        if _server is None:
            _server = ForkServer.start()
        return _server


def release(user: object) -> None:
    """Release the shared server; the last release stops it."""
    _discard(weakref.ref(user))


def _discard(user: weakref.ref[object]) -> None:
    global _server
    with _lock:
        _users.discard(user)
        if not _users and _server is not None:
            server, _server = _server, None
            server.stop()


def _drop_parents_server() -> None:
    global _lock, _server, _users
    _lock, _server, _users = threading.RLock(), None, set()


os.register_at_fork(after_in_child=_drop_parents_server)
