"""A folder at a URL: its files, listed, read and written whole.

Guarantees: those of `filesystem`; a list of files is never outdated.

Relies on: stores that list the folders in a folder, if folders are requested.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple, TypeVar

import xxhash

from feedline.errors import DatasetError
from feedline.remote.error import RemoteError
from feedline.remote.filesystem import Filesystem

__all__ = ["AT_ONCE", "RemoteFile", "RemoteFolder"]

AT_ONCE = 16
"""Requests of each process at a time."""

_PATIENCE_S = 10.0
"""In addition to the filesystems' own retries. A failed build continues with the same command."""

_BLOCK_BYTES = 4 << 20
# What filesystems call the version of a file, or the time of its last change.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")

Item = TypeVar("Item")
Result = TypeVar("Result")


class RemoteFile(NamedTuple):
    """A file as listed by its store.

    Args:
        size: size in bytes.
        version: 63 bits that change with the file; 0 if the store does not provide them.
    """

    size: int
    version: int


class RemoteFolder:
    """A folder at a URL. Its text is the URL without user and password.

    Args:
        url: URL of any fsspec protocol.
        options: arguments of fsspec's filesystem. The rest, e.g. credentials, comes from fsspec's
            configuration and from the environment.

    Raises:
        UsageError: the URL is invalid, or a package is missing.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._there = Filesystem(url, options)
        self.url = self._there.url

    def __str__(self) -> str:
        return str(self._there)

    def _asked(
        self,
        done: str,
        name: str,
        ask: Callable[[Any, str], Result],
        *,
        answers: tuple[type[Exception], ...] = (),
    ) -> Result:
        """Call a function on a file.

        Args:
            done: what is done, for the error.
            name: name of the file, below the folder.
            ask: function of the filesystem and the path.
            answers: exceptions that are answers, and raised unchanged.

        Raises:
            RemoteError: it fails.
        """

        def once() -> Result:
            filesystem, top = self._there.opened()
            return ask(filesystem, f"{top}/{name}" if name else top)

        refused = f"{self.file_url(name)!r} cannot be {done}"
        return self._there.ask(once, refused, patience_s=_PATIENCE_S, answers=answers)

    def file_url(self, name: str) -> str:
        """URL of a file below the folder, for messages."""
        return f"{self}/{name}" if name else str(self)

    def files(self, below: str = "") -> dict[str, RemoteFile]:
        """All files in a folder below this one and deeper, by their names below this one."""
        found = self._asked("listed", below, lambda there, path: there.find(path, detail=True))
        start = len(self._there.opened()[1]) + 1
        return {
            path[start:]: RemoteFile(int(about.get("size") or 0), _version(about))
            for path, about in found.items()
            if len(path) > start and not path.endswith("/")  # what stands for a folder
        }

    def listed(self, below: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and files in a folder; "" is this one."""
        _, folders, files = next(self.walk(below), ("", [], []))
        return folders, files

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield like os.walk: folders, and the names of folders and files in them; "" is this one.

        It descends into the folders that the lists contain when the next one is requested.
        """

        def ask(there: Any, path: str) -> tuple[list[str], list[str]]:
            folders: list[str] = []
            files: list[str] = []
            for about in there.ls(path, detail=True):
                each = about["name"].rstrip("/")
                if each != path:  # what has the name of the folder stands for it
                    found = folders if about["type"] == "directory" else files
                    found.append(each.rpartition("/")[2])
            return folders, files

        folders, files = self._asked("listed", below, ask)
        yield below, folders, files
        for name in folders:
            yield from self.walk(f"{below}/{name}" if below else name)

    def glob(self) -> list[str]:
        """URLs of the files that match this URL as a pattern; itself, if it is one."""

        def ask(there: Any, path: str) -> list[str]:
            found = there.glob(path, detail=True)
            files = sorted(each for each, about in found.items() if about["type"] == "file")
            return [there.unstrip_protocol(each) for each in files]

        return self._asked("searched", "", ask)

    def has(self, name: str) -> bool:
        """Return True if a file exists."""
        return self._asked("checked", name, lambda there, path: bool(there.isfile(path)))

    def about(self, name: str) -> RemoteFile:
        """Size and version of a file."""
        found = self._asked("checked", name, lambda there, path: there.info(path))
        return RemoteFile(int(found["size"]), _version(found))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it sequentially, in large blocks; seeking skips blocks.

        Raises:
            DatasetError: it cannot be read, then or later.
        """

        def ask(there: Any, path: str) -> BinaryIO:
            opened: BinaryIO = there.open(
                path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead"
            )
            return opened

        with self._asked("read", name, ask) as file:
            try:
                yield file
            except DatasetError:
                raise
            except Exception as error:  # each store has exceptions of its own
                said = self._there.says(error)
                raise RemoteError(f"{self.file_url(name)!r} cannot be read: {said}") from error

    def read(self, name: str, first: int | None = None, stop: int | None = None) -> bytes:
        """Read a file, or a part of it.

        Raises:
            FileNotFoundError: it is missing.
            RemoteError: it cannot be read.
        """
        data = self._asked(
            "read",
            name,
            lambda there, path: there.cat_file(path, start=first, end=stop),
            answers=(FileNotFoundError,),
        )
        return bytes(data)

    def create(self, name: str, data: bytes) -> None:
        """Write a file that must not exist yet.

        Raises:
            FileExistsError: it exists, possibly with these bytes, if the response to a successful
                request was lost.
            RemoteError: it cannot be written.
        """

        def ask(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.pipe_file(path, data, mode="create")

        self._asked("written", name, ask, answers=(FileExistsError,))

    def put(self, name: str, file: str | os.PathLike[str]) -> None:
        """Write a whole file, from a local one."""

        def ask(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.put_file(os.fspath(file), path)

        self._asked("written", name, ask)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._asked(
                "removed",
                name,
                lambda there, path: there.rm_file(path),
                answers=(FileNotFoundError,),
            )

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call a function that reads or writes here for each item, and yield the results in order.

        It is called for several items at a time, in threads.
        """
        self._there.opened()  # once, and not by each thread
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            try:
                for item in items:
                    waiting.append(threads.submit(call, item))
                    if len(waiting) >= AT_ONCE:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for each in waiting:
                    each.cancel()


def _make_folders(there: Any, path: str) -> None:
    """Create the parent folders of a file, if the store has folders: object stores have none."""
    if not there.async_impl:
        there.makedirs(path.rpartition("/")[0], exist_ok=True)


def _version(about: Mapping[str, Any]) -> int:
    for name in _VERSIONS:
        if about.get(name) is not None:
            return xxhash.xxh3_64_intdigest(str(about[name]).encode()) >> 1
    return 0
