"""Formats of resized copies: tar shards, one LMDB per resolution, or one file per image.

Guarantees: a truncated shard raises an error and does not crash; mapped memory is shared by all
processes, and descriptors are bounded. Writing a shard again gives the same bytes; an interrupted
shard leaves nothing, and a finished one is on the disk.

Relies on: mapped files that do not change. Truncating one crashes the process that reads it; the
loader names the sample.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sys
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from feedline.errors import DatasetError, ImageError, ResourceError, UsageError
from feedline.sources.cache_folder import partial_files, refuse_link, remove_owned
from feedline.sources.cache_format_base import (
    CacheFormat,
    CacheSample,
    CopyBytes,
    LevelReader,
    ShardWriter,
)
from feedline.sources.files import (
    open_nonblocking,
    partial_path,
    read_file,
    retry_storage,
    sync_files,
    sync_names,
    write_atomic,
)
from feedline.sources.lmdb_reader import LMDB_FILE, OpenLmdb, open_lmdb
from feedline.sources.manifest import (
    BUILD_FILES,
    INDEX,
    MANIFEST,
    UNFINISHED,
    CacheIndex,
    Level,
    member,
    shard_name,
)

_MAX_MAPS = 256
_BLOCK = 512  # bytes, of tar
_MIN_MAP_BYTES = 64 << 20
_MAX_STEM = 80
_LMDB_LOCK = "lock.mdb"
# From 3.13 on a map needs no descriptor.
_HAS_TRACKFD = sys.version_info >= (3, 13) and sys.platform != "win32"
_UNTRACKED: dict[str, Any] = {"trackfd": False} if _HAS_TRACKFD else {}


class TarReader(LevelReader):
    """Copies in memory-mapped tar files."""

    is_mapped = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()

    def path(self, sample: int) -> str:
        return os.path.join(self._folder, shard_name(int(self._entries[sample, 0])))

    def _bytes(self, sample: int, shard: int, first: int, length: int) -> CopyBytes:
        mapped = self._maps.get(shard) or self._map(shard)
        if first + length > len(mapped):
            raise self._damaged(f"shard {shard} of the cache ends before this image")
        if self.level.quality is not None:
            return mapped[first : first + length]
        return memoryview(mapped)[first : first + length]

    def check_entry(self, sample: int) -> None:
        shard, first, length, _ = self._entries[sample].tolist()
        mapped = self._maps.get(shard) or self._map(shard)
        name, following = self._member(sample), ""
        at, end = first - _BLOCK, len(mapped) - 2 * _BLOCK
        keys = self._index.keys[sample : sample + 2] // self._index.manifest.per_shard
        if len(keys) == 2 and keys[0] == keys[1]:  # the next sample's header has its own check
            following = f"{self._member(sample + 1)}.{self.level.ending}"
            end = int(self._entries[sample + 1, 1]) - _BLOCK
        image: tuple[str, int] | None = f"{name}.{self.level.ending}", length
        while at != end:
            try:
                header = tarfile.TarInfo.frombuf(mapped[at : at + _BLOCK], "utf-8", "replace")
            except tarfile.HeaderError as error:
                raise self._damaged(f"the tar header at byte {at} is damaged: {error}") from error
            if header.name == following:  # its position in the index is damaged
                return
            # The index does not hold the lengths of the files after the image.
            matches = header.name.startswith(f"{name}.")
            if image is not None:
                matches, image = image == (header.name, header.size), None
            if not matches or header.size < 0 or not header.isreg():
                raise self._damaged(
                    f"the tar header at byte {at} does not match the index: it has "
                    f"{header.name!r}, {header.size} bytes, in sample {name}"
                )
            at += _BLOCK + -(-header.size // _BLOCK) * _BLOCK
        if not following and any(mapped[end:]):
            raise self._damaged(f"the tar file does not end at byte {end}")

    def _map(self, shard: int) -> mmap.mmap:
        path = os.path.join(self._folder, shard_name(shard))

        def open_map() -> mmap.mmap:
            descriptor = open_nonblocking(path, os.O_RDONLY)
            try:
                size = os.fstat(descriptor).st_size
                if size != self.level.shards[shard]:
                    raise self._damaged(
                        f"size mismatch: {path!r} should have {self.level.shards[shard]} bytes, "
                        f"got {size} (an incomplete copy, or another cache's file)"
                    )
                return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, **_UNTRACKED)
            finally:
                os.close(descriptor)

        try:
            mapped = retry_storage(open_map, path)
        except IndexError:
            raise self._damaged(f"the cache has no shard {shard}") from None
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path!r} cannot be read: {error}", error) from error
        self._maps[shard] = mapped
        if len(self._maps) > _MAX_MAPS:
            self._maps.popitem(last=False)  # it is closed when no pixels lie in it any more
        return mapped

    def close(self) -> None:
        self._maps.clear()


class _TarWriter(ShardWriter):
    """Writes a tar shard: per sample the copy, its class index, and JSON about it."""

    def __init__(self, root: str, level: Level, shard: int, classes: Sequence[str] | None) -> None:
        super().__init__(root, level, shard, classes)
        self._path = Path(root, level.name, shard_name(shard))
        self._partial = partial_path(self._path)
        self._file = open(self._partial, "wb", buffering=1 << 20)  # noqa: SIM115
        self._position = 0

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, sample: CacheSample, image: bytes) -> int:
        name = member(sample.key)
        first = self._append(f"{name}.{self.level.ending}", image)
        label = sample.label.tolist()
        metadata: dict[str, Any] = {"label": label}
        if isinstance(label, int):
            self._append(f"{name}.cls", str(label).encode())
            if self.classes is not None and 0 <= label < len(self.classes):
                metadata["class"] = self.classes[label]
        metadata |= {"path": sample.name, "height": sample.height, "width": sample.width}
        self._append(f"{name}.json", json.dumps(metadata).encode())
        return first

    def _append(self, name: str, data: bytes) -> int:
        first = self._position + _BLOCK
        padding = -len(data) % _BLOCK
        header = tarfile.TarInfo(name)
        header.size = len(data)
        self._file.write(header.tobuf(tarfile.USTAR_FORMAT))
        self._file.write(data)
        self._file.write(b"\0" * padding)
        self._position = first + len(data) + padding
        return first

    def finish(self) -> int:
        self._file.write(b"\0" * 2 * _BLOCK)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        sync_names(self.root, [self._path])
        return self._position + 2 * _BLOCK


class TarFormat(CacheFormat):
    """Tar shards in the layout of the `webdataset` package."""

    name = "webdataset"
    file_names = r"\d{6}\.tar"
    reader: type[LevelReader] = TarReader
    writer = _TarWriter
    supports_remote = True

    def has_shard(self, root: str, level: Level, shard: int, size: int) -> bool:
        return Path(root, level.name, shard_name(shard)).stat().st_size == size

    def file_damage(self, root: str, level: Level) -> dict[int, tuple[str, str]]:
        damage = {}
        for shard, size in enumerate(level.shards):
            path = Path(root, level.name, shard_name(shard))
            try:
                if (actual := path.stat().st_size) != size:
                    damage[shard] = str(path), f"expected {size} bytes, got {actual}"
            except OSError as error:
                damage[shard] = str(path), error.strerror or str(error)
        return damage

    def remove_stale(self, index: CacheIndex, level: Level) -> None:
        shards = frozenset(map(shard_name, range(len(level.shards))))
        remove_owned(Path(index.root, level.name), self.file_names, shards)


class _MappedArray:
    """Interface of a numpy array that keeps the owner of its memory alive."""

    def __init__(self, copy: memoryview, owner: object) -> None:
        self._copy, self._owner = copy, owner
        self.__array_interface__ = np.frombuffer(copy, np.uint8).__array_interface__


class _LmdbReader(LevelReader):
    """Copies in one LMDB, which maps its memory itself."""

    is_mapped = True
    _opened: OpenLmdb | None = None

    def path(self, sample: int) -> str:
        return os.path.join(self._folder, LMDB_FILE)

    def _bytes(self, sample: int, shard: int, first: int, length: int) -> CopyBytes:
        name = f"{self._member(sample)}.{self.level.ending}"
        try:
            opened = self._opened  # another thread may close the store
            if opened is None:
                opened = self._opened = open_lmdb(self._folder)
            copy = opened.get(name.encode())
        except ImageError as error:
            if error.hint:  # it is not damaged
                raise
            raise self._damaged(error.message) from error
        if copy is None:
            raise self._damaged(f"the cache's {self._folder!r} has no entry {name!r}")
        if self.level.quality is not None:
            return bytes(copy)
        return np.asarray(_MappedArray(copy, opened))

    def close(self) -> None:
        self._opened = None


class _LmdbMerger:
    """Adds the entries of tar shards to one LMDB per resolution; a context manager."""

    def __init__(self, root: str, levels: Sequence[Level], map_bytes: Sequence[int]) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise UsageError(
                "format lmdb needs the package lmdb",
                hint='pip install "feedline[cache]", or use the format webdataset',
            ) from error
        self._lmdb, self._root = lmdb, root
        self._folders = [Path(root, level.name) for level in levels]
        self._open: list[Any] = []
        for folder, size in zip(self._folders, map_bytes, strict=True):
            folder.mkdir(exist_ok=True)
            self._open.append(_open_to_write(folder, max(size, _MIN_MAP_BYTES)))

    def __enter__(self) -> Callable[[int], None]:
        return self.put

    def __exit__(self, *_: object) -> None:
        for folder, environment in zip(self._folders, self._open, strict=True):
            _close_lmdb(environment, folder)

    def put(self, shard: int) -> None:
        parts = [folder / shard_name(shard) for folder in self._folders]
        try:
            for part, environment in zip(parts, self._open, strict=True):
                while not self._put(environment, part):
                    environment.set_mapsize(2 * environment.info()["map_size"])
        except self._lmdb.Error as error:
            raise ResourceError(
                f"cannot write the LMDB of {part}: {error}. Finished shards are kept",
                hint="run the same build again to continue when the disk has space",
            ) from error
        sync_names(self._root, (folder / LMDB_FILE for folder in self._folders))
        for part in parts:
            part.unlink()

    def _put(self, environment: Any, part: Path) -> bool:
        """Add the entries of a tar file. Return False if the map is full."""
        try:
            with tarfile.open(part) as entries, environment.begin(write=True) as transaction:
                for entry in entries:
                    file = entries.extractfile(entry)
                    assert file is not None, "a shard's tar file holds only files"
                    transaction.put(entry.name.encode(), file.read())
            return True
        except self._lmdb.MapFullError:
            return False


def _open_to_write(folder: Path, map_bytes: int) -> Any:
    """Open the LMDB in a folder, created if missing."""
    import lmdb

    for name in (LMDB_FILE, _LMDB_LOCK):
        refuse_link(folder / name)
    return lmdb.open(str(folder), map_size=map_bytes)


def _close_lmdb(environment: Any, folder: Path) -> None:
    """Close an LMDB that was written to, and extend its file to the length that it reports."""
    pages, page_bytes = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    environment.close()
    # Empty last pages may never have been written.
    if (folder / LMDB_FILE).stat().st_size < pages * page_bytes:
        os.truncate(folder / LMDB_FILE, pages * page_bytes)
    (folder / _LMDB_LOCK).unlink(missing_ok=True)


class LmdbFormat(TarFormat):
    """One LMDB per resolution. Shards are written as tar files, and merged."""

    name = "lmdb"
    file_names = rf"{TarFormat.file_names}|data\.mdb|lock\.mdb"
    reader = _LmdbReader
    merged_file = LMDB_FILE
    package = "lmdb"
    supports_remote = False

    def merger(self, root: str, levels: Sequence[Level], map_bytes: Sequence[int]) -> _LmdbMerger:
        return _LmdbMerger(root, levels, map_bytes)

    def has_shard(self, root: str, level: Level, shard: int, size: int) -> bool:
        return not Path(root, level.name, shard_name(shard)).exists()

    def file_damage(self, root: str, level: Level) -> dict[int, tuple[str, str]]:
        folder = Path(root, level.name)
        path = str(folder / LMDB_FILE)
        try:
            os.stat(path)
            open_lmdb(str(folder))
        except OSError as error:
            return {0: (path, error.strerror or str(error))}
        except ImageError as error:
            return {0: (path, error.message)}
        return {}

    def disk_bytes(self, root: str, level: Level) -> int:
        return max(0, _file_size(os.path.join(root, level.name, LMDB_FILE)))

    def remove_stale(self, index: CacheIndex, level: Level) -> None:
        folder = Path(index.root, level.name)
        remove_owned(folder, self.file_names, {LMDB_FILE})
        names = {member(key) for key in index.keys.tolist()}
        # Space for the pages that a deletion rewrites.
        room = 2 * (folder / LMDB_FILE).stat().st_size + _MIN_MAP_BYTES
        environment = _open_to_write(folder, room)
        with environment.begin(write=True) as transaction:
            stale = [
                entry
                for entry, _ in transaction.cursor()
                if bytes(entry).decode("ascii", "replace").partition(".")[0] not in names
            ]
            for entry in stale:
                transaction.delete(entry)
        _close_lmdb(environment, folder)


def file_name(key: int, name: str, label: Any, classes: Sequence[str] | None) -> str:
    """Path of a sample's file below its resolution's folder, without an extension.

    Unique, below that folder and allowed everywhere, for any names of samples and classes. The
    number in the source comes first, so that files sort like samples.
    """
    stem = name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    shown = re.sub(r"[^\w.-]+", "_", stem, flags=re.ASCII)[:_MAX_STEM]
    return f"{_label_folder(label, classes)}/{member(key)}" + (f"-{shown}" if shown else "")


def _label_folder(label: Any, classes: Sequence[str] | None) -> str:
    if getattr(label, "ndim", 0) or not 0 <= label == int(label):
        return "samples"
    if classes is None or label >= len(classes):
        return str(int(label))
    # Percent signs keep names distinct. A dot first would hide the folder, or lead out of it.
    folder = quote(classes[int(label)], safe=" ", errors="surrogatepass")
    return folder.replace(".", "%2E", 1) if folder.startswith(".") else folder or "%"


def _file_of(index: CacheIndex, row: int) -> str:
    """`file_name` of a row of a cache."""
    classes = index.manifest.classes
    return file_name(int(index.keys[row]), index.name(row), index.labels[row], classes)


class _FileReader(LevelReader):
    """Copies in one file each."""

    def path(self, sample: int) -> str:
        return os.path.join(self._folder, f"{_file_of(self._index, sample)}.{self.level.ending}")

    def _bytes(self, sample: int, shard: int, first: int, length: int) -> CopyBytes:
        path = self.path(sample)
        try:
            return read_file(os.fsencode(path))
        except ImageError as error:
            raise self._damaged(
                f"the cache's copy {path!r}: {error.message}", error.__cause__
            ) from error


class _FileWriter(ShardWriter):
    """Writes one file per image."""

    def __init__(self, root: str, level: Level, shard: int, classes: Sequence[str] | None) -> None:
        super().__init__(root, level, shard, classes)
        self._paths: list[Path] = []
        self._bytes = 0

    def write(self, sample: CacheSample, image: bytes) -> int:
        name = file_name(sample.key, sample.name, sample.label, self.classes)
        path = Path(self.root, self.level.name, f"{name}.{self.level.ending}")
        path.parent.mkdir(exist_ok=True)
        refuse_link(path.parent)
        write_atomic(path, image, durable=False)
        self._paths.append(path)
        self._bytes += len(image)
        return 0

    def finish(self) -> int:
        # Synced at the end, when the kernel has already written most of them.
        sync_files(self.root, self._paths)
        return self._bytes


class FileFormat(CacheFormat):
    """One image file per copy, in folders of classes."""

    name = "folder"
    file_names = r"[^/]+/\d{9}(-[\w.-]+)?\.(jpg|npy)"
    reader = _FileReader
    writer = _FileWriter

    def damaged_shards(self, index: CacheIndex, level: Level) -> set[int]:
        files = (
            os.path.join(folder, name)
            for folder, _, names in os.walk(os.path.join(index.root, level.name))
            for name in names
        )
        if sum(map(_file_size, files)) == level.bytes:
            return set()
        reader = self.reader(index, level)
        return {
            int(index.keys[row]) // index.manifest.per_shard
            for row, size in enumerate(index.entries(level)[:, 2].tolist())
            if _file_size(reader.path(row)) != size
        }

    def remove_stale(self, index: CacheIndex, level: Level) -> None:
        rows = range(index.manifest.samples)
        keep = {f"{_file_of(index, row)}.{level.ending}" for row in rows}
        remove_owned(Path(index.root, level.name), self.file_names, keep)


def _file_size(path: str) -> int:
    """Size of a file in bytes; -1 if it is missing."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


CACHE_FORMATS: dict[str, CacheFormat] = {
    each.name: each for each in (TarFormat(), LmdbFormat(), FileFormat())
}


def cache_format(name: str) -> CacheFormat:
    """Format by its name; raises a DatasetError if it is unknown."""
    if name not in CACHE_FORMATS:
        raise DatasetError(
            f"unknown format {name!r} of a cache; known are {', '.join(CACHE_FORMATS)}",
            hint="upgrade feedline, or build the cache again",
        )
    return CACHE_FORMATS[name]


def incomplete_files(root: str, format: str) -> list[str]:
    """Paths of the files in a cache's folder that its builder was writing."""
    files = rf"\d+/(?:{cache_format(format).file_names})"
    return partial_files(
        root,
        rf"{re.escape(MANIFEST)}|{INDEX}/[\w-]+\.npy|{files}"
        rf"|{UNFINISHED}(-\d+)?/(?:{BUILD_FILES}|{files})",
    )
