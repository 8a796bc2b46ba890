"""Ctrl-C, SIGTERM, SIGUSR1 and Ctrl-Break as a request to stop, checked between two steps.

Guarantees: the first signal is recorded and reported at once, also while a step runs C code. A
second one has its original effect, so a stuck step can be left; if Python loses the exception, as
in a destructor, the next check raises it. The original handlers are restored at the end.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["StopRequest"]

# Batch systems send SIGUSR1 some time before they end a job; Windows has SIGBREAK instead.
_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGBREAK")
_SIGNALS = [signal.Signals[name] for name in _NAMES if hasattr(signal, name)]


class StopRequest:
    """Records these signals while it is entered; outside the main thread it records none.

    `report` is called with the number of the first signal, from another thread: Python's handlers
    run in the main thread, which may be in a backward pass for seconds.
    """

    def __init__(self, report: Callable[[int], object] = lambda signum: None) -> None:
        self._signum: int | None = None
        self._raised: BaseException | None = None
        self._report = report
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._waker: socket.socket | None = None
        self._watcher: threading.Thread | None = None

    def requested(self) -> int | None:
        """The first signal; None before any. Raises what a second one raised, if Python lost it."""
        if self._raised is not None:
            raise self._raised
        return self._signum

    def _record(self, signum: int, frame: FrameType | None) -> None:
        before = self._before[signum]
        if self._signum is None:
            self._signum = signum
            return
        self._restore()
        if not callable(before):  # the process ends, or nothing is to happen
            signal.raise_signal(signum)
            return
        try:
            before(signum, frame)
        except BaseException as error:
            self._raised = error
            raise

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            listening, self._waker = socket.socketpair()
            self._waker.setblocking(False)
            self._watcher = threading.Thread(target=self._watch, args=(listening,), daemon=True)
            self._watcher.start()
            self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno())
            self._before = {each: signal.signal(each, self._record) for each in _SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()
        if self._waker is not None and self._watcher is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            self._waker.close()
            self._watcher.join()

    def _watch(self, listening: socket.socket) -> None:
        """Report the first signal that C code records, until the other end is closed."""
        reported = False
        with listening:
            while numbers := listening.recv(64):
                signums = [number for number in numbers if number in _SIGNALS]
                if signums and not reported:
                    reported = True
                    self._report(signums[0])
