"""Files in the kernel's page cache: to put them out of it, and to see whether they stay in it.

Relies on: posix_fadvise(DONTNEED), which drops pages that are as on the disk and that no one has
mapped; preadv(RWF_NOWAIT), which needs no rights beyond reading. Linux.
"""

from __future__ import annotations

import os

__all__ = ["can_drop", "drop", "stays_in_memory"]

_LOOKS = 3


def can_drop() -> bool:
    """Whether this system has the calls."""
    return hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


def drop(file: int, offset: int = 0, length: int = 0) -> None:
    """Ask the kernel to forget what it holds of a file, which it may decline.

    Args:
        file: a descriptor.
        offset, length: of a part, in bytes; a length of 0 goes to the end.
    """
    os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)


def stays_in_memory(file: int, offset: int = 0, length: int = 0) -> bool | None:
    """Drop a part of a file, and tell whether memory holds its first byte all the same.

    A look begins to fetch what is not there, and a quick disk can deliver it before the look ends:
    up to 7 of 1000 looks at a virtual disk met that. So a part stays only if each of several looks,
    each behind a drop of its own, finds it.

    Args:
        file: a descriptor.
        offset, length: of the part, in bytes; a length of 0 goes to the end.

    Returns:
        None where its file system does not say.
    """
    for _ in range(_LOOKS):
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
