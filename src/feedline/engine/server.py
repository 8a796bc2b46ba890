"""The trainer's hold on its fork servers.

The clean one is a new Python: one per process, started by need, stopped by need. A forked one is a
fork of the trainer itself, as it stands with a dataset: one per crew.

Guarantees: each runs while a crew uses it and no longer. A process forked from the trainer never
uses, and never stops, its parent's server.
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
from abc import ABC, abstractmethod
from collections.abc import Sequence

from feedline.engine.forkserver import serve
from feedline.engine.process import WORKER_ENVIRONMENT
from feedline.engine.shipment import search_path
from feedline.engine.slots import OwnFork
from feedline.engine.source import AnySource

__all__ = ["ForkServer", "ForkedServer", "hold", "let_go"]

_STOP_DEADLINE_S = 0.3
_BOOT = (
    # The working directory is first on this path: nothing is imported before it is off.
    "import sys; sys.path[:] = sys.argv[2:]; import json; "
    "from feedline.engine.forkserver import serve; serve(**json.loads(sys.argv[1]))"
)


class _Server(ABC):
    """A running fork server, however it came to be; its process is a child of this one."""

    _connection: socket.socket
    pid: int

    @abstractmethod
    def alive(self) -> bool:
        """Whether it still runs."""

    @abstractmethod
    def kill(self) -> None:
        """Kill it and, through the kernel, its workers."""

    @abstractmethod
    def _ends(self, within_s: float | None) -> bool:
        """Wait for its end, for so many seconds or as long as it takes; whether it came."""

    def adopt(self, fds: Sequence[int]) -> None:
        """Hand over a crew: control, tasks, results, block and perhaps shipment descriptors.

        Raises:
            OSError: it is gone.
        """
        socket.send_fds(self._connection, [b"crew"], list(fds))

    def stop(self) -> None:
        """End it, and with it any worker left."""
        # Closing alone would not end it: a child forked meanwhile holds a copy.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        if not self._ends(_STOP_DEADLINE_S):
            # It is still importing, or stuck: nothing in it is worth waiting for.
            self.kill()
            self._ends(None)


class ForkServer(_Server):
    """A new Python that serves.

    Args:
        preload: modules it imports before it forks the first worker.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            start = {
                "main_fd": theirs.fileno(),
                "trainer": os.getpid(),
                "preload": list(preload),
                # The kernel's death signal is for the death of the starting thread.
                "tied": threading.current_thread() is threading.main_thread(),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(start), *search_path()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )

        self.pid = self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it and, through the kernel, its workers. Other users of it start another."""
        self._process.kill()

    def _ends(self, within_s: float | None) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self._process.returncode is not None


class ForkedServer(_Server):
    """One that is a fork of this process, and so has a source without any pickling.

    What is forked is what multiprocessing's own fork would give to a worker, locks that another
    thread holds included; but it happens once, not for each worker and each epoch.

    Args:
        source: what its workers make.
    """

    def __init__(self, source: AnySource) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trainer = os.getpid()
        tied = threading.current_thread() is threading.main_thread()
        sys.stdout.flush()  # or what is buffered would be written by each process
        sys.stderr.flush()
        with OwnFork() as self._fork:
            self.pid = os.fork()
        self._ended = False
        if self.pid == 0:
            _become_server(theirs, trainer, tied, source)
        theirs.close()

    def alive(self) -> bool:
        """Whether it still runs."""
        return not self._waited(os.WNOHANG)

    def _waited(self, options: int) -> bool:
        """Ask the kernel once; whether it has ended."""
        if not self._ended:
            try:
                self._ended = os.waitpid(self.pid, options)[0] != 0
            except ChildProcessError:
                self._ended = True  # other code waited for it
        return self._ended

    def kill(self) -> None:
        """Kill it and, through the kernel, its workers."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)

    def _ends(self, within_s: float | None) -> bool:
        if within_s is None:
            return self._waited(0)
        deadline = time.monotonic() + within_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._ended

    def stop(self) -> None:
        """End it, and with it any worker left; what it may have held is this process's again."""
        super().stop()
        self._fork.ended()


def _become_server(theirs: socket.socket, trainer: int, tied: bool, source: AnySource) -> None:
    """The forked child. Never returns, whatever happens."""
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
    """This process's fork server, started or started anew if need be.

    It runs until every holder has let go. Holding twice is as good as once, so that an
    interrupted call can be made again.
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
            _server = ForkServer(preload)
        return _server


def let_go(holder: object) -> None:
    """Say that a holder needs the server no more; the last one stops it."""
    global _server
    with _lock:
        if _owner != os.getpid():
            return
        _holders.discard(id(holder))
        if not _holders and _server is not None:
            server, _server = _server, None
            server.stop()
