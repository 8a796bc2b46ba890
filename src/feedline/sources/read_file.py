"""Safe reading of the bytes of a file or a part of it.

Guarantees: never waits on a pipe or a device, never reads a directory, never reads more than
1 GiB, leaves no descriptor open. Waits for a file on which another process or host holds a lease.
Relies on the kernel alone: open, stat, read to the size seen.
"""

from __future__ import annotations

import os
import stat

from feedline.errors import ImageError
from feedline.system import BINARY, read_at

__all__ = ["check_size", "read_file", "read_part", "read_small", "without_waiting"]

_MOST_BYTES = 1 << 30

# Without O_NONBLOCK, opening a pipe waits for its writer. No system has all of these.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_FLAGS = os.O_RDONLY | _NONBLOCK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0) | BINARY


def check_size(size: int) -> None:
    """Check the size of an image in bytes.

    Raises:
        ImageError: it is above 1 GiB. The message does not name the image.
    """
    if size > _MOST_BYTES:
        raise ImageError(f"it has {size} bytes, above the limit of {_MOST_BYTES}")


def read_file(path: bytes) -> bytes:
    """Read a whole file.

    Raises:
        ImageError: it is missing, unreadable, not a regular file or above 1 GiB. The message does
            not name the file: the caller knows its name.
    """
    try:
        # os.open is measured faster than open(), and reading into kept memory is no faster.
        descriptor = _open(path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ImageError(f"it is {_kind(status.st_mode)}, not a file")
            size = status.st_size
            check_size(size)
            parts: list[bytes] = []
            # A network file system may give less than it is asked for; nothing is the end.
            while size > 0 and (part := os.read(descriptor, size)):
                parts.append(part)
                size -= len(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ImageError(
            f"it cannot be read: {error.strerror or error}"
            + (" (removed, or a wrong name)" if error.errno == 2 else "")
        ) from error
    except ValueError as error:  # of a zero byte
        raise ImageError(f"invalid file name: {error}") from error


def without_waiting(path: str | bytes, flags: int) -> int:
    """Open a file without waiting if it is a pipe: an `opener` of Python's `open`."""
    return _open(path, flags | _FLAGS)


def _open(path: str | bytes, flags: int) -> int:
    try:
        return os.open(path, flags)
    except BlockingIOError:
        # A lease on the file (fcntl, an NFS delegation, a Samba oplock) is given up for an open
        # that waits, and refuses one that does not.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise
        return os.open(path, flags & ~_NONBLOCK)


def read_small(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read the first bytes of a file that should be small: at most one more than `most_bytes`.

    From a pipe it reads what the writer sends; a pipe without a writer raises an error.

    Raises:
        OSError: it cannot be read.
        ValueError: invalid file name.
    """
    with open(path, "rb", opener=without_waiting) as file:
        pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        if pipe:
            os.set_blocking(file.fileno(), True)
        data = file.read(most_bytes + 1)
    if pipe and not data:
        raise OSError(f"{os.fspath(path)!r} is a pipe without a writer")
    return data


def read_part(path: bytes, first: int, length: int) -> bytes:
    """Read bytes of a file, from byte `first` on.

    Raises:
        ImageError: the file cannot be read or is too short, or the part is above 1 GiB. The message
            does not name the file.
    """
    check_size(length)
    parts: list[bytes] = []
    try:
        descriptor = _open(path, _FLAGS)
        try:
            while length > 0 and (part := read_at(descriptor, length, first)):
                parts.append(part)
                first += len(part)
                length -= len(part)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ImageError(f"its file cannot be read: {error.strerror or error}") from error
    if length > 0:
        raise ImageError(
            f"its file ends {length} bytes too early; it may have been truncated since it was "
            "listed"
        )
    return b"".join(parts)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
