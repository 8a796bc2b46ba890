"""Lock of a cache's folder: one builder at a time, and a check that processes see the same folder.

Guarantees: a builder's token in its lock is unique; so a process, on any machine, that reads it
under the builder's path sees the builder's folder.

Relies on: file locks, which the kernel releases when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator

from feedline.errors import ResourceError, UsageError
from feedline.sources.manifest import LOCK
from feedline.system import BINARY, lock_file, read_at, write_at

__all__ = ["is_locked", "only_builder", "sees_lock"]

_MOST_BYTES = 64
_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | BINARY

_PATIENCE_S = 5.0
"""Workers of a killed builder hold its lock until they have noticed."""


@contextlib.contextmanager
def only_builder(root: str, patience_s: float | None = None) -> Iterator[str]:
    """Work in a folder, created if missing, without another build; returns a token for `sees_lock`.

    Waits `patience_s`, by default a few seconds, for another build to end. Raises a UsageError if
    it is running, and a ResourceError if the folder cannot be written.
    """
    path = os.path.join(root, LOCK)
    try:
        os.makedirs(root, exist_ok=True)
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o644)
    except OSError as error:
        raise ResourceError(
            f"cannot write to the cache folder {root!r}: {error}",
            hint="use a folder that can be created and written to",
        ) from error
    try:
        deadline = time.monotonic() + (_PATIENCE_S if patience_s is None else patience_s)
        while not lock_file(descriptor):
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            said = read_at(descriptor, _MOST_BYTES, 0).decode("ascii", "replace").split()
            raise UsageError(
                f"another build is running in {root!r} (process {said[0] if said else 'unknown'})",
                hint="wait for it, or use another folder",
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
    """Return True if a build is running in a folder."""
    try:
        descriptor = os.open(os.path.join(root, LOCK), _FLAGS)
    except OSError:
        return False
    try:
        return not lock_file(descriptor)
    finally:
        os.close(descriptor)


def sees_lock(root: str, token: str) -> bool:
    """Return True if this process sees the folder that a builder with this token has locked."""
    try:
        with open(os.path.join(root, LOCK), "rb") as file:
            return file.read(_MOST_BYTES).split()[1:] == [token.encode()]
    except OSError:
        return False
