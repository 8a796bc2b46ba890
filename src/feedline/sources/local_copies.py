"""Local copies of remote files, in sparse files, and the disk space of all processes' copies.

    FOLDER/NAME-0123456789abcdef.remote/index/*.npy       index of a cache
    FOLDER/NAME-0123456789abcdef.remote/256/000000.part   parts of a shard, at the shard's offsets
    FOLDER/NAME-0123456789abcdef.remote/0/000012.part     images 3072 to 3327, in slots of 64 MiB

Guarantees: errors of the disk never fail a read, they count as no copy; no descriptor stays open,
so that a removed file frees its space at once. Only these files are ever removed, and removing one
that a process uses does no harm; the disk is never filled up. If several processes write at the
same moment, each may exceed the limit by one image, or by 1/32 of the remaining space.

Relies on: a checksum of each copy. Unwritten parts read as zeros or not at all; all processes write
the same bytes to the same positions, so no lock is needed. Few files contain many images, so that
their total size is computed quickly, whatever the number of images.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import shutil
import struct
import time
from typing import Any, NamedTuple

import xxhash

from feedline.errors import UsageError
from feedline.sources.files import open_nonblocking
from feedline.system import BINARY, slashed, write_at

_DEFAULT_BYTES = 50_000_000_000
_IDLE_S = 600.0
"""Minimum time since a file's last use before it is removed. An epoch reads each image once, so the
least recently used files are used next, and replacing them by the most recent would be a loss."""
_FULL_S = 10.0
_TOUCH_S = 60.0
_MAX_RESERVED_BYTES = 64 << 20
_PROCESSES = 32
_BLOCK_BYTES = 4096

_FILE = re.compile(
    r".*-[0-9a-f]{16}\.remote/(index|\d+)/[\w-]+\.(npy|part)(\.[0-9a-f]{32}\.partial)?"
)
"""Path of a copy in the folder of all copies."""

_HEADER = struct.Struct("<QQ")  # length and checksum of an image
_IMAGES_PER_FILE = 256
_SLOT_BYTES = 64 << 20
_MAX_IMAGE_BYTES = _SLOT_BYTES - _HEADER.size

_WRITE = (
    os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | BINARY
)

_log = logging.getLogger("feedline")


class _CopyFile(NamedTuple):
    used_at: float
    bytes: int
    path: str


class DiskBudget:
    """Disk space for copies in a folder, which a process reserves before it writes."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._reserved_bytes = 0
        self._full_until = 0.0

    def __reduce__(self) -> tuple[type[DiskBudget], tuple[str, int]]:
        return DiskBudget, (self.folder, self.limit_bytes)

    def reserve(self, count: int) -> bool:
        """Return True if this many bytes may be written; frees space if possible."""
        count = -(-count // _BLOCK_BYTES) * _BLOCK_BYTES
        if count > self._reserved_bytes:
            if time.monotonic() < self._full_until:
                return False
            space = self._space()
            if count > space:
                self.pause()
                return False
            self._reserved_bytes = max(count, min(space // _PROCESSES, _MAX_RESERVED_BYTES))
        self._reserved_bytes -= count
        return True

    def pause(self) -> None:
        """Stop writing for a while, after the disk rejected something."""
        self._reserved_bytes, self._full_until = 0, time.monotonic() + _FULL_S

    def _space(self) -> int:
        """Number of bytes that may be written; if there are few, idle files are removed first."""
        files = _copy_files(self.folder)
        space = self._unused(files)
        if space < self.limit_bytes // 64:
            missing = self.limit_bytes // 8 - space
            before = time.time() - _IDLE_S
            for used_at, count, path in sorted(files):
                if missing <= 0 or used_at > before:
                    break
                with contextlib.suppress(OSError):  # another process was quicker
                    os.unlink(path)
                for _ in range(2):  # a resolution's folder, and the cache's
                    path = os.path.dirname(path)
                    with contextlib.suppress(OSError):  # it is not empty
                        os.rmdir(path)
                missing -= count
            space = self._unused(_copy_files(self.folder))
        return max(0, space)

    def _unused(self, files: list[_CopyFile]) -> int:
        return min(self.limit_bytes - sum(each.bytes for each in files), free_bytes(self.folder))


def disk_budget(local_dir: str | os.PathLike[str] | None, local_bytes: int | None) -> DiskBudget:
    """Disk space for fetched files from a user's settings; None for the defaults."""
    whole = isinstance(local_bytes, int) and not isinstance(local_bytes, bool)
    if local_bytes is not None and not (whole and local_bytes > 0):
        raise UsageError(
            f"must be a whole number above 0, got {local_bytes!r}", argument="local_bytes"
        )
    folder = os.path.abspath(os.path.expanduser(local_dir or user_cache_folder()))
    return DiskBudget(folder, default_limit(folder) if local_bytes is None else local_bytes)


def user_cache_folder() -> str:
    """Folder of feedline below $XDG_CACHE_HOME or ~/.cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(caches, "feedline")


def copies_folder(local_dir: str, url: str, digest: str) -> str:
    """Folder for the copies of a URL's contents, named by the URL's last part and a digest of
    everything that must be equal for a copy to be valid, 16 hexadecimal digits.
    """
    name = re.sub(r"[^\w-]+", "_", url.rstrip("/").rpartition("/")[2], flags=re.ASCII)[:40]
    return os.path.join(local_dir, f"{name}-{digest}.remote")


def default_limit(folder: str) -> int:
    """Default disk space for copies in a folder: 50 GB, and at most half of the available space."""
    used = sum(each.bytes for each in _copy_files(folder))
    return min(_DEFAULT_BYTES, (used + free_bytes(folder)) // 2)


def free_bytes(folder: str) -> int:
    """Bytes that may be written to a folder's disk, except its last twentieth, or 5 GB."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = shutil.disk_usage(folder)
    return disk.free - min(disk.total // 20, 5_000_000_000)


def _copy_files(folder: str) -> list[_CopyFile]:
    """All files of copies below a folder."""
    files = []
    for name in glob.iglob("*.remote/*/*", root_dir=folder):
        if _FILE.fullmatch(slashed(name)):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # removed meanwhile
                status = os.lstat(path)
                blocks: int | None = getattr(status, "st_blocks", None)
                size = status.st_size if blocks is None else 512 * blocks
                files.append(_CopyFile(status.st_mtime, size, path))
    return files


class LocalCopies:
    """Copies of parts of some files, at the same positions."""

    def __init__(self, folder: str, budget: DiskBudget) -> None:
        self._folder, self._budget = folder, budget
        self._touched: dict[str, float] = {}
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_touched": {}}

    def read(self, name: str, first: int, length: int) -> bytes | None:
        """Read the bytes at a position of a file, unchecked; None without any."""
        path = self._path(name)
        try:
            with open(path, "rb", opener=open_nonblocking) as file:
                file.seek(first)
                data = file.read(length)
        except OSError:
            return None
        if len(data) < length:
            return None
        now = time.monotonic()
        if now - self._touched.get(path, -_TOUCH_S) >= _TOUCH_S:
            self._touched[path] = now
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def write(self, name: str, first: int, data: bytes) -> None:
        """Write bytes to their position, if there is space."""
        if not self._budget.reserve(len(data)):
            return
        path = self._path(name)
        try:
            try:
                descriptor = os.open(path, _WRITE, 0o600)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                descriptor = os.open(path, _WRITE, 0o600)
            try:
                write_at(descriptor, data, first)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._budget.pause()
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "fetched images cannot be stored in %s: %s; they are fetched again when needed",
                    self._folder,
                    error.strerror or error,
                )

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name.rpartition(".")[0] + ".part")


class ImageCopies(LocalCopies):
    """Copies of whole images by number, each after its length and checksum."""

    def read_image(self, number: int, identity: str) -> bytes | None:
        """Read an image; None if there is no intact copy. `identity` differs for another image."""
        name, first = _slot(number)
        header = self.read(name, first, _HEADER.size)
        if header is None:
            return None
        length, checksum = _HEADER.unpack(header)
        if not 0 < length <= _MAX_IMAGE_BYTES:
            return None
        data = self.read(name, first + _HEADER.size, length)
        return data if data is not None and _checksum(data, identity) == checksum else None

    def write_image(self, number: int, identity: str, data: bytes) -> None:
        """Write an image, if there is space."""
        if 0 < len(data) <= _MAX_IMAGE_BYTES:
            header = _HEADER.pack(len(data), _checksum(data, identity))
            self.write(*_slot(number), header + data)


def _slot(number: int) -> tuple[str, int]:
    """Name of an image's file, and its first byte there."""
    file, slot = divmod(number, _IMAGES_PER_FILE)
    return f"0/{file:06}.part", slot * _SLOT_BYTES


def _checksum(data: bytes, identity: str) -> int:
    return xxhash.xxh3_64_intdigest(data, xxhash.xxh3_64_intdigest(identity.encode()))
