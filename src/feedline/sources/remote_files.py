"""Files of a folder, local or at a URL.

Guarantees: those of `remote_filesystem`; a list of files is never outdated.

Relies on: stores that list the folders in a folder, if folders are requested.
"""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple, TypeVar

import xxhash

from feedline.errors import DatasetError
from feedline.sources.remote_filesystem import FOLDER_PATIENCE_S, Filesystem, RemoteError
from feedline.system import slashed

THREADS = 16
"""Requests of each process at a time, in threads."""

_BLOCK_BYTES = 4 << 20
# What filesystems call the version of a file, or the time of its last change.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")

Item = TypeVar("Item")
Result = TypeVar("Result")


class FileStatus(NamedTuple):
    """Size of a file in bytes, and a number that changes with it: its modification time in ns, or
    63 bits of what its store provides; 0 if it provides nothing.
    """

    size: int
    version: int


class LocalFolder:
    """Files in a local folder, by their relative paths."""

    is_remote = False

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def has(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield like os.walk, which ignores folders that cannot be listed."""
        return os.walk(self.path(below))

    def listed(self, below: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and files in a folder; "" is this one."""
        _, folders, files = next(self.walk(below), ("", [], []))
        return folders, files

    def files(self) -> Iterator[str]:
        """Yield the names of all files, at any depth."""
        for folder, _, files in self.walk():
            for file in files:
                yield slashed(os.path.relpath(os.path.join(folder, file), self._folder))

    def matches(self) -> tuple[LocalFolder, list[str]]:
        """Folder of the files that match this path as a pattern, and their names in it, sorted."""
        if os.path.isdir(self._folder):
            return self, []
        is_file = os.path.exists(self._folder)
        paths = [self._folder] if is_file else sorted(glob.glob(self._folder))
        if not paths:
            return self, []
        folder = os.path.commonpath(list(map(os.path.dirname, paths)))
        return LocalFolder(folder), [slashed(os.path.relpath(path, folder)) for path in paths]

    def status(self, name: str) -> FileStatus:
        """State of a file; raises a DatasetError if it cannot be read."""
        with self._reading(name):
            status = os.stat(self.path(name))
        return FileStatus(status.st_size, status.st_mtime_ns)

    @contextlib.contextmanager
    def open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a seekable file; a DatasetError is raised if it cannot be read, now or later."""
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

    def map(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return map(call, items)


class RemoteFolder(Filesystem):
    """Files below a URL, by their relative paths.

    Methods raise a RemoteError if a request fails.
    """

    is_remote = True

    def _call(
        self,
        verb: str,
        name: str,
        function: Callable[[Any, str], Result],
        *,
        reraise: tuple[type[Exception], ...] = (),
    ) -> Result:
        """Call a function of the filesystem and the path of a file; raises a RemoteError."""

        def once() -> Result:
            filesystem, top = self.opened()
            return function(filesystem, f"{top}/{name}" if name else top)

        failure = f"{self.path(name)!r} cannot be {verb}"
        return self.retry(once, failure, patience_s=FOLDER_PATIENCE_S, reraise=reraise)

    def path(self, name: str) -> str:
        """URL of a file, for messages."""
        return f"{self}/{name}" if name else str(self)

    def files(self, below: str = "") -> dict[str, FileStatus]:
        """All files in a folder below this one and deeper, by their names below this one."""
        found = self._call("listed", below, lambda there, path: there.find(path, detail=True))
        start = len(self.opened()[1]) + 1
        return {
            path[start:]: FileStatus(int(info.get("size") or 0), _version(info))
            for path, info in found.items()
            if len(path) > start and not path.endswith("/")  # an object that marks a folder
        }

    def listed(self, below: str = "") -> tuple[list[str], list[str]]:
        """Names of the folders and files in a folder; "" is this one."""
        _, folders, files = next(self.walk(below), ("", [], []))
        return folders, files

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield like os.walk; "" is this folder."""

        def list_one(there: Any, path: str) -> tuple[list[str], list[str]]:
            folders: list[str] = []
            files: list[str] = []
            for info in there.ls(path, detail=True):
                each = info["name"].rstrip("/")
                if each != path:  # an object that marks the folder has its name
                    names = folders if info["type"] == "directory" else files
                    names.append(each.rpartition("/")[2])
            return folders, files

        folders, files = self._call("listed", below, list_one)
        yield below, folders, files
        for name in folders:
            yield from self.walk(f"{below}/{name}" if below else name)

    def matches(self) -> tuple[RemoteFolder, list[str]]:
        """Folder of the files that match this URL as a pattern, and their names in it, sorted."""

        def search(there: Any, path: str) -> list[str]:
            found = there.glob(path, detail=True)
            files = sorted(each for each, info in found.items() if info["type"] == "file")
            return [there.unstrip_protocol(each) for each in files]

        paths = [url.partition("://")[2] for url in self._call("searched", "", search)]
        if not paths:
            return self, []
        folder = posixpath.commonpath(list(map(posixpath.dirname, paths)))
        there = RemoteFolder(f"{self.url.partition('://')[0]}://{folder}", self.options)
        return there, [posixpath.relpath(path, folder) for path in paths]

    def has(self, name: str) -> bool:
        return self._call("checked", name, lambda there, path: bool(there.isfile(path)))

    def status(self, name: str) -> FileStatus:
        info = self._call("checked", name, lambda there, path: there.info(path))
        return FileStatus(int(info["size"]), _version(info))

    @contextlib.contextmanager
    def open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it sequentially, in large blocks; seeking skips blocks."""

        def open_file(there: Any, path: str) -> BinaryIO:
            file: BinaryIO = there.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
            return file

        with self._call("read", name, open_file) as file:
            try:
                yield file
            except DatasetError:
                raise
            except Exception as error:  # each filesystem has exceptions of its own
                why = f"{type(error).__name__}: {error}"
                raise RemoteError(f"{self.path(name)!r} cannot be read: {why}") from error

    def read(self, name: str) -> bytes:
        """Read a file; raises FileNotFoundError if it is missing."""
        missing = (FileNotFoundError,)
        return bytes(self._call("read", name, lambda at, path: at.cat_file(path), reraise=missing))

    def create(self, name: str, data: bytes) -> None:
        """Write a new file. FileExistsError: it exists, possibly with these bytes, if the response
        to a successful request was lost.
        """

        def write(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.pipe_file(path, data, mode="create")

        self._call("written", name, write, reraise=(FileExistsError,))

    def put(self, name: str, file: str | os.PathLike[str]) -> None:
        """Write a whole file, from a local one."""

        def write(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.put_file(os.fspath(file), path)

        self._call("written", name, write)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        missing = (FileNotFoundError,)
        with contextlib.suppress(*missing):
            self._call("removed", name, lambda there, path: there.rm_file(path), reraise=missing)

    def map(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call a function that reads or writes here for each item, in threads; results in order."""
        self.opened()  # once, and not by each thread
        with ThreadPoolExecutor(THREADS) as threads:
            yield from threads.map(call, items)


def _make_folders(there: Any, path: str) -> None:
    """Create the parent folders of a file, if the store has folders: object stores have none."""
    if not there.async_impl:
        there.makedirs(path.rpartition("/")[0], exist_ok=True)


def _version(info: Mapping[str, Any]) -> int:
    for name in _VERSIONS:
        if info.get(name) is not None:
            return xxhash.xxh3_64_intdigest(str(info[name]).encode()) >> 1
    return 0
