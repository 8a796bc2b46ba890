"""One pass over a loader, and the workers as torch's iterators show them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import psutil

__all__ = ["Iteration", "WorkerHandle"]

_BORN_WITHIN_S = 10.0


class Iteration:
    """The batches of one epoch. An error in one `next` does not end it.

    Args:
        loader: is kept alive by its iterations.
        advance: gives the next batch, or raises StopIteration.
        born: process ids of the workers; None before all are known.
    """

    def __init__(
        self,
        loader: object,
        advance: Callable[[], Any],
        born: Callable[[], list[int] | None],
    ) -> None:
        self._loader = loader
        self._advance = advance
        self._born = born
        self._ended = False

    def __iter__(self) -> Iteration:
        return self

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        """The next batch."""
        if self._ended:
            raise StopIteration
        try:
            return self._advance()
        except StopIteration:
            self._ended = True
            raise

    @property
    def _workers(self) -> list[WorkerHandle]:
        """The workers, as tools that know torch's iterators look for them."""
        deadline = time.monotonic() + _BORN_WITHIN_S
        while (pids := self._born()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return [WorkerHandle(pid) for pid in pids or ()]


class WorkerHandle:
    """A worker's process, with the few methods that torch's worker objects are asked for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        try:
            os.kill(self.pid, 0)
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):
            return False

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
