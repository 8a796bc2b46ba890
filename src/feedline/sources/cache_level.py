"""Images of one resolution of a cache, in each of its formats.

Guarantees: images are returned as they were written, for this very sample and label (a checksum is
checked at each read); a truncated shard raises an error and does not crash; memory is mapped and
shared by all processes; descriptors are bounded, however many shards there are.

Relies on: files that do not change while they are mapped. Truncating a mapped file crashes the
process that reads it; the loader names the sample.
"""

from __future__ import annotations

import mmap
import os
import sys
import tarfile
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from feedline.errors import ImageError
from feedline.sources.cache_index import CacheIndex, checksum, load_entries
from feedline.sources.cache_layout import (
    LMDB_FILE,
    CacheFormat,
    Level,
    Manifest,
    level_size,
    member,
    repair_command,
    shard_name,
)
from feedline.sources.file_name import file_name
from feedline.sources.open_lmdb import OpenLmdb, open_lmdb
from feedline.sources.read_file import read_file, without_waiting
from feedline.sources.store import Pixels

__all__ = ["NPY_HEADER_BYTES", "LevelReader", "reader_of"]

NPY_HEADER_BYTES = 128
"""Length of numpy's header before the pixels of a raw image, the same for any uint8 image."""

_MOST_MAPS = 256
_BLOCK = 512  # bytes, of tar
# From 3.13 on a map needs no descriptor.
_HAS_TRACKFD = sys.version_info >= (3, 13) and sys.platform != "win32"
_UNTRACKED: dict[str, Any] = {"trackfd": False} if _HAS_TRACKFD else {}

Held: TypeAlias = "bytes | memoryview | Pixels"
"""Bytes that stay valid as long as they are referenced."""


class _Mapped:
    """Bytes for a numpy array that keeps the underlying memory alive."""

    def __init__(self, held: memoryview, owner: object) -> None:
        self._held, self._owner = held, owner
        self.__array_interface__ = np.frombuffer(held, np.uint8).__array_interface__


class LevelReader:
    """Reader of a resolution's images. Subclasses know their positions.

    Args:
        root: folder of the cache.
        manifest: its manifest.
        level: resolution.
        index: columns of the cache.
    """

    def __init__(self, root: str, manifest: Manifest, level: Level, index: CacheIndex) -> None:
        self.level = level
        self._cache = root  # in messages
        self._folder = os.path.join(root, level.name)
        self._manifest = manifest
        self._layout = manifest.layout
        self._pixel_bytes = self._layout.channels * np.dtype(self._layout.dtype).itemsize
        self._index = index
        self._entries = load_entries(root, level, manifest.samples)

    def prepare(self, samples: Sequence[int]) -> None:
        """Prepare for images that are about to be read; no effect for local ones."""

    def read(self, sample: int) -> bytes | Pixels:
        """Read an image, encoded or raw, read only.

        Raises:
            ImageError: it is damaged.
        """
        held = self.file(sample)
        if self.level.quality is not None:
            return bytes(held)
        height, width = self.size(sample)
        if len(held) != NPY_HEADER_BYTES + self._pixel_bytes * height * width:
            raise self._damaged(
                f"size mismatch: the cache's copy at {self.level.side} px has {len(held)} bytes, "
                f"which do not match {width} x {height} pixels. The cache's index is damaged"
            )
        shape = height, width, self._layout.channels
        pixels: Pixels = np.ndarray(shape, self._layout.dtype, held, NPY_HEADER_BYTES)
        return pixels

    def file(self, sample: int) -> Held:
        """Bytes of an image as a file, with the header of a raw one; raises like `read`."""
        shard, first, length, written = self._entries[sample].tolist()
        held = self._held(sample, shard, first, length)
        if self._checksum(sample, held) != written:
            raise self._damaged(
                f"the cache's copy at {self.level.side} px is damaged: its checksum differs (a "
                "damaged disk, an incomplete copy, or files of two caches)"
            )
        return held

    def check_entry(self, sample: int) -> None:
        """Check what surrounds an image in its file, which `read` does not need.

        Raises:
            ImageError: it is damaged.
        """

    def _damaged(self, message: str, cause: BaseException | None = None) -> ImageError:
        """Error for a damaged cache, with the command that repairs it.

        Args:
            message: what is damaged.
            cause: a PermissionError is no damage.
        """
        hint = "" if isinstance(cause, PermissionError) else repair_command(self._cache)
        return ImageError(message, hint=hint)

    def _member(self, sample: int) -> str:
        return member(int(self._index.keys[sample]))

    def _checksum(self, sample: int, held: Held) -> int:
        """Checksum that a sample would have with these bytes."""
        return checksum(held, int(self._index.keys[sample]), self._index.labels[sample])

    def size(self, sample: int) -> tuple[int, int]:
        """Height and width of an image, in pixels."""
        height, width = self._index.sizes[sample].tolist()
        return level_size(height, width, self.level.side)

    def path(self, sample: int) -> str:
        """Path of the file that contains an image."""
        raise NotImplementedError

    def _held(self, sample: int, shard: int, first: int, length: int) -> Held:
        """Bytes of an image: a copy if encoded, a view if raw."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all files."""


