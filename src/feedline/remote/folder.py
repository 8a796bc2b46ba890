"""A folder that is named by a URL: its files, listed, read and written whole.

Guarantees: those of `filesystem`; a list of files is never one of before.

Relies on: stores that list the folders in a folder, where folders are asked for.
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
"""Beside what filesystems repeat by themselves. What fails then goes on with the same command."""

_BLOCK_BYTES = 4 << 20
# What filesystems call the version of a file, or the time of its last change.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")

Item = TypeVar("Item")
Result = TypeVar("Result")


class RemoteFile(NamedTuple):
    """A file as its store lists it.

    Args:
        size: in bytes.
        version: 63 bits that change when the file does; 0 where the store does not say.
    """

    size: int
    version: int


class RemoteFolder:
    """A folder below a URL. Its text is the URL without user and password.

    Args:
        url: of any protocol that fsspec knows.
        options: the arguments of fsspec's filesystem. What they leave open comes from fsspec's
            configuration and from the environment, as credentials do.

    Raises:
        UsageError: the URL cannot be used, or a package is missing.
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
        """Do something to a file.

        Args:
            done: what is done, for the error.
            name: of the file, below the folder.
            ask: does it, with the filesystem and the path.
            answers: exceptions that say what was asked, and are raised as they are.

        Raises:
            RemoteError: it fails.
        """

        def once() -> Result:
            filesystem, top = self._there.opened()
            return ask(filesystem, f"{top}/{name}" if name else top)

        refused = f"{self.file_url(name)!r} cannot be {done}"
        return self._there.ask(once, refused, patience_s=_PATIENCE_S, answers=answers)

    def file_url(self, name: str) -> str:
        """The URL of a file below the folder, to print it."""
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
        """The names of the folders and files in a folder; "" is this one."""
        _, folders, files = next(self.walk(below), ("", [], []))
        return folders, files

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """As os.walk gives folders, and the names of folders and files in them; "" is this one.

        It goes where the lists of folders say when the next one is asked for.
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
        """The URLs of the files that this URL is a pattern of; itself, where that is one."""

        def ask(there: Any, path: str) -> list[str]:
            found = there.glob(path, detail=True)
            files = sorted(each for each, about in found.items() if about["type"] == "file")
            return [there.unstrip_protocol(each) for each in files]

        return self._asked("looked for", "", ask)

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return self._asked("looked at", name, lambda there, path: bool(there.isfile(path)))

    def about(self, name: str) -> RemoteFile:
        """What the store says of a file."""
        found = self._asked("looked at", name, lambda there, path: there.info(path))
        return RemoteFile(int(found["size"]), _version(found))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file to read from its beginning on, in large blocks; seeking passes blocks over.

        Raises:
            DatasetError: it cannot be read, then or later on.
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
        """A file, or a part of it.

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
        """Write a file that must not be there yet.

        Raises:
            FileExistsError: it is, perhaps with these bytes, where a request went through of which
                the answer was lost.
            RemoteError: it cannot be written.
        """

        def ask(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.pipe_file(path, data, mode="create")

        self._asked("written", name, ask, answers=(FileExistsError,))

    def put(self, name: str, file: str | os.PathLike[str]) -> None:
        """Write a file whole, from one of this machine."""

        def ask(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.put_file(os.fspath(file), path)

        self._asked("written", name, ask)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._asked(
                "removed",
                name,
                lambda there, path: there.rm_file(path),
                answers=(FileNotFoundError,),
            )

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What a function that reads or writes here gives for each of some items, in their order.

        It is called for several of them at a time, in threads.
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
    """Make the folders that a file lies in, where there are such: not in stores of objects."""
    if not there.async_impl:
        there.makedirs(path.rpartition("/")[0], exist_ok=True)


def _version(about: Mapping[str, Any]) -> int:
    for name in _VERSIONS:
        if about.get(name) is not None:
            return xxhash.xxh3_64_intdigest(str(about[name]).encode()) >> 1
    return 0
