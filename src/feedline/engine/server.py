"""Fork servers, as the trainer controls them.

The clean one is a new Python process: one per trainer, started and stopped on demand. A forked one
is a fork of the trainer itself, with its dataset: one per worker pool.

Guarantees: each runs only while a pool uses it. A process forked from the trainer never uses, and
never stops, its parent's server.
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
from collections.abc import Sequence

from feedline.engine.forkserver import MAX_FDS, serve
from feedline.engine.process import WORKER_ENVIRONMENT, interrupt_held
from feedline.engine.shipment import search_path
from feedline.engine.slots import OwnFork
from feedline.engine.source import AnySource

__all__ = ["ForkServer", "forked", "hold", "let_go"]

_STOP_DEADLINE_S = 0.3
_BOOT = (
    # The working directory is first on this path: nothing is imported before it is off.
    "import sys; sys.path[:] = sys.argv[2:]; import json; "
    "from feedline.engine.forkserver import serve; serve(**json.loads(sys.argv[1]))"
)


class ForkServer:
    """A running fork server, a child process of this one.

    Args:
        connection: connection to the server.
        process: the server's process.
    """

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | _Fork) -> None:
        self._connection = connection
        self._process = process

    def alive(self) -> bool:
        """True if it still serves. A dying server closes its connection before it ends."""
        try:
            self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # it sends nothing, so this is no end
            return self._process.poll() is None
        except OSError:
            pass
        return False

    def kill(self) -> None:
        """Kill it and, through the kernel, its workers. Other users start another server."""
        self._process.kill()

    def adopt(self, fds: Sequence[int]) -> None:
        """Register a worker pool by its descriptors: control, tasks, results, block, payload.

        Descriptors of the payload's resources follow.

        Raises:
            OSError: the server has ended.
        """
        for first in range(0, len(fds), MAX_FDS):
            part = fds[first : first + MAX_FDS]
            message = {"descriptors": len(part), "of": len(fds)}
            socket.send_fds(self._connection, [json.dumps(message).encode()], list(part))

    def stop(self) -> None:
        """End it and any worker left."""
        # Closing alone would not end it: a child forked meanwhile holds a copy.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            # It is still importing, or stuck: nothing in it is worth waiting for.
            self._process.kill()
            self._process.wait()


def _started(preload: Sequence[str]) -> ForkServer:
    """Start a new Python process that imports modules before it forks the first worker."""
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        start = {
            "main_fd": theirs.fileno(),
            "trainer": os.getpid(),
            "preload": list(preload),
            "tied": _is_main_thread(),
        }
        with interrupt_held():  # until `serve` ignores it
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(start), *search_path()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )
    return ForkServer(connection, process)


def forked(source: AnySource) -> ForkServer:
    """Fork this process into a server, which then has the source without pickling.

    The state is the same as with multiprocessing's fork, including locks that another thread holds;
    but the fork happens once, not for each worker and each epoch.

    Args:
        source: source of its workers.
    """
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    trainer, tied = os.getpid(), _is_main_thread()
    sys.stdout.flush()  # or what is buffered would be written by each process
    sys.stderr.flush()
    with interrupt_held():  # until `serve` ignores it
        process = _Fork()
        if process.pid == 0:
            _become_server(theirs, trainer, tied, source)
    theirs.close()
    return ForkServer(connection, process)


def _is_main_thread() -> bool:
    """Return True in the main thread. The kernel's death signal follows the starting thread."""
    return threading.current_thread() is threading.main_thread()


class _Fork:
    """A fork of this process, with the interface of `subprocess.Popen`.

    Slots it may have held become usable again when it is found to have ended.
    """

    def __init__(self) -> None:
        self._ended = False
        with OwnFork() as self._loans:
            self.pid = os.fork()

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
        return self._look(os.WNOHANG)

    def _look(self, options: int) -> int | None:
        if not self._ended:
            try:
                self._ended = os.waitpid(self.pid, options)[0] != 0
            except ChildProcessError:
                self._ended = True  # other code waited for it
            if self._ended:
                self._loans.ended()
        return 0 if self._ended else None

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        if timeout is None:
            self._look(0)
            return
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork server", timeout)
            time.sleep(0.001)


def _become_server(theirs: socket.socket, trainer: int, tied: bool, source: AnySource) -> None:
    """Run the server in the forked child. Never returns."""
    try:
        gc.freeze()  # the trainer's garbage is not for this process to finalize
        # What multiprocessing does for a forked child: it must not read the terminal.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a framework's handler is not for here
        os.environ.update(WORKER_ENVIRONMENT)
        serve(theirs.fileno(), trainer, (), tied, source)
    finally:
        os._exit(1)


# Reentrant: a loader that is garbage may let go while this thread is inside.
_lock = threading.RLock()
_server: ForkServer | None = None
_owner = 0
_holders: set[int] = set()


def hold(holder: object, preload: Sequence[str]) -> ForkServer:
    """Return this process's fork server; start it if needed.

    It runs until every holder has released it. Acquiring twice has no further effect, so an
    interrupted call can be repeated.
    """
    global _server, _owner, _holders
    with _lock:
        if _owner != os.getpid():  # inherited by fork: it is our parent's, not ours
            _server, _owner, _holders = None, os.getpid(), set()
        _holders.add(id(holder))
        if _server is not None and not _server.alive():
            _server.stop()
            _server = None
        if _server is None:
            _server = _started(preload)
        return _server


def let_go(holder: object) -> None:
    """Release the server; the last release stops it."""
    global _server
    with _lock:
        if _owner != os.getpid():
            return
        _holders.discard(id(holder))
        if not _holders and _server is not None:
            server, _server = _server, None
            server.stop()
