"""Ctrl-C, SIGTERM and SIGUSR1 as a request to stop, which a loop looks at between two steps.

Guarantees: the first signal is only noted; a second one acts as it did before (so that a stuck step
can be left). The earlier handlers are back when the context ends.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["StopRequest"]

# SIGUSR1 is what batch systems send some time before they take a machine back.
_SIGNALS = [
    signal.SIGINT,
    signal.SIGTERM,
    *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []),
]


class StopRequest:
    """Notes these signals while it is entered; outside the main thread it notes nothing."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signum is not None

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self.signum = signum
        self._restore()

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._note) for each in _SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()
