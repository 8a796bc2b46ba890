"""The trainer's hold on its fork server: one per process, started by need, stopped by need.

Guarantees: it runs while a crew uses it and no longer. A process forked from the trainer never
uses, and never stops, its parent's server.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from feedline.engine.process import WORKER_ENVIRONMENT

__all__ = ["ForkServer", "hold", "let_go"]

_STOP_DEADLINE_S = 0.3
_BOOT = (
    # The working directory is first on this path: nothing is imported before it is off.
    "import sys; sys.path[:] = sys.argv[2:]; import json; "
    "from feedline.engine.forkserver import serve; serve(**json.loads(sys.argv[1]))"
)


class ForkServer:
    """A running fork server.

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
            # Python passes over entries of other types, a Path say, and so must we.
            path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(start), *path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **WORKER_ENVIRONMENT},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it and, through the kernel, its workers. Whoever else uses it starts another."""
        self._process.kill()

    def adopt(self, fds: Sequence[int]) -> None:
        """Hand over a crew: control, tasks, results, block and shipment descriptors.

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
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            # It is still importing, or stuck: nothing in it is worth waiting for.
            self._process.kill()
            self._process.wait()


# Reentrant: a loader that is garbage may let go while this thread is inside.
_lock = threading.RLock()
_server: ForkServer | None = None
_owner = 0
_holders: set[int] = set()


def hold(holder: object, preload: Sequence[str]) -> ForkServer:
    """This process's fork server, started or started anew if need be.

    It runs until every holder has let go. Holding twice is as good as once, so that whoever
    was interrupted can begin again.
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
