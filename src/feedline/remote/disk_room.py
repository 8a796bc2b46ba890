"""Disk space for local copies of remote files, for all processes together.

    FOLDER/NAME-0123456789abcdef.remote/index/*.npy
    FOLDER/NAME-0123456789abcdef.remote/256/000000.part

Guarantees: only these files are ever removed, and removing one that a process uses does no harm;
the disk is never filled up. Processes that write at the same moment may exceed the limit together:
each by one image, or by a thirty-second of the remaining space.

Relies on: the times of files, which are updated when they are used; no lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from typing import NamedTuple

from feedline.errors import UsageError

__all__ = ["ENDING", "PART_ENDING", "DiskRoom", "default_limit", "folder_for", "local_room"]

ENDING = ".remote"
PART_ENDING = ".part"

DEFAULT_BYTES = 50_000_000_000

_FOLDER = re.compile(r".*-[0-9a-f]{16}\.remote")
_SUBFOLDER = re.compile(r"index|\d+")
_FILE = re.compile(r"[\w-]+\.(npy|part|tmp)")

_IDLE_S = 600.0
"""Minimum time since a file's last use before it is removed. An epoch reads each image once, so the
least recently used files are used next, and replacing them by the most recent would be a loss."""

_FULL_S = 10.0
_MOST_AT_ONCE_BYTES = 64 << 20
_PROCESSES = 32
_BLOCK_BYTES = 4096


class _Kept(NamedTuple):
    used_at: float
    bytes: int
    path: str


class DiskRoom:
    """Disk space for copies in a folder. A process asks before it writes.

    Args:
        folder: folder of all copies.
        limit_bytes: maximum disk space.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._left_bytes = 0
        self._full_until = 0.0

    def take(self, count: int) -> bool:
        """Return True if this many bytes may be written; makes room if possible."""
        count = -(-count // _BLOCK_BYTES) * _BLOCK_BYTES
        if count > self._left_bytes:
            if time.monotonic() < self._full_until:
                return False
            room = self._room()
            self._left_bytes = min(room // _PROCESSES, _MOST_AT_ONCE_BYTES)
            if count > self._left_bytes:
                if count > room:
                    self.refuse()
                    return False
                self._left_bytes = count
        self._left_bytes -= count
        return True

    def refuse(self) -> None:
        """Stop writing for a while, after the disk rejected something."""
        self._left_bytes, self._full_until = 0, time.monotonic() + _FULL_S

    def _room(self) -> int:
        """Number of bytes that may be written; if there are few, idle files are removed first."""
        kept = _kept(self.folder)
        room = self._left(kept)
        if room < self.limit_bytes // 64:
            wanted = self.limit_bytes // 8 - room
            before = time.time() - _IDLE_S
            for used_at, count, path in sorted(kept):
                if wanted <= 0 or used_at > before:
                    break
                with contextlib.suppress(OSError):  # another process was quicker
                    os.unlink(path)
                wanted -= count
            _remove_empty(self.folder)
            room = self._left(_kept(self.folder))
        return max(0, room)

    def _left(self, kept: list[_Kept]) -> int:
        used = sum(each.bytes for each in kept)
        return min(self.limit_bytes - used, free_bytes(self.folder))


def local_room(local_dir: str | os.PathLike[str] | None, local_bytes: int | None) -> DiskRoom:
    """Disk space for fetched files from a user's settings; None for the defaults.

    Args:
        local_dir: the folder; None for `feedline` in $XDG_CACHE_HOME or ~/.cache.
        local_bytes: maximum disk space; None for `default_limit`.

    Raises:
        UsageError: invalid number of bytes.
    """
    whole = isinstance(local_bytes, int) and not isinstance(local_bytes, bool)
    if local_bytes is not None and not (whole and local_bytes > 0):
        raise UsageError(f"local_bytes must be a whole number above 0, got {local_bytes!r}")
    folder = os.path.abspath(os.path.expanduser(local_dir or _default_folder()))
    return DiskRoom(folder, default_limit(folder) if local_bytes is None else local_bytes)


def _default_folder() -> str:
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(caches, "feedline")


def folder_for(local_dir: str, url: str, digest: str) -> str:
    """Folder for the copies of a URL's contents.

    Args:
        local_dir: folder of all copies.
        url: URL whose last part becomes the folder's name.
        digest: 16 hexadecimal digits, of everything that must be equal for a copy to be valid.
    """
    called = re.sub(r"[^\w-]+", "_", url.rstrip("/").rpartition("/")[2], flags=re.ASCII)[:40]
    return os.path.join(local_dir, f"{called}-{digest}{ENDING}")


def default_limit(folder: str) -> int:
    """Default disk space for copies in a folder: 50 GB, and at most half of the available space."""
    used = sum(each.bytes for each in _kept(folder))
    return min(DEFAULT_BYTES, (used + free_bytes(folder)) // 2)


def free_bytes(folder: str) -> int:
    """Bytes that may be written to a folder's disk, except its last twentieth, or 5 GB."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = shutil.disk_usage(folder)
    return disk.free - min(disk.total // 20, 5_000_000_000)


def _kept(folder: str) -> list[_Kept]:
    """Files kept below a folder."""
    found = []
    for cache in _entries(folder, _FOLDER):
        for part in _entries(cache.path, _SUBFOLDER):
            for file in _entries(part.path, _FILE):
                with contextlib.suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    found.append(_Kept(status.st_mtime, _on_disk(status), file.path))
    return found


def _on_disk(status: os.stat_result) -> int:
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else 512 * blocks


def _entries(folder: str, named: re.Pattern[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if named.fullmatch(entry.name)]
    except OSError:  # removed meanwhile, or no folder
        return []


def _remove_empty(folder: str) -> None:
    for cache in _entries(folder, _FOLDER):
        for path in (*(part.path for part in _entries(cache.path, _SUBFOLDER)), cache.path):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(path)
