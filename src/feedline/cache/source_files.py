"""Files of a source: in a local folder or below a URL, with prefetching for the latter.

Guarantees: a missing or changed file of an image is an ImageError; an unreachable store is a
DatasetError, so that its images do not count as broken.

Relies on: `read_file` for local files, `remote.folder` for others.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol, TypeVar

from feedline.errors import DatasetError, ImageError
from feedline.remote.folder import AT_ONCE, RemoteFolder
from feedline.sources.read_file import check_size, read_part

__all__ = ["ImagePrefetcher", "LocalFiles", "RemoteFiles", "SourceFiles"]


Result = TypeVar("Result")


class SourceFiles(Protocol):
    """Files by their relative paths. Pickled and sent to every worker."""

    @property
    def is_remote(self) -> bool:
        """True if they are below a URL, with a long latency per file."""
        ...

    def path(self, name: str) -> str:
        """Return the path of a file, or its URL."""
        ...

    def status(self, name: str) -> tuple[int, int]:
        """Return the size of a file in bytes, and a number that changes with the file.

        Raises:
            DatasetError: the file cannot be read.
        """
        ...

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a seekable file.

        Raises:
            DatasetError: the file cannot be read, now or later.
        """
        ...

    def part(self, name: str, first: int, length: int) -> bytes:
        """Read `length` bytes of a file from byte `first`.

        Raises:
            ImageError: the file is too short; the message does not name it.
            DatasetError: the file is unreachable.
        """
        ...

    def each(self, call: Callable[[str], Result], names: Sequence[str]) -> Iterable[Result]:
        """Call a function that reads a file for each name. Return the results in order."""
        ...


class LocalFiles:
    """Files in a local folder.

    Args:
        folder: absolute path.
    """

    is_remote = False

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return os.path.join(self._folder, name)

    def status(self, name: str) -> tuple[int, int]:
        """Return the size of a file and its modification time in ns."""
        with self._reading(name):
            found = os.stat(self.path(name))
        return found.st_size, found.st_mtime_ns

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a seekable file."""
        with self._reading(name), open(self.path(name), "rb") as file:
            yield file

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DatasetError(
                f"cannot read {self.path(name)!r}: {error.strerror or error}"
            ) from error

    def part(self, name: str, first: int, length: int) -> bytes:
        """Read bytes of a file."""
        return read_part(os.fsencode(self.path(name)), first, length)

    def each(self, call: Callable[[str], Result], names: Sequence[str]) -> Iterable[Result]:
        """Call a function for one file after another."""
        return map(call, names)


class RemoteFiles:
    """Files below a URL.

    Args:
        folder: the remote folder.
    """

    is_remote = True

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        """Return the URL of a file."""
        return self._folder.file_url(name)

    def status(self, name: str) -> tuple[int, int]:
        """Return the size of a file, and a hash of its version in the store."""
        return self._folder.about(name)

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a seekable file."""
        return self._folder.opened(name)

    def part(self, name: str, first: int, length: int) -> bytes:
        """Read bytes of a file, or a whole one."""
        check_size(length)
        try:
            data = self._folder.read(name, first, first + length) if length else b""
        except FileNotFoundError:
            raise ImageError("its file is missing: removed since the source was listed?") from None
        if len(data) > length:
            raise DatasetError(
                f"requested {length} bytes of {self.path(name)!r}, got {len(data)}: its server "
                "does not support range requests",
                hint="copy the files to a disk, or to an object store",
            )
        if len(data) < length:
            raise ImageError(
                f"got {len(data)} of {length} bytes of its file: truncated since the source was "
                "listed?"
            )
        return data

    def each(self, call: Callable[[str], Result], names: Sequence[str]) -> Iterable[Result]:
        """Call a function for several files at a time, in threads."""
        return self._folder.each(call, names)


class ImagePrefetcher:
    """Fetches planned images in threads.

    Args:
        fetch: fetches an image; called from several threads.
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
        """Fetch these images next, in this order, instead of an earlier plan."""
        if self._threads is None or self._process != os.getpid():
            self._begin()  # a parent's plan and locks stay untouched
            self._threads = ThreadPoolExecutor(AT_ONCE)
            self._process = os.getpid()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._next = iter(samples)
        self._fill()

    def result(self, sample: int) -> bytes:
        """Return an image: the next one of the plan, or any other."""
        planned = self._process == os.getpid() and any(sample == at for at, _ in self._waiting)
        if not planned:
            return self._fetch(sample)
        while True:
            at, future = self._waiting.popleft()
            self._fill()
            if at == sample:
                return future.result()
            future.cancel()  # skipped by the reader

    def _fill(self) -> None:
        assert self._threads is not None
        while len(self._waiting) < AT_ONCE:
            sample = next(self._next, None)
            if sample is None:
                return
            self._waiting.append((sample, self._threads.submit(self._fetch, sample)))
