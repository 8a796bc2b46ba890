"""A remote cache: its index is fetched once, its images as they are read.

Guarantees: those of `shards`; no remote name is used as a local path; nothing is unpickled, and no
index is fetched that is larger than the allowed disk space.

Relies on: digests in the manifest, which verify the local index.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xxhash

from feedline.errors import DatasetError, UsageError
from feedline.remote.disk_room import DiskRoom, folder_for, free_bytes, local_room
from feedline.remote.error import NoCache, RemoteError
from feedline.remote.filesystem import shown
from feedline.remote.joined_parts import BLOCK_BYTES, Part
from feedline.remote.local_copies import LocalCopies
from feedline.remote.parts import RemoteParts
from feedline.remote.shards import RemoteShards
from feedline.sources.cache_index import COLUMNS, ENTRY, CacheIndex, digest_of, load_column
from feedline.sources.cache_layout import (
    INDEX,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    Level,
    Manifest,
    parse_manifest,
    repair_command,
)
from feedline.sources.cache_level import LevelReader

__all__ = ["RemoteLocation"]

_PATIENCE_S = 3.0
_AT_ONCE = 16
_HEADER_BYTES = 128
_LONGEST_HEADER_BYTES = 4096
_BASE = ("labels", "names", *COLUMNS)

_log = logging.getLogger("feedline")


class RemoteLocation:
    """A cache at a URL.

    Args:
        url: URL of its folder, of any fsspec protocol.
        options: arguments of fsspec's filesystem.
        local_dir: folder for fetched files; None for `feedline` in the user's cache folder.
        local_bytes: maximum disk space; None for 50 GB, and at most half of the available space.
        keep: keep images; otherwise they are fetched each time.

    Raises:
        UsageError: an argument is invalid, or a package is missing.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        *,
        local_dir: str | os.PathLike[str] | None = None,
        local_bytes: int | None = None,
        keep: bool = True,
    ) -> None:
        room = local_room(local_dir, local_bytes)
        scheme = url.partition("://")[0]
        if "::" in url or ("?" in url and scheme.startswith("http")):
            raise UsageError(
                f"{shown(url)!r} is not a folder of readable files: use PROTOCOL://HOST/FOLDER, "
                "without a query and without another protocol around it"
            )
        self._parts = RemoteParts(url, options)
        self.local_dir, self.local_bytes = room.folder, room.limit_bytes
        self._keep = keep

    def __str__(self) -> str:
        return str(self._parts)

    def manifest(self) -> Manifest:
        """Read the current manifest.

        Raises:
            NoCache: it does not exist.
            DatasetError: it cannot be read, or is invalid.
            UsageError: the cache has a format that must be local.
        """
        part = Part(MANIFEST, 0, MOST_MANIFEST_BYTES + 1)
        try:
            data = self._parts.rest(part, patience_s=_PATIENCE_S)
        except RemoteError as error:
            missing = isinstance(error.__cause__, FileNotFoundError)
            kind = NoCache if missing else DatasetError
            raise kind.of(error, f"the cache {self} cannot be read") from error
        manifest = parse_manifest(data, str(self))
        if manifest.format != "webdataset":
            raise UsageError(
                f"the cache {self} has the format {manifest.format!r}, which cannot be read "
                "remotely: copy it to a local disk, or build it with `feedline cache build ... "
                "--format webdataset`"
            )
        return manifest

    def still_holds(self, manifest: Manifest) -> bool:
        """Return True without checking: a worker can start while the server is unreachable.

        A rebuilt cache has other checksums, which is detected when it is read.
        """
        return True

    def folder(self, manifest: Manifest) -> str:
        """Folder of this cache's copies: a different one for each URL and each content."""
        same = [str(self), manifest.fingerprint, *(manifest.digests.get(name) for name in _BASE)]
        digest = hashlib.blake2b("\n".join(map(str, same)).encode(), digest_size=8).hexdigest()
        return folder_for(self.local_dir, str(self), digest)

    def index(self, manifest: Manifest) -> CacheIndex:
        """Columns of the cache, fetched unless they are kept locally.

        Raises:
            DatasetError: they cannot be fetched or kept, or do not match the manifest.
        """
        folder = self.folder(manifest)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            os.makedirs(os.path.join(folder, INDEX), exist_ok=True)
            for name, rows, dtype, shape in _columns(manifest, folder):
                size = rows * np.dtype(dtype).itemsize * math.prod(shape) + _HEADER_BYTES
                self._have(folder, name, size, manifest.digests.get(name))
        except RemoteError as error:
            raise DatasetError.of(error, f"the cache {self} cannot be read") from error
        except OSError as error:
            raise DatasetError(
                f"the index of the cache {self} cannot be kept in {folder!r}: "
                f"{error.strerror or error}. Free disk space there, or use another folder as "
                "local_dir"
            ) from error
        return CacheIndex(folder, manifest)

    def _have(self, folder: str, name: str, size: int, digest: str | None) -> None:
        """Fetch a file of the index, unless it is kept.

        Args:
            folder: folder of the cache's copies.
            name: name of the column.
            size: expected size in bytes.
            digest: digest of all bytes.
        """
        path = os.path.join(folder, INDEX, f"{name}.npy")
        with contextlib.suppress(FileNotFoundError):
            if digest_of(path) == digest:
                os.utime(path)
                return
        if size > min(self.local_bytes, free_bytes(folder)):
            raise DatasetError(
                f"the index of the cache {self} has a file of {size / 1e9:.2f} GB, but only "
                f"{min(self.local_bytes, free_bytes(folder)) / 1e9:.2f} GB may be kept in "
                f"{self.local_dir!r}: pass a larger local_bytes, or a local_dir with more space"
            )
        _log.info("fetching %s of the cache %s, %.1f MB", name, self, size / 1e6)
        found = xxhash.xxh3_64()
        descriptor, temporary = tempfile.mkstemp(".tmp", f"{name}-", os.path.join(folder, INDEX))
        try:
            with open(descriptor, "wb") as file:
                for data in self._blocks(f"{INDEX}/{name}.npy", size):
                    found.update(data)
                    file.write(data)
            if found.hexdigest() != digest:
                raise DatasetError(
                    f"{INDEX}/{name}.npy of the cache {self} does not match its manifest: its "
                    "digest differs (a damaged file, an incomplete copy, or files of two caches)",
                    hint=repair_command(str(self)),
                )
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield a file of about this size in blocks, several of which are fetched at a time."""
        starts = range(0, size - BLOCK_BYTES, BLOCK_BYTES)
        parts = [Part(name, first, BLOCK_BYTES) for first in starts]
        for at in range(0, len(parts), _AT_ONCE):
            some = parts[at : at + _AT_ONCE]
            for part, data in zip(some, self._parts.fetch(some), strict=True):
                if isinstance(data, Exception):
                    data = self._parts.read(part, patience_s=_PATIENCE_S)
                yield data
        first = BLOCK_BYTES * len(parts)
        rest = Part(name, first, size - first + _LONGEST_HEADER_BYTES)
        yield self._parts.rest(rest, patience_s=_PATIENCE_S)

    def reader(self, manifest: Manifest, level: Level, index: CacheIndex) -> LevelReader:
        """Reader of one of its resolutions."""
        folder = self.folder(manifest)
        room = DiskRoom(self.local_dir, self.local_bytes)
        copies = LocalCopies(folder, room) if self._keep else None
        return RemoteShards(folder, manifest, level, index, self._parts, copies)

    def in_words(self) -> str:
        """Its URL, and the folder of kept images."""
        return f"{self}, kept in {self.local_dir}, at most {self.local_bytes / 1e9:.1f} GB"

    def close(self) -> None:
        """Close the connections."""
        self._parts.close()


def _columns(manifest: Manifest, folder: str) -> Iterator[tuple[str, int, str, tuple[int, ...]]]:
    """Files of an index, in an order in which each determines the lengths of the following ones."""
    samples, (dtype, shape) = manifest.samples, manifest.label
    yield "labels", samples, dtype, shape
    for name, (dtype, shape) in COLUMNS.items():
        yield name, samples, dtype, shape
    for level in manifest.levels:
        yield f"level-{level.name}", samples, *ENTRY
    ends = load_column(folder, "name_ends", samples, *COLUMNS["name_ends"])
    yield "names", max(0, int(ends[-1])) if samples else 0, "uint8", ()
