"""The bytes of a file or of a part of it, read without surprises.

Guarantees: never waits on a pipe or a device, never reads a directory, never reads more than
1 GiB, leaves no descriptor open. Waits for a file on which another process or host holds a lease.
Relies on the kernel alone: open, look, read to the size seen.
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
    """See whether an image of so many bytes is read.

    Raises:
        ImageError: it is above 1 GiB. The message does not name it.
    """
    if size > _MOST_BYTES:
        raise ImageError(f"it has {size} bytes, and at most {_MOST_BYTES} are read")


def read_file(path: bytes) -> bytes:
    """Read a whole file.

    Raises:
        ImageError: it is missing, may not be read, is no regular file or is above 1 GiB. The
            message does not name the file: the caller knows how to print it.
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
            + (" (removed, or a name that was never there?)" if error.errno == 2 else "")
        ) from error
    except ValueError as error:  # of a zero byte
        raise ImageError(f"no file can have its name: {error}") from error


def without_waiting(path: str | bytes, flags: int) -> int:
    """Open what may be a pipe: an `opener` of Python's `open`."""
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
    """The first bytes of a file that should be small: no more than one beyond `most_bytes`.

    Of a pipe they are what its writer gives; it is an error where no one has it open for writing.

    Raises:
        OSError: it cannot be read.
        ValueError: no file can have such a name.
    """
    with open(path, "rb", opener=without_waiting) as file:
        pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        if pipe:
            os.set_blocking(file.fileno(), True)
        data = file.read(most_bytes + 1)
    if pipe and not data:
        raise OSError(f"{os.fspath(path)!r} is a pipe, and nothing writes to it")
    return data


def read_part(path: bytes, first: int, length: int) -> bytes:
    """Read so many bytes of a file, from byte `first` on.

    Raises:
        ImageError: the file cannot be read or ends before, or these are above 1 GiB. The message
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
            f"its file ends {length} bytes before it does: cut off since it was listed?"
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
