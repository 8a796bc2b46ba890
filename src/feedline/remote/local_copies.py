"""Parts of remote files, kept in local sparse files.

Guarantees: errors of the disk never fail a read, they count as not kept; no descriptor stays open,
so that a removed file frees its space at once.

Relies on: the reader checking the checksum of a part. Unwritten parts read as zeros or not at all;
all processes write the same bytes to the same positions, so no lock is needed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

from feedline.errors import ImageError
from feedline.remote.disk_room import PART_ENDING, DiskRoom
from feedline.remote.joined_parts import Part
from feedline.sources.read_file import read_part
from feedline.system import BINARY, write_at

__all__ = ["LocalCopies"]

_TOUCH_S = 60.0

_WRITE = (
    os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | BINARY
)

_log = logging.getLogger("feedline")


class LocalCopies:
    """Kept copies of some files.

    Args:
        folder: folder of the copies.
        room: disk space.
    """

    def __init__(self, folder: str, room: DiskRoom) -> None:
        self._folder, self._room = folder, room
        self._touched: dict[str, float] = {}
        self._complained = False

    def read(self, part: Part) -> bytes | None:
        """Read the bytes at a part's position, unchecked; None if there are none."""
        path = self._path(part.name)
        try:
            data = read_part(os.fsencode(path), part.first, part.length)
        except ImageError:
            return None
        self._touch(path)
        return data

    def keep(self, part: Part, data: bytes) -> None:
        """Write a part to its position, if there is space."""
        if not self._room.take(part.length):
            return
        path = self._path(part.name)
        try:
            try:
                descriptor = os.open(path, _WRITE, 0o600)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                descriptor = os.open(path, _WRITE, 0o600)
            try:
                write_at(descriptor, data, part.first)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._room.refuse()
            if not self._complained:
                self._complained = True
                _log.warning(
                    "fetched images cannot be kept in %s: %s; they are fetched again when needed",
                    self._folder,
                    error.strerror or error,
                )

    def forget(self, part: Part) -> None:
        """Overwrite a part with zeros, if it is kept."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path(part.name), _WRITE & ~os.O_CREAT)
            try:
                write_at(descriptor, bytes(part.length), part.first)
            finally:
                os.close(descriptor)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name.rpartition(".")[0] + PART_ENDING)

    def _touch(self, path: str) -> None:
        """Mark a file as used."""
        now = time.monotonic()
        if now - self._touched.get(path, -_TOUCH_S) >= _TOUCH_S:
            self._touched[path] = now
            with contextlib.suppress(OSError):
                os.utime(path)
