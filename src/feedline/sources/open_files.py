"""Access to large files with many images: few are open at a time, and changes are detected.

Guarantees: a pickle carries no descriptor; several threads may read at once; never waits on a pipe.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

from feedline.errors import ImageError
from feedline.sources.read_file import without_waiting
from feedline.system import read_at

__all__ = ["OpenFiles"]

_MOST_OPEN = 256


class _Open:
    """A descriptor that is closed with the object."""

    def __init__(self, path: str) -> None:
        self.number = without_waiting(path, os.O_RDONLY)

    def __del__(self) -> None:
        number, self.number = getattr(self, "number", -1), -1
        if number >= 0:
            os.close(number)


class OpenFiles:
    """Opens files on demand.

    Args:
        called: kind of file, e.g. "archive".
        holder: class of the dataset to create again after a change, e.g. "ImageFolder".
    """

    def __init__(self, called: str, holder: str) -> None:
        self._called, self._holder = called, holder
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def read(self, path: str, status: tuple[int, int], first: int, length: int) -> bytes:
        """Read bytes of a file, fewer at its end.

        Args:
            path: path of the file.
            status: its size in bytes and its modification time in ns, at its scan.
            first: first byte.
            length: number of bytes.

        Raises:
            ImageError: it cannot be read, or has changed. The message does not name it.
        """
        opened = self._open.get(path) or self._opened(path, status)
        parts: list[bytes] = []
        try:
            while length > 0 and (part := read_at(opened.number, length, first)):
                parts.append(part)
                first += len(part)
                length -= len(part)
        except OSError as error:
            raise ImageError(f"its {self._called} cannot be read: {error.strerror}") from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _opened(self, path: str, status: tuple[int, int]) -> _Open:
        try:
            found = _Open(path)
            about = os.fstat(found.number)
        except OSError as error:
            raise ImageError(f"its {self._called} cannot be opened: {error.strerror}") from error
        if (about.st_size, about.st_mtime_ns) != status:
            raise ImageError(
                f"its {self._called} has changed since it was scanned: create the {self._holder} "
                "again"
            )
        self._open[path] = found
        while len(self._open) > _MOST_OPEN:  # closed when no thread reads it any more
            self._open.popitem(last=False)
        return found

    def close(self) -> None:
        """Close all files."""
        self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}
