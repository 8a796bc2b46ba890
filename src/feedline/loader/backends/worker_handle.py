"""A worker's process, as tools that know torch's iterators look at it."""

from __future__ import annotations

import contextlib
import time

import psutil

__all__ = ["WorkerHandle"]


class WorkerHandle:
    """A worker's process, with the methods that public code calls on torch's worker objects.

    It never means another process to which the system has given the same id since.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def is_alive(self) -> bool:
        """Return True if it runs."""
        try:
            return (
                self._process is not None
                and self._process.is_running()
                and self._process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def terminate(self) -> None:
        """Send it SIGTERM. Nothing happens if it has ended."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """Send it SIGKILL. Nothing happens if it has ended."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
