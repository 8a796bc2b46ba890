"""Files in the kernel's page cache: to put them out of it, and to see whether they are in it.

Relies on: posix_fadvise(DONTNEED), which drops pages that are as on the disk and that no one has
mapped; preadv(RWF_NOWAIT), which needs no rights beyond reading. Linux.
"""

from __future__ import annotations

import os

__all__ = ["can_drop", "drop", "in_memory"]


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


def in_memory(file: int, offset: int = 0) -> bool | None:
    """Whether a byte of a file is in memory; None where its file system does not say.

    To ask may begin to fetch what is not.
    """
    try:
        os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
