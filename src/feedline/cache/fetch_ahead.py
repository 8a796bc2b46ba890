"""Images that come from far away, fetched some time before they are read.

Guarantees: a bounded number is fetched at a time or waits to be read; what goes wrong is raised
where the image is read; a pickle holds none, and a process that was forked fetches its own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from feedline.remote.folder import AT_ONCE

__all__ = ["FetchAhead"]


class FetchAhead:
    """Fetches the images that were planned, in threads.

    Args:
        fetch: gives an image; called from several threads.
    """

    def __init__(self, fetch: Callable[[int], bytes]) -> None:
        self._fetch = fetch
        self._begin()

    def _begin(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._process = 0
        self._next: Iterator[int] = iter(())
        self._waiting: deque[tuple[int, Future[bytes]]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return {"_fetch": self._fetch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def plan(self, samples: Iterable[int]) -> None:
        """Fetch these next, in this order, and nothing of an earlier plan any more."""
        if self._threads is None or self._process != os.getpid():
            self._begin()  # what a parent has planned stays untouched, its locks too
            self._threads = ThreadPoolExecutor(AT_ONCE)
            self._process = os.getpid()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._next = iter(samples)
        self._fill()

    def result(self, sample: int) -> bytes:
        """An image that is the next of the plan, or any other."""
        planned = self._process == os.getpid() and any(sample == at for at, _ in self._waiting)
        if not planned:
            return self._fetch(sample)
        while True:
            at, future = self._waiting.popleft()
            self._fill()
            if at == sample:
                return future.result()
            future.cancel()  # it was not wanted in the end

    def _fill(self) -> None:
        assert self._threads is not None
        while len(self._waiting) < AT_ONCE:
            sample = next(self._next, None)
            if sample is None:
                return
            self._waiting.append((sample, self._threads.submit(self._fetch, sample)))
