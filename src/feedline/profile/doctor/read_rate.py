"""Read rate of files: some of them are read for a short time, with as many readers as workers.

Guarantees: ends after `seconds` plus one read of a block. Files are only read; the few files are
dropped from memory first, so that the disk is measured; if that is impossible, the result says so.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from feedline.machine import can_drop_pages, drop_pages, stays_in_memory
from feedline.profile.doctor.folder import FoundFile

__all__ = ["ReadFrom", "ReadRate", "measure_read_rate"]

ReadFrom: TypeAlias = Literal["disk", "memory", "unknown"]

_PART_BYTES = 16 << 20  # read from a longer file, such as a shard of many images
_BLOCK_BYTES = 256 << 10
_PROBES = 4
_MAX_READERS = 16


@dataclass(frozen=True, kw_only=True)
class ReadRate:
    """Files read in a short time.

    Args:
        bytes, seconds: bytes read, and the time.
        files: number of files read to their ends.
        readers: number of parallel threads.
        whole_files: no file was longer than the part that is read of one.
        read_from: "disk"; "memory" if the files could not be dropped from it; "unknown" if the file
            system does not report it.
    """

    bytes: int
    files: int
    seconds: float
    readers: int
    whole_files: bool
    read_from: ReadFrom

    @property
    def bytes_per_s(self) -> float:
        """Total rate of all readers."""
        return self.bytes / self.seconds

    @property
    def files_per_s(self) -> float | None:
        """Total rate of all readers; None if no file, or only parts of files, were read."""
        return self.files / self.seconds if self.files and self.whole_files else None


@dataclass(frozen=True)
class _FilePart:
    path: str
    offset: int
    bytes: int


def measure_read_rate(
    files: Sequence[FoundFile], *, readers: int, seconds: float
) -> ReadRate | None:
    """Read some files; None if none could be read.

    Args:
        files: files in random order.
        readers: number of parallel threads, at most 16.
        seconds: approximate time limit.
    """
    chance = random.Random(0)
    parts = [_part_of(file, chance) for file in files if file.bytes]
    # Checking if a file is in memory starts to fetch it: the checked files are not timed.
    probes = min(_PROBES, len(parts) // 2)
    _drop(parts)
    read_from = _read_source(parts[:probes])
    readers = min(readers, _MAX_READERS, max(1, len(parts) - probes))
    todo = _ReadQueue(iter(parts[probes:]), time.monotonic() + seconds)
    threads = [threading.Thread(target=todo.work, daemon=True) for _ in range(readers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.perf_counter() - start
    if not todo.bytes:
        return None
    return ReadRate(
        bytes=todo.bytes,
        files=todo.files,
        seconds=elapsed_s,
        readers=readers,
        whole_files=all(file.bytes <= _PART_BYTES for file in files),
        read_from=read_from,
    )


class _ReadQueue:
    """Parts to read, shared by the readers."""

    def __init__(self, parts: Iterator[_FilePart], end: float) -> None:
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

    def _next(self) -> _FilePart | None:
        with self._lock:
            return None if time.monotonic() > self._end else next(self._parts, None)


def _part_of(file: FoundFile, chance: random.Random) -> _FilePart:
    """Part of a file to read: all of it, or a random part."""
    beyond = file.bytes - _PART_BYTES
    if beyond <= 0:
        return _FilePart(file.path, 0, file.bytes)
    return _FilePart(
        file.path, chance.randrange(beyond // _BLOCK_BYTES + 1) * _BLOCK_BYTES, _PART_BYTES
    )


def _read(part: _FilePart, buffer: bytearray, end: float) -> int:
    """Read a part until its end or the deadline. Returns the number of bytes."""
    count = 0
    with contextlib.suppress(OSError), open(part.path, "rb", buffering=0) as file:
        file.seek(part.offset)
        while count < part.bytes and time.monotonic() <= end:
            received = file.readinto(buffer)
            if not received:
                break
            count += received
    return min(count, part.bytes)


def _drop(parts: Sequence[_FilePart]) -> None:
    for part in parts if can_drop_pages() else ():
        with contextlib.suppress(OSError):
            drop_pages(part.path, part.offset, part.bytes)


def _read_source(probes: Sequence[_FilePart]) -> ReadFrom:
    """Source of reads after files were dropped from memory."""
    found: list[bool | None] = []
    for part in probes if can_drop_pages() else ():
        with contextlib.suppress(OSError):
            found.append(stays_in_memory(part.path, part.offset, part.bytes))
    if found.count(False) > len(found) / 2:
        return "disk"
    return "memory" if found and all(found) else "unknown"
