"""Caches at URLs: the index is fetched once, images as they are read.

Guarantees: those of `cache_format_base`; the images of a task are fetched with many requests at a
time, and nearby images share one; bytes with a wrong checksum are neither returned nor stored. No
remote name is used as a local path; nothing is unpickled, and no index is fetched that is larger
than the allowed disk space.

Relies on: digests in the manifest, which verify the local index; `remote_files` for the bytes,
`local_copies` to store them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from feedline.errors import DatasetError, UsageError, hide_secrets
from feedline.sources.cache_format_base import NPY_HEADER_BYTES, CopyBytes, LevelReader
from feedline.sources.cache_formats import cache_format
from feedline.sources.cache_store import CacheLocation, CacheStore
from feedline.sources.files import MAX_FILE_BYTES, write_atomic
from feedline.sources.local_copies import (
    DiskBudget,
    LocalCopies,
    copies_folder,
    disk_budget,
    free_bytes,
)
from feedline.sources.manifest import (
    COLUMNS,
    ENTRY,
    INDEX,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    CacheIndex,
    Level,
    Manifest,
    digest_of,
    load_column,
    parse_manifest,
    repair_command,
    shard_name,
)
from feedline.sources.remote_filesystem import (
    INDEX_PATIENCE_S,
    NoCacheError,
    RemoteError,
    check_local,
    is_url,
)
from feedline.sources.remote_reader import BLOCK_BYTES, ImageFetcher, Range, RemoteReader

_MAX_HEADER_BYTES = 4096
_BASE = ("labels", "names", *COLUMNS)

_log = logging.getLogger("feedline")


def open_location(
    root: str | os.PathLike[str],
    *,
    local_dir: str | os.PathLike[str] | None = None,
    local_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    stores_copies: bool = True,
) -> CacheLocation:
    """Location of a cache in a local folder or at a URL, with the arguments of
    `feedline.ImageFolder`. Without `stores_copies`, images are fetched each time.
    """
    if is_url(root):
        budget = disk_budget(local_dir, local_bytes)
        return _RemoteLocation(os.fspath(root), storage_options, budget, stores_copies)
    path = os.fspath(root)
    check_local(path, local_dir=local_dir, local_bytes=local_bytes, storage_options=storage_options)
    return CacheLocation(os.path.abspath(os.path.expanduser(path)))


def open_cache(root: str | os.PathLike[str]) -> CacheStore:
    """Open the cache in a folder or at a URL; raises like `open_location` and `CacheStore`."""
    return CacheStore(open_location(root))


class _RemoteLocation(CacheLocation):
    """A cache at a URL."""

    is_local = False

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None,
        budget: DiskBudget,
        stores_copies: bool,
    ) -> None:
        scheme = url.partition("://")[0]
        if "::" in url or ("?" in url and scheme.startswith("http")):
            raise UsageError(
                f"{url!r} is not a folder of readable files: use PROTOCOL://HOST/FOLDER, "
                "without a query and without another protocol around it"
            )
        self.url = url.rstrip("/")
        super().__init__(hide_secrets(self.url))
        self._reader = RemoteReader([url], options)
        self._budget, self._stores_copies = budget, stores_copies

    def _read_rest(self, name: str, first: int, length: int) -> bytes:
        """Read a part of a file, or as much of it as there is."""
        part = Range(f"{self.url}/{name}", first, length)
        return self._reader.read(part, patience_s=INDEX_PATIENCE_S, may_end=True)

    def manifest(self) -> Manifest:
        """Read the current manifest; raises a NoCacheError if it does not exist."""
        try:
            data = self._read_rest(MANIFEST, 0, MAX_MANIFEST_BYTES + 1)
        except RemoteError as error:
            missing = isinstance(error.__cause__, FileNotFoundError)
            kind = NoCacheError if missing else DatasetError
            raise kind.of(error, f"the cache {self} cannot be read") from error
        manifest = parse_manifest(data, str(self))
        if not cache_format(manifest.format).supports_remote:
            raise UsageError(
                f"the cache {self} has the format {manifest.format!r}, which cannot be read "
                "remotely",
                hint="copy it to a local disk, or build it with `feedline cache build ... --format "
                "webdataset`",
            )
        return manifest

    def still_has(self, manifest: Manifest) -> bool:
        """Return True without checking: a worker can start while the server is unreachable. A
        rebuilt cache has other checksums, which is detected when it is read.
        """
        return True

    def _folder(self, manifest: Manifest) -> str:
        """Folder of this cache's copies: a different one for each URL and each content."""
        same = [str(self), manifest.fingerprint, *(manifest.digests.get(name) for name in _BASE)]
        digest = hashlib.blake2b("\n".join(map(str, same)).encode(), digest_size=8).hexdigest()
        return copies_folder(self._budget.folder, str(self), digest)

    def index(self, manifest: Manifest) -> CacheIndex:
        """Columns of the cache, fetched unless there are intact local copies."""
        folder = self._folder(manifest)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            os.makedirs(os.path.join(folder, INDEX), exist_ok=True)
            for name, rows, dtype, shape in _columns(manifest, folder):
                size = rows * np.dtype(dtype).itemsize * math.prod(shape) + NPY_HEADER_BYTES
                self._fetch_column(folder, name, size, manifest.digests.get(name))
        except RemoteError as error:
            raise DatasetError.of(error, f"the cache {self} cannot be read") from error
        except OSError as error:
            raise DatasetError(
                f"the index of the cache {self} cannot be stored in {folder!r}: "
                f"{error.strerror or error}. Free disk space there, or use another folder as "
                "local_dir"
            ) from error
        return CacheIndex(folder, manifest)

    def _fetch_column(self, folder: str, name: str, size: int, digest: str | None) -> None:
        """Fetch a file of the index of this expected size, unless there is an intact copy."""
        path = os.path.join(folder, INDEX, f"{name}.npy")
        with contextlib.suppress(FileNotFoundError):
            if digest_of(path) == digest:
                os.utime(path)
                return
        limit = min(self._budget.limit_bytes, free_bytes(folder))
        if size > limit:
            raise DatasetError(
                f"the index of the cache {self} has a file of {size / 1e9:.2f} GB, but only "
                f"{limit / 1e9:.2f} GB may be stored in {self._budget.folder!r}: pass a larger "
                "local_bytes, or a local_dir with more space"
            )
        _log.info("fetching %s of the cache %s, %.1f MB", name, self, size / 1e6)
        data = b"".join(self._blocks(f"{INDEX}/{name}.npy", size))
        if xxhash.xxh3_64_hexdigest(data) != digest:
            raise DatasetError(
                f"{INDEX}/{name}.npy of the cache {self} does not match its manifest: its digest "
                "differs (a damaged file, an incomplete copy, or files of two caches)",
                hint=repair_command(str(self)),
            )
        write_atomic(Path(path), data, durable=False)

    def _blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield a file of about this size in blocks."""
        starts = range(0, size - BLOCK_BYTES, BLOCK_BYTES)
        for first in starts:
            block = Range(f"{self.url}/{name}", first, BLOCK_BYTES)
            yield self._reader.read(block, patience_s=INDEX_PATIENCE_S)
        first = BLOCK_BYTES * len(starts)
        yield self._read_rest(name, first, size - first + _MAX_HEADER_BYTES)

    def reader(self, index: CacheIndex, level: Level) -> LevelReader:
        copies = LocalCopies(index.root, self._budget) if self._stores_copies else None
        return _RemoteShards(index, level, self.url, self._reader, copies)

    def describe(self) -> str:
        """URL of the cache, and the folder of stored images."""
        limit = self._budget.limit_bytes / 1e9
        return f"{self}, kept in {self._budget.folder}, at most {limit:.1f} GB"

    def close(self) -> None:
        self._reader.close()


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


class _RemoteShards(ImageFetcher, LevelReader):
    """Reader of a resolution whose tar shards are at a URL, and its index in a local folder."""

    def __init__(
        self,
        index: CacheIndex,
        level: Level,
        url: str,
        reader: RemoteReader,
        copies: LocalCopies | None,
    ) -> None:
        LevelReader.__init__(self, index, level)
        ImageFetcher.__init__(self, reader)
        self._cache = hide_secrets(url)
        self._url, self._copies = url, copies

    def _name(self, shard: int) -> str:
        return f"{self.level.name}/{shard_name(shard)}"

    def _range(self, sample: int) -> Range | None:
        shard, first, length, _ = self._entries[sample].tolist()
        shards = self.level.shards
        if shard < len(shards) and first + length <= shards[shard] and length <= MAX_FILE_BYTES:
            return Range(f"{self._url}/{self._name(shard)}", first, length)
        return None

    def _is_intact(self, sample: int, data: bytes) -> bool:
        return self._checksum(sample, data) == int(self._entries[sample, 3])

    def _copy(self, sample: int) -> bytes | None:
        if self._copies is None or self._range(sample) is None:
            return None
        shard, first, length, _ = self._entries[sample].tolist()
        data = self._copies.read(self._name(shard), first, length)
        return data if data is not None and self._is_intact(sample, data) else None

    def _store(self, sample: int, data: bytes) -> None:
        if self._copies is not None:
            shard, first = self._entries[sample, :2].tolist()
            self._copies.write(self._name(shard), first, data)

    def path(self, sample: int) -> str:
        return f"{self._cache}/{self._name(int(self._entries[sample, 0]))}"

    def _bytes(self, sample: int, shard: int, first: int, length: int) -> CopyBytes:
        each = self._range(sample)
        if each is None:
            raise self._damaged(
                f"the index of {self._cache} is damaged: it has the image at byte {first} of shard "
                f"{shard}, {length} bytes long, which does not exist"
            )
        return self.image(sample, each)

    def close(self) -> None:
        self._prefetched = {}
