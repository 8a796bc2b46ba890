"""Drop files from the kernel's page cache, and load them into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["drop_from_cache", "read_once"]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def drop_from_cache(folder: Path) -> None:
    """Ask the kernel to drop the files' pages. Pages that are not yet on disk stay."""
    for path in _files(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_once(folder: Path) -> None:
    """Load all files into the page cache."""
    for path in _files(folder):
        path.read_bytes()
