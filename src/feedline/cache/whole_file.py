"""Files that are there whole or not at all, and when they are on the disk for good.

Guarantees: a file gets its name when it is whole; what was brought to the disk is there after a
power cut.

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
    "disk_told",
    "files_to_disk",
    "names_to_disk",
    "partial_path",
    "write_whole",
]

PARTIAL = "*.partial"
"""What the names of files match that are not whole yet."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def disk_told(root: str) -> Iterator[None]:
    """Say where a disk is full, or cannot be written for another reason.

    Raises:
        ResourceError: it cannot.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        raise ResourceError(
            f"the cache {root!r} cannot be written: {error}. What is done so far stays there: the "
            "same build goes on with it once the disk takes more"
        ) from error


def partial_path(path: Path) -> Path:
    """What a file is called while it is written: by one process of one machine."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")


def write_whole(
    path: Path, data: bytes | np.ndarray[Any, np.dtype[np.uint8]], *, durable: bool = True
) -> None:
    """Write a file that is there whole or not at all: if `durable`, also after a power cut."""
    partial = partial_path(path)
    try:
        with open(partial, "wb") as file:
            file.write(data)  # type: ignore[arg-type]  # numpy says so from 2.3 on
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def names_to_disk(root: str | Path, paths: Iterable[Path]) -> None:
    """Have the names of files below a folder, and of the folders they lie in, written through."""
    top, folders = Path(root), {path.parent for path in paths}
    above = {parent for folder in folders for parent in folder.parents if top in parent.parents}
    for folder in folders | above | {top}:
        write_through(folder)


def files_to_disk(root: str | Path, paths: Collection[Path]) -> None:
    """Have files below a folder written through, with their names."""
    for path in paths:
        write_through(path)
    names_to_disk(root, paths)
