"""The files that hold a source: in a folder of this machine, or below a URL.

Guarantees: what an image's file is not, or no longer, is an ImageError; that a store is out of
reach is a DatasetError, so that its images are not taken for broken ones.

Relies on: `read_file` for files of this machine, `remote.folder` for others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Protocol, TypeVar

from feedline.errors import DatasetError, ImageError
from feedline.remote.folder import RemoteFolder
from feedline.stores.read_file import check_size, read_part

__all__ = ["FarFiles", "LocalFiles", "SourceFiles"]

Result = TypeVar("Result")


class SourceFiles(Protocol):
    """Files that are named by their paths below a folder. Pickled and sent to every worker."""

    @property
    def far(self) -> bool:
        """Whether they are below a URL, where it takes long until the first byte of each comes."""
        ...

    def path(self, name: str) -> str:
        """The path of a file, or its URL."""
        ...

    def status(self, name: str) -> tuple[int, int]:
        """The size of a file in bytes, and a number that changes when the file does.

        Raises:
            DatasetError: it cannot be looked at.
        """
        ...

    def opened(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file to read and to seek in.

        Raises:
            DatasetError: it cannot be read, then or later on.
        """
        ...

    def part(self, name: str, first: int, length: int) -> bytes:
        """So many bytes of a file, from byte `first` on.

        Raises:
            ImageError: the file does not have them; the message does not name it.
            DatasetError: it is out of reach.
        """
        ...

    def each(self, call: Callable[[str], Result], names: Sequence[str]) -> Iterable[Result]:
        """What a function that reads a file gives for each of some, in their order."""
        ...


class LocalFiles:
    """Files in a folder of this machine.

    Args:
        folder: its absolute path.
    """

    far = False

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        """The path of a file."""
        return os.path.join(self._folder, name)

    def status(self, name: str) -> tuple[int, int]:
        """The size of a file and its time of change, in ns."""
        with self._reading(name):
            found = os.stat(self.path(name))
        return found.st_size, found.st_mtime_ns

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """A file to read and to seek in."""
        with self._reading(name), open(self.path(name), "rb") as file:
            yield file

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DatasetError(
                f"{self.path(name)!r} cannot be read: {error.strerror or error}"
            ) from error

    def part(self, name: str, first: int, length: int) -> bytes:
        """Some bytes of a file."""
        return read_part(os.fsencode(self.path(name)), first, length)

    def each(self, call: Callable[[str], Result], names: Sequence[str]) -> Iterable[Result]:
        """One file after the other."""
        return map(call, names)


class FarFiles:
    """Files below a URL.

    Args:
        folder: what they lie in.
    """

    far = True

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def path(self, name: str) -> str:
        """The URL of a file."""
        return self._folder.file_url(name)

    def status(self, name: str) -> tuple[int, int]:
        """The size of a file, and a hash of what the store calls its version."""
        return self._folder.about(name)

    def opened(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file to read and to seek in."""
        return self._folder.opened(name)

    def part(self, name: str, first: int, length: int) -> bytes:
        """Some bytes of a file, or a whole one."""
        check_size(length)
        try:
            data = self._folder.read(name, first, first + length) if length else b""
        except FileNotFoundError:
            raise ImageError("its file is missing: removed since the source was listed?") from None
        if len(data) > length:
            raise DatasetError(
                f"{length} bytes of {self.path(name)!r} were asked for, and {len(data)} came: its "
                "server gives no parts of files. Copy the files to a disk, or to a store"
            )
        if len(data) < length:
            raise ImageError(
                f"{len(data)} bytes of its file came, and it should have {length}: cut off since "
                "the source was listed?"
            )
        return data

    def each(self, call: Callable[[str], Result], names: Sequence[str]) -> Iterable[Result]:
        """Several files at a time, in threads."""
        return self._folder.each(call, names)
