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

from feedline.engine.process import SINGLE_THREADED

__all__ = ["ForkServer", "hold", "let_go"]

_STOP_DEADLINE_S = 0.3
_BOOT = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from feedline.engine.forkserver import serve; serve(**a['serve'])"
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
                "path": [entry or os.getcwd() for entry in sys.path],
                "serve": {
                    "main_fd": theirs.fileno(),
                    "trainer": os.getpid(),
                    "preload": list(preload),
                    # The kernel's death signal is for the death of the starting thread.
                    "tied": threading.current_thread() is threading.main_thread(),
                },
            }
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(start)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **SINGLE_THREADED},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def adopt(self, fds: Sequence[int]) -> None:
        """Hand over a crew: control, tasks, results, block and shipment descriptors.

        Raises:
            OSError: it is gone.
        """
        socket.send_fds(self._connection, [b"crew"], list(fds))

    def stop(self) -> None:
        """End it, and with it any worker left."""
        self._connection.close()
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            # It is still importing, or stuck: nothing in it is worth waiting for.
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_server: ForkServer | None = None
_owner = 0
_users = 0


def hold(preload: Sequence[str]) -> ForkServer:
    """This process's fork server, started or started anew if need be. Pair with `let_go`."""
    global _server, _owner, _users
    with _lock:
        if _owner != os.getpid():  # inherited by fork: it is our parent's, not ours
            _server, _owner, _users = None, os.getpid(), 0
        if _server is None or not _server.alive():
            if _server is not None:
                _server.stop()
            _server = ForkServer(preload)
        _users += 1
        return _server


def let_go() -> None:
    """Say that one `hold` is over; the last one stops the server."""
    global _server, _users
    with _lock, contextlib.suppress(OSError):
        if _owner != os.getpid():
            return
        _users -= 1
        if _users == 0 and _server is not None:
            _server.stop()
            _server = None
