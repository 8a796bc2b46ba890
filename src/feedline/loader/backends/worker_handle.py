"""A worker's process, as tools that know torch's iterators look at it."""

from __future__ import annotations

import time

import psutil

__all__ = ["WorkerHandle"]


class WorkerHandle:
    """A worker's process, with the few methods that torch's worker objects are asked for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
