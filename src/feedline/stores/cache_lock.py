"""One builder at a time in a cache's folder, and how others see that they look at the same folder.

Guarantees: what a builder has written into its lock is unlike any other's; so a process, on
whichever machine, that reads it under the builder's path sees the builder's folder.

Relies on: a file's lock, which the kernel takes back when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator

from feedline.errors import ResourceError, UsageError
from feedline.stores.cache_layout import LOCK
from feedline.system import BINARY, lock_file, read_at, write_at

__all__ = ["is_locked", "only_builder", "sees_lock"]

_MOST_BYTES = 64
_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | BINARY

_PATIENCE_S = 5.0
"""The workers of a builder that was killed hold its lock until they have seen that."""


@contextlib.contextmanager
def only_builder(root: str, patience_s: float | None = None) -> Iterator[str]:
    """Work in a folder where no other build does; gives a token, by which `sees_lock` knows it.

    Args:
        root: the cache's folder; made if it is missing.
        patience_s: how long to wait for another build to end; None for a few seconds.

    Raises:
        UsageError: one does.
        ResourceError: the folder cannot be made or written to.
    """
    path = os.path.join(root, LOCK)
    try:
        os.makedirs(root, exist_ok=True)
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o644)
    except OSError as error:
        raise ResourceError(
            f"the cache {root!r} cannot be built there: {error}. Name a folder that can be made "
            "and written to"
        ) from error
    try:
        deadline = time.monotonic() + (_PATIENCE_S if patience_s is None else patience_s)
        while not lock_file(descriptor):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            said = read_at(descriptor, _MOST_BYTES, 0).decode("ascii", "replace").split()
            raise UsageError(
                f"another build works in {root!r} (process {said[0] if said else 'unknown'}): wait "
                "for it, or name another folder"
            )
        token = secrets.token_hex(16)
        os.ftruncate(descriptor, 0)
        write_at(descriptor, f"{os.getpid()} {token}\n".encode(), 0)
        os.fsync(descriptor)  # so that other machines see it, too
        yield token
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def is_locked(root: str) -> bool:
    """Whether a builder works in a folder at this moment."""
    try:
        descriptor = os.open(os.path.join(root, LOCK), _FLAGS)
    except OSError:
        return False
    try:
        return not lock_file(descriptor)
    finally:
        os.close(descriptor)


def sees_lock(root: str, token: str) -> bool:
    """Whether what this process sees as a folder is the one that a builder with a token locks."""
    try:
        with open(os.path.join(root, LOCK), "rb") as file:
            return file.read(_MOST_BYTES).split()[1:] == [token.encode()]
    except OSError:
        return False
