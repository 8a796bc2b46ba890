"""Interface of a format of resized copies: how they are written, read, and checked without
reading them.

Guarantees: a copy is returned as written, for its own sample and label: a checksum is compared at
each read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from feedline.errors import ImageError
from feedline.sources.manifest import (
    CacheIndex,
    Level,
    checksum,
    checksum_seed,
    level_size,
    level_sizes,
    member,
    repair_command,
)
from feedline.sources.store import Numbers, Pixels, RawCopies

NPY_HEADER_BYTES = 128
"""Length of the .npy header before the pixels of a raw image, the same for any uint8 image."""

CopyBytes: TypeAlias = "bytes | memoryview | Pixels"
"""Bytes that stay valid as long as they are referenced."""


class CacheSample(NamedTuple):
    """A sample as its copies are written: its number and name in the source, its label as a numpy
    value, and the size of the original in pixels.
    """

    key: int
    name: str
    label: Any
    height: int
    width: int


class ShardWriter:
    """Writer of one shard of one resolution, in an existing folder; a context manager."""

    def __init__(self, root: str, level: Level, shard: int, classes: Sequence[str] | None) -> None:
        self.root, self.level, self.shard, self.classes = root, level, shard, classes

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove incomplete files."""

    def write(self, sample: CacheSample, image: bytes) -> int:
        """Append a copy. Return the position of its first byte in the shard."""
        raise NotImplementedError

    def finish(self) -> int:
        """Put the shard on the disk under its final name. Return its size in bytes."""
        raise NotImplementedError


class LevelReader:
    """Reader of a resolution's copies in the cache of a folder."""

    is_mapped = False
    """True if a raw copy is a view of mapped memory, so that many cost no memory."""

    def __init__(self, index: CacheIndex, level: Level) -> None:
        self.level = level
        self._cache = index.root  # in messages
        self._folder = os.path.join(index.root, level.name)
        self._layout = index.manifest.layout
        self._pixel_bytes = self._layout.channels * np.dtype(self._layout.dtype).itemsize
        self._index = index
        self._entries = index.entries(level)

    def prepare(self, samples: Sequence[int]) -> None:
        """Prepare for copies that are about to be read; no effect for local ones."""

    def read(self, sample: int) -> bytes | Pixels:
        """Read a copy, encoded or raw, read only; raises an ImageError if it is damaged."""
        copy = self.file(sample)
        if self.level.quality is not None:
            return bytes(copy)
        height, width = self.size(sample)
        if len(copy) != NPY_HEADER_BYTES + self._pixel_bytes * height * width:
            raise self._damaged(
                f"size mismatch: the cache's copy at {self.level.side} px has {len(copy)} bytes, "
                f"which do not match {width} x {height} pixels. The cache's index is damaged"
            )
        shape = height, width, self._layout.channels
        pixels: Pixels = np.ndarray(shape, self._layout.dtype, copy, NPY_HEADER_BYTES)
        return pixels

    def raw_copies(self, samples: Numbers) -> RawCopies | None:
        """Raw copies that are mapped, not checked; otherwise None. All samples must exist."""
        if self.level.quality is not None or not self.is_mapped:
            return None
        entries, labels = self._entries[samples], self._index.labels[samples]
        originals = self._index.sizes[samples].astype(np.int64)
        sizes = np.hstack([originals, level_sizes(originals, self.level.side)])
        pixels: list[CopyBytes | None] = []
        for sample, (shard, first, length, _) in zip(
            samples.tolist(), entries.tolist(), strict=True
        ):
            try:
                pixels.append(self._bytes(sample, shard, first, length))
            except ImageError:
                pixels.append(None)
        checksums = np.empty((len(samples), 2), np.uint64)
        text, step = labels.tobytes(), labels.nbytes // len(samples)
        checksums[:, 0] = [
            checksum_seed(key, text[k * step : (k + 1) * step])
            for k, key in enumerate(self._index.keys[samples].tolist())
        ]
        checksums[:, 1] = entries[:, 3]
        return RawCopies(tuple(pixels), NPY_HEADER_BYTES, sizes, checksums, labels)

    def file(self, sample: int) -> CopyBytes:
        """Bytes of a copy as a file, with the header of a raw one; raises like `read`."""
        shard, first, length, expected = self._entries[sample].tolist()
        copy = self._bytes(sample, shard, first, length)
        if self._checksum(sample, copy) != expected:
            raise self._damaged(
                f"the cache's copy at {self.level.side} px is damaged: its checksum differs (a "
                "damaged disk, an incomplete copy, or files of two caches)"
            )
        return copy

    def check_entry(self, sample: int) -> None:
        """Check data stored around a copy, which `read` does not check, e.g. its tar header.

        Raises like `read`.
        """

    def size(self, sample: int) -> tuple[int, int]:
        """Height and width of a copy, in pixels."""
        height, width = self._index.sizes[sample].tolist()
        return level_size(height, width, self.level.side)

    def path(self, sample: int) -> str:
        """Path of the file that contains a copy."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all files."""

    def _bytes(self, sample: int, shard: int, first: int, length: int) -> CopyBytes:
        """Bytes of a copy, unchecked: a new object if encoded, a view if raw."""
        raise NotImplementedError

    def _damaged(self, message: str, cause: BaseException | None = None) -> ImageError:
        """Error with the command that repairs the cache; a PermissionError is no damage."""
        hint = "" if isinstance(cause, PermissionError) else repair_command(self._cache)
        return ImageError(message, hint=hint)

    def _member(self, sample: int) -> str:
        return member(int(self._index.keys[sample]))

    def _checksum(self, sample: int, copy: CopyBytes) -> int:
        return checksum(copy, int(self._index.keys[sample]), self._index.labels[sample])


class CacheFormat:
    """A format of caches. Subclasses override what differs."""

    name = ""
    reader: type[LevelReader]
    writer: type[ShardWriter]
    merged_file = ""
    """Name of the one file per resolution into which shards are merged; "" without one."""
    package = ""
    """Python package that it needs."""
    file_names = ""
    """Pattern of the paths of its files below a resolution's folder, with "/". Only these are ever
    removed."""
    supports_remote = False
    """True if shards are files that are uploaded one by one and read by ranges."""

    def merger(
        self, root: str, levels: Sequence[Level], map_bytes: Sequence[int]
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Context with a function that adds a finished shard to the containers of all resolutions,
        completely or not at all, and removes its own files; `map_bytes` are their expected sizes.
        """
        raise NotImplementedError

    def has_shard(self, root: str, level: Level, shard: int, size: int) -> bool:
        """Return True if the files of a recorded shard of this size exist, without reading them."""
        return True

    def file_damage(self, root: str, level: Level) -> dict[int, tuple[str, str]]:
        """Return path and reason of missing or truncated files by shard, without reading them."""
        return {}

    def damaged_shards(self, index: CacheIndex, level: Level) -> set[int]:
        """Return the shards with missing or truncated files."""
        damage = set(self.file_damage(index.root, level))
        return set(range(len(level.shards))) if self.merged_file and damage else damage

    def disk_bytes(self, root: str, level: Level) -> int:
        """Disk space of a resolution, in bytes."""
        return level.bytes

    def remove_stale(self, index: CacheIndex, level: Level) -> None:
        """Remove files and entries of a resolution that are not of the cache."""
        raise NotImplementedError
