"""Atomic writing of files, and syncing them to the disk.

Guarantees: a file gets its name when it is complete; a synced file survives a power cut.

Relies on: fsync, of a file for its bytes, of a folder for the names in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import ResourceError
from feedline.system import write_through

__all__ = [
    "PARTIAL",
    "partial_path",
    "report_disk_errors",
    "sync_files",
    "sync_names",
    "write_atomic",
]

PARTIAL = "*.partial"
"""Pattern of the names of incomplete files."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def report_disk_errors(root: str) -> Iterator[None]:
    """Context that converts errors of a full or unwritable disk to a ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise ResourceError(
            f"cannot write the cache {root!r}: {error}. Finished shards are kept",
            hint="run the same build again to continue when the disk is writable",
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
