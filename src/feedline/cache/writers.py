"""Writers of a resolution's images, one shard at a time, for each file format.

Guarantees: files are written atomically; a finished shard is on the disk; an interrupted one leaves
nothing. A shard is added to an LMDB completely or not at all, and its tar files are removed after
the data is on the disk.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.atomic_write import partial_path, sync_files, sync_names, write_atomic
from feedline.cache.level_encoder import ResizedCopies
from feedline.errors import ResourceError, UsageError
from feedline.sources.cache_layout import LMDB_FILE, CacheFormat, Level, member, shard_name
from feedline.sources.file_name import file_name

__all__ = ["WRITERS", "CacheSample", "LmdbWriter", "close_lmdb", "tar_header"]


Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_BLOCK = 512  # bytes, of tar
_TAR_HEADER = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_MIN_MAP_BYTES = 64 << 20


class CacheSample(NamedTuple):
    """A sample and its copies, as written to all resolutions."""

    key: int
    name: str
    label: Any
    copies: ResizedCopies


def tar_header(name: str, size: int) -> bytes:
    """Return tarfile's 512-byte header of a file, in a fifth of tarfile's time.

    Args:
        name: ASCII, at most 100 characters.
        size: size of the file in bytes, less than 8 GiB.
    """
    header = bytearray(_TAR_HEADER)
    header[: len(name)] = name.encode("ascii")
    header[124:135] = b"%011o" % size
    header[148:156] = b" " * 8  # the field of the checksum counts as spaces
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header)


class _TarWriter:
    """Writes a tar shard; for an LMDB its entries are added later."""

    def __init__(self, root: str, level: Level, shard: int, classes: Sequence[str] | None) -> None:
        self._root, self._level, self._classes = root, level, classes
        self._path = Path(root, level.name, shard_name(shard))
        self._partial = partial_path(self._path)
        self._file = open(self._partial, "wb", buffering=1 << 20)  # noqa: SIM115
        self._position = 0

    def __enter__(self) -> _TarWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, sample: CacheSample, image: bytes) -> int:
        """Append a sample. Return the position of its image."""
        name = member(sample.key)
        first = self._append(f"{name}.{self._level.ending}", image)
        label = sample.label.tolist()
        metadata: dict[str, Any] = {"label": label}
        if isinstance(label, int):
            self._append(f"{name}.cls", str(label).encode())
            if self._classes is not None and 0 <= label < len(self._classes):
                metadata["class"] = self._classes[label]
        metadata |= {
            "path": sample.name,
            "height": sample.copies.height,
            "width": sample.copies.width,
        }
        self._append(f"{name}.json", json.dumps(metadata).encode())
        return first

    def _append(self, name: str, data: bytes) -> int:
        header = tar_header(name, len(data))
        first = self._position + len(header)
        padding = -len(data) % _BLOCK
        self._file.write(header)
        self._file.write(data)
        self._file.write(b"\0" * padding)
        self._position = first + len(data) + padding
        return first

    def finish(self) -> int:
        """Rename the file to its final name. Return its size in bytes."""
        self._file.write(b"\0" * 2 * _BLOCK)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        sync_names(self._root, [self._path])
        return self._position + 2 * _BLOCK


class _FileWriter:
    """Writes one file per image."""

    def __init__(self, root: str, level: Level, shard: int, classes: Sequence[str] | None) -> None:
        self._root, self._level, self._classes = root, level, classes
        self._written: list[Path] = []
        self._bytes = 0

    def __enter__(self) -> _FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def write(self, sample: CacheSample, image: bytes) -> int:
        """Write an image's file."""
        name = file_name(sample.key, sample.name, sample.label, self._classes)
        path = Path(self._root, self._level.name, f"{name}.{self._level.ending}")
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, image, durable=False)
        self._written.append(path)
        self._bytes += len(image)
        return 0

    def finish(self) -> int:
        """Sync all written files to the disk. Return their size in bytes."""
        # At the end, when the kernel has already written most of them.
        sync_files(self._root, self._written)
        return self._bytes


WRITERS: dict[CacheFormat, Callable[..., Any]] = {
    "webdataset": _TarWriter,
    "lmdb": _TarWriter,
    "folder": _FileWriter,
}


class LmdbWriter:
    """One LMDB per resolution; a context manager.

    Args:
        root: folder of the cache.
        levels: the resolutions.
        map_bytes: initial map sizes (address space, not memory).
    """

    def __init__(self, root: str, levels: Sequence[Level], map_bytes: Sequence[int]) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise UsageError(
                "format lmdb needs the package lmdb",
                hint='pip install "feedline[cache]", or use the format webdataset',
            ) from error
        self._lmdb = lmdb
        self._root = root
        self._folders = [Path(root, level.name) for level in levels]
        self._open: list[Any] = []
        for folder, size in zip(self._folders, map_bytes, strict=True):
            folder.mkdir(exist_ok=True)
            self._open.append(lmdb.open(str(folder), map_size=max(size, _MIN_MAP_BYTES)))

    def __enter__(self) -> LmdbWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for folder, environment in zip(self._folders, self._open, strict=True):
            close_lmdb(environment, folder)

    def put(self, shard: int) -> None:
        """Add a shard's entries, and remove its tar files.

        Raises:
            ResourceError: the disk is full.
        """
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
        """Add the entries of a file. Return False if the map is full."""
        try:
            with tarfile.open(part) as entries, environment.begin(write=True) as transaction:
                for entry in entries:
                    file = entries.extractfile(entry)
                    assert file is not None, "a shard's tar file holds only files"
                    transaction.put(entry.name.encode(), file.read())
            return True
        except self._lmdb.MapFullError:
            return False


def close_lmdb(environment: Any, folder: Path) -> None:
    """Close an LMDB that was written to, and extend its file to the length that it reports."""
    pages, page_bytes = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    environment.close()
    # Empty last pages may never have been written.
    if (folder / LMDB_FILE).stat().st_size < pages * page_bytes:
        os.truncate(folder / LMDB_FILE, pages * page_bytes)
    (folder / "lock.mdb").unlink(missing_ok=True)
