"""How fast files are read: some of them, for a moment, by as many readers as there are workers.

Guarantees: ends after `seconds` and one read of a block more. Files are only read; what memory
holds of those few is dropped first, so that the disk is measured, and where that cannot be done
the result says so.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feedline.doctor.folder import File
from feedline.stores import page_cache

__all__ = ["ReadFrom", "ReadRate", "read_rate"]

ReadFrom: TypeAlias = Literal["disk", "memory", "unknown"]

_PART_BYTES = 16 << 20  # of a file that is longer: a shard of many images
_BLOCK_BYTES = 256 << 10
_PROBES = 4
_MOST_READERS = 16


@dataclass(frozen=True, kw_only=True)
class ReadRate:
    """What was read in a moment.

    Args:
        bytes, seconds: how much, in what time.
        files: how many of them were read to their ends.
        readers: how many threads read at a time.
        whole_files: no file was longer than what is read of one.
        read_from: the disk; memory, from which the files could not be dropped; or one of them, and
            the file system does not say which.
    """

    bytes: int
    files: int
    seconds: float
    readers: int
    whole_files: bool
    read_from: ReadFrom

    @property
    def bytes_per_s(self) -> float:
        """By all readers together."""
        return self.bytes / self.seconds

    @property
    def files_per_s(self) -> float | None:
        """Likewise; None where none, or only parts of files, were read."""
        return self.files / self.seconds if self.files and self.whole_files else None


@dataclass(frozen=True)
class _Part:
    path: str
    offset: int
    bytes: int


def read_rate(files: Sequence[File], *, readers: int, seconds: float) -> ReadRate | None:
    """Read some files; None where none could be read.

    Args:
        files: some, in random order.
        readers: how many threads read at a time, at most 16.
        seconds: how long it takes at most, about.
    """
    chance = random.Random(0)
    parts = [_part_of(file, chance) for file in files if file.bytes]
    # Looking whether a file is in memory starts to fetch it: those looked at are not timed.
    probes = min(_PROBES, len(parts) // 2)
    _drop(parts)
    read_from = _where(parts[:probes])
    readers = min(readers, _MOST_READERS, max(1, len(parts) - probes))
    todo = _Todo(iter(parts[probes:]), time.monotonic() + seconds)
    threads = [threading.Thread(target=todo.work, daemon=True) for _ in range(readers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    if not todo.bytes:
        return None
    return ReadRate(
        bytes=todo.bytes,
        files=todo.files,
        seconds=took,
        readers=readers,
        whole_files=all(file.bytes <= _PART_BYTES for file in files),
        read_from=read_from,
    )


class _Todo:
    """What is still to be read, shared by the readers."""

    def __init__(self, parts: Iterator[_Part], end: float) -> None:
        self._parts, self._end = parts, end
        self._lock = threading.Lock()
        self.bytes = self.files = 0

    def work(self) -> None:
        buffer = bytearray(_BLOCK_BYTES)
        while (part := self._next()) is not None:
            count = _read(part, buffer, self._end)
            with self._lock:
                self.bytes += count
                self.files += count == part.bytes

    def _next(self) -> _Part | None:
        with self._lock:
            return None if time.monotonic() > self._end else next(self._parts, None)


def _part_of(file: File, chance: random.Random) -> _Part:
    """What is read of a file: all of it, or a part anywhere in it."""
    beyond = file.bytes - _PART_BYTES
    if beyond <= 0:
        return _Part(file.path, 0, file.bytes)
    return _Part(
        file.path, chance.randrange(beyond // _BLOCK_BYTES + 1) * _BLOCK_BYTES, _PART_BYTES
    )


def _read(part: _Part, buffer: bytearray, end: float) -> int:
    """Read a part until it ends or the time does; the bytes that were read."""
    count = 0
    with contextlib.suppress(OSError), open(part.path, "rb", buffering=0) as file:
        file.seek(part.offset)
        while count < part.bytes and time.monotonic() <= end:
            got = file.readinto(buffer)
            if not got:
                break
            count += got
    return min(count, part.bytes)


def _drop(parts: Sequence[_Part]) -> None:
    for part in parts if page_cache.can_drop() else ():
        with contextlib.suppress(OSError), open(part.path, "rb", buffering=0) as file:
            page_cache.drop(file.fileno(), part.offset, part.bytes)


def _where(probes: Sequence[_Part]) -> ReadFrom:
    """Where parts are read from once they are dropped."""
    found: set[bool | None] = set()
    for part in probes if page_cache.can_drop() else ():
        with contextlib.suppress(OSError), open(part.path, "rb", buffering=0) as file:
            found.add(page_cache.stays_in_memory(file.fileno(), part.offset, part.bytes))
    if found == {False}:
        return "disk"
    return "memory" if found == {True} else "unknown"
