"""One block of memory that all processes of a worker pool map.

Guarantees: its size is fixed and all pages are allocated at creation, so no SIGBUS later. It is
freed when the last process using it ends, even if killed.
Relies on: memfd on Linux; elsewhere, and with spawned workers, `multiprocessing.shared_memory`,
whose resource tracker unlinks the memory of a killed owner.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys
import weakref
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from numpy.typing import NDArray

from feedline.errors import ResourceError
from feedline.system import available_memory_bytes

_SHARED_MEMORY = "/dev/shm"


def require_memory(nbytes: int, purpose: str, remedy: str) -> None:
    """Raise ResourceError if less memory is available: the kernel would kill processes later."""
    try:
        available = available_memory_bytes()
    except OSError:  # unknown, e.g. with too many open files
        return
    if nbytes > available:
        raise ResourceError(
            f"{purpose} needs {nbytes / 2**20:,.0f} MiB of memory, but only "
            f"{available / 2**20:,.0f} MiB are available; {remedy}"
        )


class SharedFile:
    """A block with a file descriptor, which is closed by `close` or with the object. Linux."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # The last array closes the mapping: batches may outlive the loader.
        self.array: NDArray[np.uint8] = np.frombuffer(mmap.mmap(fd, 0), dtype=np.uint8)
        self.nbytes = self.array.nbytes
        self._close = weakref.finalize(self, os.close, fd)  # last: if mapping fails, the caller's
        self._close.atexit = False

    @classmethod
    def create(cls, nbytes: int) -> SharedFile:
        """Allocate a block of `nbytes` zero bytes, or raise ResourceError."""
        fd = -1
        try:
            # Not inheritable: it is passed to the fork server explicitly.
            fd = os.memfd_create("feedline", os.MFD_CLOEXEC)
            os.posix_fallocate(fd, 0, nbytes)
            return cls(fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            remedy = "use a smaller batch_size, image size or prefetch"
            if error.errno == errno.EFBIG:
                remedy = "the limit on file sizes (ulimit -f) includes shared memory: raise it"
            raise ResourceError(
                f"cannot allocate {nbytes / 2**20:,.0f} MiB for batches: {error}; {remedy}"
            ) from error

    def close(self) -> None:
        """Close the descriptor and, once no batch uses it, free the memory."""
        self._close()
        self.fd = -1
        self.array = np.empty(0, np.uint8)


class _Segment(SharedMemory):
    """Shared memory that stays mapped while the user holds batches, without warnings."""

    # No contextlib: at the interpreter's exit the globals of modules may be gone.
    def close(self) -> None:
        try:  # noqa: SIM105
            super().close()
        except BufferError:
            pass

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self.close()
        except Exception:  # of the same cause, in the standard library's own code
            pass


class NamedMemory:
    """A named block, for the start method "spawn". With None as name, a new one."""

    def __init__(self, name: str | None, nbytes: int) -> None:
        self.nbytes = nbytes
        self._owner = name is None
        if name is None and sys.platform == "linux":
            try:
                room = os.statvfs(_SHARED_MEMORY)
            except OSError as error:
                raise ResourceError(
                    f"spawned workers need {_SHARED_MEMORY}: {error}. Mount it (docker run "
                    '--shm-size=8g), or use start_method="forkserver", which does not need it'
                ) from error
            if nbytes > room.f_bavail * room.f_frsize:
                raise ResourceError(
                    f"batches need {nbytes / 2**20:,.0f} MiB of /dev/shm, which has "
                    f"{room.f_bavail * room.f_frsize / 2**20:,.0f} MiB free; use "
                    'start_method="forkserver", which does not need it, or smaller batches'
                )
        self._memory = _Segment(name=name, create=name is None, size=nbytes)
        self.name = self._memory.name
        assert self._memory.buf is not None
        self.array: NDArray[np.uint8] = np.frombuffer(
            self._memory.buf, dtype=np.uint8, count=nbytes
        )

    def close(self) -> None:
        """Unlink the block if this process created it; the last array on it frees its memory."""
        self.array = np.empty(0, np.uint8)
        if self._owner:
            self._owner = False
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()
        self._memory.close()
