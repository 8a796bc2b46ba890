"""Safe reading of local files: whole, in parts, and from large files that hold many images; atomic
writing, and syncing to the disk.

Guarantees: never waits on a pipe or a device, never reads a directory, never reads more than 1 GiB;
repeats a read for an error of the storage, which may pass, and raises a StorageError if it lasts;
waits for a file on which another process or host holds a lease. `OpenFiles` keeps few files open,
notices when one has changed, may be used by several threads, and pickles without descriptors. A
written file gets its name when it is complete; a synced file survives a power cut.

Relies on: fsync, of a file for its bytes, of a folder for the names in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import ImageError, ResourceError, StorageError
from feedline.system import BINARY, LONG_PATH_HINT, long_path_problem, read_at, write_through

MAX_FILE_BYTES = 1 << 30
"""Maximum length of a whole file, or of an image in one."""

_MAX_OPEN = 256
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)

_PASSING_ERRORS = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "ETIMEDOUT", "EMFILE", "ENFILE", "ENOMEM")
    if hasattr(errno, name)
)
"""Errors of the storage or the system, not of a file."""

_RETRY_AFTER_S = (0.02, 0.1, 0.4, 1.0)

T = TypeVar("T")

# Without O_NONBLOCK, opening a pipe waits for its writer. No system has all of these.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_FLAGS = os.O_RDONLY | _NONBLOCK | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOCTTY", 0) | BINARY


class StorageRead:
    """Context manager around a read from storage, which sets a flag. Does not nest.

    A worker inside a read waits for a disk or a server, which a restart does not repair. The
    training process reads the flag.
    """

    def __init__(self) -> None:
        self._flag: NDArray[np.int64] = np.zeros(1, np.int64)

    def show_in(self, flag: NDArray[np.int64]) -> None:
        """Store the flag in other memory, shape (1,), int64."""
        self._flag = flag

    def __enter__(self) -> None:
        self._flag[0] = 1

    def __exit__(self, *_: object) -> None:
        self._flag[0] = 0


storage_read = StorageRead()
"""The flag of this process."""


def is_storage_failure(error: BaseException) -> bool:
    """Return True for an error of the storage, which says nothing about the file."""
    return isinstance(error, StorageError) or (
        isinstance(error, OSError) and error.errno in _PASSING_ERRORS
    )


def retry_storage(read: Callable[[], T], path: str | bytes) -> T:
    """Call a function that reads a file; repeat it for errors of the storage, for 1.5 s. A
    StorageError, which names the path, if the last try failed, too.
    """
    for wait_s in (*_RETRY_AFTER_S, None):
        try:
            return read()
        except OSError as error:
            if not is_storage_failure(error):
                raise
            if wait_s is None:
                raise StorageError(
                    f"the storage failed at each of {len(_RETRY_AFTER_S) + 1} tries to read "
                    f"{os.fsdecode(path)}: {error.strerror or error}",
                    hint="check the disk or network share, and the limits on open files and memory"
                    ' (ulimit -n). The file may be intact, so on_error="skip" does not skip it',
                ) from error
        time.sleep(wait_s)
    raise AssertionError("the last try returns or raises")


def check_size(size: int) -> None:
    """Raise an ImageError if an image is above 1 GiB. The message does not name it."""
    if size > MAX_FILE_BYTES:
        raise ImageError(f"it has {size} bytes, above the limit of {MAX_FILE_BYTES}")


def open_nonblocking(path: str | bytes, flags: int) -> int:
    """Open a file without waiting if it is a pipe: an `opener` of Python's `open`."""
    flags |= _FLAGS
    try:
        return os.open(path, flags)
    except BlockingIOError:
        # If another process or host has a lease on the file (fcntl, an NFS delegation, a Samba
        # oplock), a non-blocking open fails; a blocking one waits until the lease is released.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise
        return os.open(path, flags & ~_NONBLOCK)


def read_file(path: bytes) -> bytes:
    """Read a whole file; raises an ImageError that does not name it, or a StorageError."""
    try:
        return retry_storage(partial(_read_whole, path), path)
    except OSError as error:
        if problem := long_path_problem(os.fsdecode(path)):
            raise StorageError(
                f"cannot read {os.fsdecode(path)}: {problem}", hint=LONG_PATH_HINT
            ) from error
        raise ImageError(
            f"it cannot be read: {error.strerror or error}"
            + (" (removed, or a wrong name)" if error.errno == 2 else "")
        ) from error
    except ValueError as error:  # of a zero byte
        raise ImageError(f"invalid file name: {error}") from error


