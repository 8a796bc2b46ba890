"""Files of a folder, local or at a URL, and ranges of files at URLs fetched many at a time.

Guarantees: those of `filesystem`; a list of files is never outdated. Of ranges, those that arrive
in time are returned, even if others fail; returned bytes have the requested length, and with HTTP
and S3 no truncated file is returned; time is bounded, and so is memory, except for requests in
flight.

Relies on: fsspec's own event loop; stores that list the folders in a folder, if folders are
requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple, TypeAlias, TypeVar

import xxhash

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.files import check_size, read_part
from feedline.sources.filesystem import (
    MAX_FILE_BYTES,
    AlteredError,
    Filesystem,
    RangeError,
    RemoteError,
    host_of,
    request_options,
    shown,
)

__all__ = ["THREADS", "FileStatus", "LocalFolder", "Range", "RemoteFolder", "RemoteReader"]

THREADS = 16
"""Requests of each process at a time, in threads."""

_PATIENCE_S = 10.0
"""In addition to the filesystems' own retries. A failed build continues with the same command."""

_BLOCK_BYTES = 4 << 20
_DEADLINE_S = 20.0  # of the requests that are sent together
_SHORT_DEADLINE_S = 2.0  # while a server is unreachable
_CANCEL_S = 1.0
_NO_FILE = (FileNotFoundError, IsADirectoryError, RangeError)
# What filesystems call the version of a file, or the time of its last change.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")

Item = TypeVar("Item")
Result = TypeVar("Result")
Answer: TypeAlias = "bytes | Exception | None"


class FileStatus(NamedTuple):
    """State of a file.

    Args:
        size: size in bytes.
        version: a number that changes with the file: its modification time in ns, or 63 bits of
            what its store provides; 0 if it provides nothing.
    """

    size: int
    version: int