class _Shards(LevelReader):
    """Images in memory-mapped tar files."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()

    def path(self, sample: int) -> str:
        return os.path.join(self._folder, shard_name(int(self._entries[sample, 0])))

    def _held(self, sample: int, shard: int, first: int, length: int) -> Held:
        mapped = self._maps.get(shard) or self._map(shard)
        if first + length > len(mapped):
            raise self._damaged(f"shard {shard} of the cache ends before this image")
        if self.level.quality is not None:
            return mapped[first : first + length]
        return memoryview(mapped)[first : first + length]

    def check_entry(self, sample: int) -> None:
        """Check the tar headers of a sample's files, up to those of the next one or to the end."""
        shard, first, length, _ = self._entries[sample].tolist()
        mapped = self._maps.get(shard) or self._map(shard)
        name, following = self._member(sample), ""
        at, end = first - _BLOCK, len(mapped) - 2 * _BLOCK
        if self._is_followed(sample):  # whose header has its own check
            following = f"{self._member(sample + 1)}.{self.level.ending}"
            end = int(self._entries[sample + 1, 1]) - _BLOCK
        wanted: tuple[str, int] | None = f"{name}.{self.level.ending}", length
        while at != end:
            try:
                header = tarfile.TarInfo.frombuf(mapped[at : at + _BLOCK], "utf-8", "replace")
            except tarfile.HeaderError as error:
                raise self._damaged(f"the tar header at byte {at} is damaged: {error}") from error
            if header.name == following:  # its position in the index is damaged
                return
            got = header.name, header.size
            known = wanted == got if wanted else header.name.startswith(f"{name}.")
            if not known or header.size < 0 or not header.isreg():
                raise self._damaged(
                    f"the tar header at byte {at} does not match the index: it has "
                    f"{header.name!r}, {header.size} bytes, in sample {name}"
                )
            at += _BLOCK + -(-header.size // _BLOCK) * _BLOCK
            wanted = None  # the index does not hold the lengths of its other files
        if not following and any(mapped[end:]):
            raise self._damaged(f"the tar file does not end at byte {end}")

    def _is_followed(self, sample: int) -> bool:
        """Return True if the next sample is in the same shard."""
        keys = self._index.keys[sample : sample + 2] // self._manifest.per_shard
        return len(keys) == 2 and bool(keys[0] == keys[1])

    def _map(self, shard: int) -> mmap.mmap:
        path = os.path.join(self._folder, shard_name(shard))
        try:
            descriptor = without_waiting(path, os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                if size != self.level.shards[shard]:
                    raise self._damaged(
                        f"size mismatch: {path!r} should have {self.level.shards[shard]} bytes, "
                        f"got {size} (an incomplete copy, or another cache's file)"
                    )
                mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, **_UNTRACKED)
            finally:
                os.close(descriptor)
        except IndexError:
            raise self._damaged(f"the cache has no shard {shard}") from None
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path!r} cannot be read: {error}", error) from error
        self._maps[shard] = mapped
        if len(self._maps) > _MOST_MAPS:
            self._maps.popitem(last=False)  # it is closed when no pixels lie in it any more
        return mapped

    def close(self) -> None:
        self._maps.clear()


class _Lmdb(LevelReader):
    """Images in one LMDB, which maps its memory itself."""

    _opened: OpenLmdb | None = None

    def path(self, sample: int) -> str:
        return os.path.join(self._folder, LMDB_FILE)

    def _held(self, sample: int, shard: int, first: int, length: int) -> Held:
        name = f"{self._member(sample)}.{self.level.ending}"
        try:
            if self._opened is None:
                self._opened = open_lmdb(self._folder)
            found = self._opened.get(name.encode())
        except ImageError as error:
            if error.hint:  # it is not damaged
                raise
            raise self._damaged(error.message) from error
        if found is None:
            raise self._damaged(f"the cache's {self._folder!r} has no entry {name!r}")
        if self.level.quality is not None:
            return bytes(found)
        return np.asarray(_Mapped(found, self._opened))

    def close(self) -> None:
        self._opened = None


class _Files(LevelReader):
    """Images in one file each."""

    def path(self, sample: int) -> str:
        index, classes = self._index, self._manifest.classes
        name = file_name(int(index.keys[sample]), index.name(sample), index.labels[sample], classes)
        return os.path.join(self._folder, f"{name}.{self.level.ending}")

    def _held(self, sample: int, shard: int, first: int, length: int) -> Held:
        path = self.path(sample)
        try:
            return read_file(os.fsencode(path))
        except ImageError as error:
            raise self._damaged(
                f"the cache's copy {path!r}: {error.message}", error.__cause__
            ) from error


_READERS: dict[CacheFormat, type[LevelReader]] = {
    "webdataset": _Shards,
    "lmdb": _Lmdb,
    "folder": _Files,
}


def reader_of(root: str, manifest: Manifest, level: Level, index: CacheIndex) -> LevelReader:
    """Create the reader of a resolution of a cache."""
    return _READERS[manifest.format](root, manifest, level, index)
