"""A folder that is named by a URL: its files, through fsspec.

Guarantees: each process makes a connection of its own, also a forked one, and a pickle holds none;
what cannot be reached is an error that names the URL and says what fsspec said; a list of files is
never one of before.

Relies on: fsspec and its filesystems, imported here and only for a URL; these ask again where that
may help.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple, TypeVar

import xxhash

from feedline.errors import DatasetError, UsageError

__all__ = ["AT_ONCE", "RemoteFile", "RemotePath", "is_url"]

AT_ONCE = 16
"""Requests of each process at a time."""

_BLOCK_BYTES = 4 << 20
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
# What filesystems call the version of a file, or the time of its last change.
_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime")

Item = TypeVar("Item")
Result = TypeVar("Result")

# To open one takes up to a second, so all of a process share it.
_opened: dict[str, Any] = {}
# A child must not close what its parent has opened: both share the connections and the event loop's
# side of the kernel. So it keeps them, and does not use them.
_inherited: list[Any] = []


def _inherit() -> None:
    _inherited.extend(_opened.values())
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)


class RemoteFile(NamedTuple):
    """A file as its store lists it.

    Args:
        size: in bytes.
        version: 63 bits that change when the file does; 0 where the store does not say.
    """

    size: int
    version: int


def is_url(given: object) -> bool:
    """Whether something is a URL, as s3://bucket/folder, and no path of this machine."""
    return isinstance(given, str) and _URL.match(given) is not None


class RemotePath:
    """A folder below a URL.

    Args:
        url: of any protocol that fsspec knows; options come from fsspec's configuration and from
            the environment, as credentials do.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._store = "/".join(self.url.split("/")[:3])

    def _at(self) -> tuple[Any, str]:
        """The filesystem of this process, and the folder's path there."""
        filesystem = _opened.get(self._store)
        try:
            if filesystem is None:
                from fsspec.core import url_to_fs

                options = {"skip_instance_cache": True, "use_listings_cache": False}
                _opened[self._store] = filesystem = url_to_fs(self._store, **options)[0]
            return filesystem, filesystem._strip_protocol(self.url).rstrip("/")
        except ImportError as error:
            raise UsageError(
                f"{self.url!r} needs a package that is not there ({error}): for S3 and HTTP "
                'pip install "feedline[remote]", for others the package that fsspec names'
            ) from error
        except ValueError as error:
            raise UsageError(f"{self.url!r} cannot be used: {error}") from error

    def _asked(
        self, what: str, name: str, ask: Callable[[Any, str], Result], *, sure: bool = True
    ) -> Result:
        """Do something to a file.

        Args:
            what: is done, for the error.
            name: of the file, below the folder.
            ask: does it, with the filesystem and the path.
            sure: that the file is missing is an error like others.

        Raises:
            FileNotFoundError: it is missing, and that was to be expected.
            DatasetError: anything else.
        """
        filesystem, top = self._at()
        try:
            return ask(filesystem, f"{top}/{name}" if name else top)
        except Exception as error:  # each store has exceptions of its own
            if isinstance(error, FileNotFoundError) and not sure:
                raise
            _opened.pop(self._store, None)  # another try has what the environment then says
            raise DatasetError(
                f"{self.file_url(name)!r} cannot be {what}: {type(error).__name__}: {error}. Is "
                "the name right, is the store reached from here, and are there credentials in the "
                "environment? For a store of your own set its address, for S3 AWS_ENDPOINT_URL"
            ) from error

    def file_url(self, name: str) -> str:
        """The URL of a file below the folder."""
        return f"{self.url}/{name}" if name else self.url

    def files(self, below: str = "") -> dict[str, RemoteFile]:
        """All files in a folder below this one and deeper, by their names below this one."""
        found = self._asked("listed", below, lambda there, path: there.find(path, detail=True))
        start = len(self._at()[1]) + 1
        return {
            path[start:]: RemoteFile(int(about.get("size") or 0), _version(about))
            for path, about in found.items()
            if len(path) > start and not path.endswith("/")  # what stands for a folder
        }

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """As os.walk gives folders, and the names of folders and files in them; "" is this one."""
        _, top = self._at()
        steps = self._asked("listed", "", lambda there, path: there.walk(path, on_error="raise"))
        while (step := self._asked("listed", "", lambda *_: next(steps, None))) is not None:
            folder, folders, files = step
            yield folder.rstrip("/")[len(top) + 1 :], folders, [file for file in files if file]

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

    def open(self, name: str) -> BinaryIO:
        """A file to read from its beginning on, in large blocks; seeking passes blocks over."""
        opened: BinaryIO = self._asked(
            "read",
            name,
            lambda there, path: there.open(
                path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead"
            ),
        )
        return opened

    def read(self, name: str, first: int | None = None, stop: int | None = None) -> bytes:
        """A file, or a part of it.

        Raises:
            FileNotFoundError: it is missing.
            DatasetError: it cannot be read.
        """
        data = self._asked(
            "read",
            name,
            lambda there, path: there.cat_file(path, start=first, end=stop),
            sure=False,
        )
        return bytes(data)

    def create(self, name: str, data: bytes) -> None:
        """Write a file that must not be there yet.

        Raises:
            FileExistsError: it is.
        """

        def ask(there: Any, path: str) -> bool:
            _make_folders(there, path)
            try:
                there.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

        if not self._asked("written", name, ask):
            raise FileExistsError(self.file_url(name))

    def put(self, name: str, file: str | os.PathLike[str]) -> None:
        """Write a file whole, from one of this machine."""

        def ask(there: Any, path: str) -> None:
            _make_folders(there, path)
            there.put_file(os.fspath(file), path)

        self._asked("written", name, ask)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._asked("removed", name, lambda there, path: there.rm_file(path), sure=False)

    def each(self, call: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What a function that reads or writes here gives for each of some items, in their order.

        It is called for several of them at a time, in threads.
        """
        self._at()
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
