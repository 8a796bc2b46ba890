"""One builder at a time in a cache's folder.

Relies on: flock, which the kernel takes back when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from feedline.errors import UsageError
from feedline.stores.cache_layout import LOCK

__all__ = ["is_locked", "only_builder"]

_PATIENCE_S = 5.0
"""The workers of a builder that was killed hold its lock until they have seen that."""


@contextlib.contextmanager
def only_builder(root: str, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Work in a folder where no other build does.

    Args:
        root: the cache's folder, which is there.
        patience_s: how long to wait for another build to end.

    Raises:
        UsageError: one does.
    """
    descriptor = os.open(os.path.join(root, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + patience_s
        while not _locked(descriptor):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            said = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
            raise UsageError(
                f"another build works in {root!r} (process {said or 'unknown'}): wait for it, or "
                "name another folder"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def is_locked(root: str) -> bool:
    """Whether a builder works in a folder at this moment."""
    try:
        descriptor = os.open(os.path.join(root, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
