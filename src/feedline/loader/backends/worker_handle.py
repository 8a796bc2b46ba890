"""Handle of a worker process, for tools that inspect torch's iterators."""

from __future__ import annotations

import contextlib
import time

import psutil

__all__ = ["WorkerHandle"]


class WorkerHandle:
    """Handle with the methods that public code calls on torch's worker objects.

    It never refers to another process that has since got the same id.

    Args:
        pid: process id; None if the worker has not started, as with `multiprocessing.Process`.
    """

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        if pid is not None:
            with contextlib.suppress(psutil.Error):
                self._process = psutil.Process(pid)

    def is_alive(self) -> bool:
        """Return True if the process is running."""
        try:
            return (
                self._process is not None
                and self._process.is_running()
                and self._process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def terminate(self) -> None:
        """Send it SIGTERM. No effect if it has ended."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """Send it SIGKILL. No effect if it has ended."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
