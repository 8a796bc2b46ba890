"""Ctrl-C and SIGTERM, put off for a moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["put_off", "unnoticed_by_children"]


@contextmanager
def put_off() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act only when this is over, as an impatient second one must.

    Outside the main thread, which alone gets them, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        noted.append(signum)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if noted:
            signal.raise_signal(noted[0])


@contextmanager
def unnoticed_by_children() -> Iterator[None]:
    """Start processes that do not get Ctrl-C until they unblock it themselves."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