def _read_whole(path: bytes) -> bytes:
    # os.open is measured faster than open(), and reading into preallocated memory is no faster.
    descriptor = open_nonblocking(path, 0)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"it is {_kind(status.st_mode)}, not a file")
        size = status.st_size
        check_size(size)
        parts: list[bytes] = []
        # A network file system may return less than requested; nothing is the end.
        while size > 0 and (part := os.read(descriptor, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_small(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read the first bytes of a file that should be small: at most one more than `max_bytes`.

    From a pipe it reads what the writer sends; a pipe without a writer raises an OSError.
    """
    with open(path, "rb", opener=open_nonblocking) as file:
        pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        if pipe:
            os.set_blocking(file.fileno(), True)
        data = file.read(max_bytes + 1)
    if pipe and not data:
        raise OSError(f"{os.fspath(path)!r} is a pipe without a writer")
    return data


def _read_at(descriptor: int, first: int, length: int) -> bytes:
    """Read bytes at a position, fewer at the end of the file."""
    parts: list[bytes] = []
    while length > 0 and (part := read_at(descriptor, length, first)):
        parts.append(part)
        first += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Descriptor:
    """A descriptor that is closed with the object."""

    def __init__(self, path: str) -> None:
        self.number = open_nonblocking(path, 0)

    def __del__(self) -> None:
        number, self.number = getattr(self, "number", -1), -1
        if number >= 0:
            os.close(number)


class OpenFiles:
    """Large files that are opened on demand. Messages name their kind and the dataset's class."""

    def __init__(self, kind: str, dataset: str) -> None:
        self._kind, self._dataset = kind, dataset
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()

    def read(
        self, path: str, status: tuple[int, int], first: int, length: int, *, may_end: bool = False
    ) -> bytes:
        """Read bytes of a file; raises an ImageError that does not name it, or a StorageError.

        `status` has its size in bytes and its modification time in ns, at its scan.
        """

        def read() -> bytes:
            opened = self._open.get(path)
            try:
                opened = opened or self._opened(path, status)
                return _read_at(opened.number, first, length)
            except OSError as error:
                if is_storage_failure(error):
                    self._open.clear()  # a stale descriptor stays stale, others use up the limit
                raise

        try:
            data = retry_storage(read, path)
        except OSError as error:
            raise ImageError(f"its {self._kind} cannot be read: {error.strerror}") from error
        if len(data) < length and not may_end:
            missing = length - len(data)
            raise ImageError(f"its {self._kind} ends {missing} bytes before the end of the image")
        return data

    def _opened(self, path: str, status: tuple[int, int]) -> _Descriptor:
        try:
            opened = _Descriptor(path)
            now = os.fstat(opened.number)
        except OSError as error:
            if is_storage_failure(error):
                raise
            raise ImageError(f"its {self._kind} cannot be opened: {error.strerror}") from error
        if (now.st_size, now.st_mtime_ns) != status:
            raise ImageError(
                f"its {self._kind} has changed since it was scanned: create the {self._dataset} "
                "again"
            )
        self._open[path] = opened
        while len(self._open) > _MAX_OPEN:  # closed when no thread reads it any more
            self._open.popitem(last=False)
        return opened

    def close(self) -> None:
        self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}


@contextlib.contextmanager
def report_disk_errors(root: str) -> Iterator[None]:
    """Context that converts errors of a full or unwritable disk to a ResourceError."""
    try:
        yield
    except OSError as error:
        in_use = sys.platform == "win32" and isinstance(error, PermissionError)
        if error.errno not in _DISK_ERRORS and not in_use:
            raise
        until = "nothing reads the cache" if in_use else "the disk is writable"
        raise ResourceError(
            f"cannot write the cache {root!r}: {error}. Finished shards are kept",
            hint=f"run the same build again to continue when {until}",
        ) from error


def partial_path(path: Path) -> Path:
    """Return a unique temporary path for writing a file."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")


def write_atomic(
    path: Path,
    data: bytes | memoryview | np.ndarray[Any, np.dtype[np.uint8]],
    *,
    durable: bool = True,
) -> None:
    """Write a file atomically; if `durable`, it survives a power cut."""
    partial = partial_path(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)  # type: ignore[arg-type]  # needed before numpy 2.3
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def sync_names(root: str | Path, paths: Iterable[Path]) -> None:
    """Sync the names of files below a folder, and of their parent folders."""
    top, folders = Path(root), {path.parent for path in paths}
    above = {parent for folder in folders for parent in folder.parents if top in parent.parents}
    for folder in folders | above | {top}:
        write_through(folder)


def sync_files(root: str | Path, paths: Collection[Path]) -> None:
    """Sync files below a folder, and their names."""
    for path in paths:
        write_through(path)
    sync_names(root, paths)