class LocalFolder:
    """Files in a local folder, by their relative paths.

    Args:
        folder: absolute path.
    """

    is_remote = False

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        """Path of a file."""
        return os.path.join(self._folder, name)

    def status(self, name: str) -> FileStatus:
        """State of a file; raises a DatasetError if it cannot be read."""
        with self._reading(name):
            status = os.stat(self.path(name))
        return FileStatus(status.st_size, status.st_mtime_ns)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
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

    def part(self, name: str, first: int, length: int) -> bytes:
        """Read bytes of a file; raises an ImageError."""
        return read_part(self.path(name), first, length)

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call a function for one item after another."""
        return map(call, items)


class RemoteFolder:
    """Files below a URL, by their relative paths. Its text is the URL without user and password.

    Args:
        url: URL of any fsspec protocol.
        options: arguments of the fsspec filesystem. The rest, e.g. credentials, comes from fsspec's
            configuration and from the environment.

    Raises:
        UsageError: the URL is invalid, or a package is missing.
    """

    is_remote = True

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._filesystem = Filesystem(url, options)
        self.url = self._filesystem.url

    def __str__(self) -> str:
        return str(self._filesystem)

    def _call(
        self,
        verb: str,
        name: str,
        function: Callable[[Any, str], Result],
        *,
        answers: tuple[type[Exception], ...] = (),
    ) -> Result:
        """Call a function of the filesystem and the path of a file; raises a RemoteError."""

        def once() -> Result:
            filesystem, top = self._filesystem.opened()
            return function(filesystem, f"{top}/{name}" if name else top)

        failure = f"{self.path(name)!r} cannot be {verb}"
        return self._filesystem.retry(once, failure, patience_s=_PATIENCE_S, answers=answers)

    def path(self, name: str) -> str:
        """URL of a file, for messages."""
        return f"{self}/{name}" if name else str(self)

    def files(self, below: str = "") -> dict[str, FileStatus]:
        """All files in a folder below this one and deeper, by their names below this one."""
        found = self._call("listed", below, lambda there, path: there.find(path, detail=True))
        start = len(self._filesystem.opened()[1]) + 1
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
        """Yield like os.walk: folders, and the names of folders and files in them; "" is this one.

        It descends into the folders that the lists contain when the next one is requested.
        """

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

    def glob(self) -> list[str]:
        """URLs of the files that match this URL as a pattern; itself, if it is one."""

        def search(there: Any, path: str) -> list[str]:
            found = there.glob(path, detail=True)
            files = sorted(each for each, info in found.items() if info["type"] == "file")
            return [there.unstrip_protocol(each) for each in files]

        return self._call("searched", "", search)

    def has(self, name: str) -> bool:
        """Return True if a file exists."""
        return self._call("checked", name, lambda there, path: bool(there.isfile(path)))

    def status(self, name: str) -> FileStatus:
        """State of a file."""
        info = self._call("checked", name, lambda there, path: there.info(path))
        return FileStatus(int(info["size"]), _version(info))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it sequentially, in large blocks; seeking skips blocks.

        Raises:
            DatasetError: it cannot be read, then or later.
        """

        def open_file(there: Any, path: str) -> BinaryIO:
            file: BinaryIO = there.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
            return file

        with self._call("read", name, open_file) as file:
            try:
                yield file
            except DatasetError:
                raise
            except Exception as error:  # each filesystem has exceptions of its own
                why = self._filesystem.describe(error)
                raise RemoteError(f"{self.path(name)!r} cannot be read: {why}") from error

    def read(self, name: str, first: int | None = None, stop: int | None = None) -> bytes:
        """Read a file, or a part of it.

        Raises:
            FileNotFoundError: it is missing.
            RemoteError: it cannot be read.
        """
        data = self._call(
            "read",
            name,
            lambda there, path: there.cat_file(path, start=first, end=stop),
            answers=(FileNotFoundError,),
        )
        return bytes(data)

    def part(self, name: str, first: int, length: int) -> bytes:
        """Read bytes of a file; raises an ImageError if only this file is unavailable."""
        check_size(length)
        try:
            data = self.read(name, first, first + length) if length else b""
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

    def create(self, name: str, data: bytes) -> None:
        """Write a file that must not exist yet.

        Raises:
            FileExistsError: it exists, possibly with these bytes, if the response to a successful
                request was lost.
            RemoteError: it cannot be written.
        """

        def write(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.pipe_file(path, data, mode="create")

        self._call("written", name, write, answers=(FileExistsError,))

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
            self._call("removed", name, lambda there, path: there.rm_file(path), answers=missing)

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Call a function that reads or writes here for each item, and yield the results in order.

        It is called for several items at a time, in threads.
        """
        self._filesystem.opened()  # once, and not by each thread
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(THREADS) as threads:
            try:
                for item in items:
                    waiting.append(threads.submit(call, item))
                    if len(waiting) >= THREADS:
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


def _version(info: Mapping[str, Any]) -> int:
    for name in _VERSIONS:
        if info.get(name) is not None:
            return xxhash.xxh3_64_intdigest(str(info[name]).encode()) >> 1
    return 0


class Range(NamedTuple):
    """Bytes of a file: `length` of them from byte `first` on, or the whole file if it is None."""

    url: str
    first: int = 0
    length: int | None = None

    @property
    def stop(self) -> int | None:
        """End of the range; None for that of the file."""
        return None if self.length is None else self.first + self.length

    def __str__(self) -> str:
        url = repr(shown(self.url))
        if self.length is None:
            return url
        return f"{self.length} bytes of {url} from byte {self.first} on"


class RemoteReader:
    """Ranges of files at some hosts, many at a time. Its length is the number of hosts or buckets.

    Args:
        urls: one or more of each host or bucket.
        options: arguments of the fsspec filesystem; also "batch_size", the number of requests each
            process sends at a time.

    Raises:
        UsageError: a URL or an option is invalid, or a package is missing.
    """

    def __init__(self, urls: Iterable[str], options: Mapping[str, Any] | None = None) -> None:
        self._requests, others = request_options(options)
        self._hosts: dict[str, Filesystem] = {}
        for url in urls:
            if "::" in url:
                raise UsageError(
                    f"{shown(url)!r} uses one protocol within another: use PROTOCOL://HOST/FILE"
                )
            if host_of(url) not in self._hosts:
                self._hosts[host_of(url)] = Filesystem(url, others, requests=self._requests)

    def __len__(self) -> int:
        return len(self._hosts)

    def close(self) -> None:
        """Close the connections; the next read makes others."""
        for filesystem in self._hosts.values():
            filesystem.close()

    def fetch(self, ranges: Sequence[Range], max_bytes: int = MAX_FILE_BYTES) -> list[Answer]:
        """Fetch ranges at the same time. Return the bytes, or the error, of each.

        Args:
            ranges: without duplicates.
            max_bytes: after this many bytes no more requests are started; their results are None.
        """
        by_host: dict[str, list[Range]] = {}
        for each in ranges:
            by_host.setdefault(host_of(each.url), []).append(each)
        answers: dict[Range, Answer] = {}
        for host, some in by_host.items():
            of_host = self._fetch(self._hosts[host], some, max_bytes)
            max_bytes -= sum(len(answer) for answer in of_host if isinstance(answer, bytes))
            answers.update(zip(some, of_host, strict=True))
        return [answers[each] for each in ranges]

    def _fetch(
        self, there: Filesystem, ranges: Sequence[Range], max_bytes: int, *, may_end: bool = False
    ) -> list[Answer]:
        deadline_s = _SHORT_DEADLINE_S if there.is_unreachable else _DEADLINE_S
        answers: list[Answer] = []
        try:
            filesystem, _ = there.opened()
            paths = [filesystem._strip_protocol(each.url) for each in ranges]
            if filesystem.async_impl:
                from fsspec.asyn import sync

                limits = self._requests, deadline_s, max_bytes
                answers = sync(filesystem.loop, _together, filesystem, paths, ranges, *limits)
            else:
                answers = _one_by_one(filesystem, paths, ranges, deadline_s, max_bytes)
        except Exception as error:
            return [error] * len(ranges)
        pairs = zip(ranges, answers, strict=True)
        return [_checked(each, answer, may_end) for each, answer in pairs]

    def read(
        self,
        each: Range,
        *,
        patience_s: float,
        is_intact: Callable[[bytes], bool] = lambda data: True,
        may_end: bool = False,
        advice: Callable[[BaseException], str] | None = None,
    ) -> bytes:
        """Read a range, with retries while that may help.

        Args:
            each: the range.
            patience_s: how long to start retries.
            is_intact: returns True if the bytes are the expected ones.
            may_end: the file may end before the range does.
            advice: as in `Filesystem.retry`.

        Raises:
            RemoteError: it is unavailable; the message has the server's answer.
        """
        there = self._hosts[host_of(each.url)]

        def once() -> bytes:
            (answer,) = self._fetch(there, [each], MAX_FILE_BYTES, may_end=may_end)
            if isinstance(answer, Exception):
                raise answer
            assert answer is not None, "the first request is always started"
            if not is_intact(answer):
                whole = f"got {len(answer)} bytes, which do not match the listing"
                raise AlteredError(whole if each.length is None else "its checksum differs")
            return answer

        failure = f"{Range(each.url) if may_end else each} cannot be read"
        return there.retry(once, failure, patience_s=patience_s, advice=advice)

    def exists(self, url: str, *, patience_s: float) -> bool:
        """Return True if a file exists; raises like `read` if that cannot be determined."""
        there = self._hosts[host_of(url)]

        def once() -> None:
            filesystem, _ = there.opened()
            # Of HTTP, fsspec's info and exists take any failure for a file that is missing.
            filesystem.cat_file(filesystem._strip_protocol(url), start=0, end=1)

        failure = f"{shown(url)!r} cannot be checked"
        try:
            there.retry(once, failure, patience_s=patience_s, answers=_NO_FILE)
        except _NO_FILE as error:
            return isinstance(error, RangeError)
        return True


async def _together(
    filesystem: Any,
    paths: Sequence[str],
    ranges: Sequence[Range],
    requests: int,
    deadline_s: float,
    max_bytes: int,
) -> list[Answer]:
    """Fetch ranges of files with many requests at a time."""
    semaphore, left = asyncio.Semaphore(requests), max_bytes

    async def fetch(path: str, each: Range) -> bytes | None:
        nonlocal left
        async with semaphore:
            if left <= 0:
                return None
            data = bytes(await filesystem._cat_file(path, start=each.first, end=each.stop))
            left -= len(data)
            return data

    tasks = [asyncio.ensure_future(fetch(*pair)) for pair in zip(paths, ranges, strict=True)]
    late: set[asyncio.Task[bytes | None]] = set()
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=deadline_s)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_CANCEL_S)
    too_late = TimeoutError(f"no response within {deadline_s:g} s")
    return [too_late if task in late else _outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[bytes | None]) -> Answer:
    try:
        return task.result()
    except asyncio.CancelledError:
        return ConnectionError("the request was cancelled")
    except Exception as error:
        return error


def _one_by_one(
    filesystem: Any,
    paths: Sequence[str],
    ranges: Sequence[Range],
    deadline_s: float,
    max_bytes: int,
) -> list[Answer]:
    """Fetch ranges of files with one request at a time."""
    answers: list[Answer] = []
    deadline = time.monotonic() + deadline_s
    for path, each in zip(paths, ranges, strict=True):
        if max_bytes <= 0 or time.monotonic() > deadline:
            answers.append(None)
            continue
        try:
            data = bytes(filesystem.cat_file(path, start=each.first or None, end=each.stop))
        except Exception as error:
            answers.append(error)
        else:
            answers.append(data)
            max_bytes -= len(data)
    return answers


def _checked(each: Range, answer: Answer, may_end: bool) -> Answer:
    if not isinstance(answer, bytes):
        return answer
    if each.length is None:
        if len(answer) > MAX_FILE_BYTES:
            return ValueError(f"it has {len(answer)} bytes, above the limit of {MAX_FILE_BYTES}")
        return answer
    if len(answer) == each.length or (may_end and len(answer) < each.length):
        return answer
    return AlteredError(f"got {len(answer)} bytes, expected {each.length}")
