"""The kernel's page cache: drop files from it, and test whether they stay in it.

Relies on: posix_fadvise(DONTNEED), which drops clean pages that are not mapped;
preadv(RWF_NOWAIT), which needs no rights beyond reading. Linux.
"""

from __future__ import annotations

import os

__all__ = ["can_drop", "drop", "stays_in_memory"]

_PROBES = 3


def can_drop() -> bool:
    """Return True if this system has the calls."""
    return hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


def drop(file: int, offset: int = 0, length: int = 0) -> None:
    """Ask the kernel to drop a file's cached pages, which it may decline. A length of 0 extends to
    the end.
    """
    os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)


def stays_in_memory(file: int, offset: int = 0, length: int = 0) -> bool | None:
    """Drop a part of a file, and return True if its first byte is in memory nevertheless; None if
    its file system does not support this.

    A probe of a missing page also starts to read it, and a fast disk can deliver it before the
    probe returns: 7 of 1000 probes of a virtual disk. So the page must be found by several probes,
    each after dropping it again.
    """
    for _ in range(_PROBES):
        drop(file, offset, length)
        found = _in_memory(file, offset)
        if not found:
            return found
    return True


def _in_memory(file: int, offset: int) -> bool | None:
    try:
        os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
