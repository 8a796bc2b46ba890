"""The entries of a unit's tar files into an LMDB.

Guarantees: a unit goes in whole or not at all, and its tar files are removed when it is on the disk
for good; a map that turns out too small is made larger, and the unit is tried again; the data file
is as long as LMDB says that it is, so that a copy which was cut short can be told.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feedline.cache.whole_file import names_to_disk
from feedline.errors import ResourceError, UsageError
from feedline.stores.cache_layout import LMDB_FILE, Level, shard_name

__all__ = ["LmdbWriter", "close_whole"]

_LEAST_MAP_BYTES = 64 << 20


class LmdbWriter:
    """One LMDB for each level; a context manager.

    Args:
        root: the cache's folder.
        levels: which.
        map_bytes: how large each may become at first; it is address space, not memory.
    """

    def __init__(self, root: str, levels: Sequence[Level], map_bytes: Sequence[int]) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise UsageError(
                "format lmdb needs the package lmdb, which is not installed: "
                'pip install "feedline[cache]"; or choose the format webdataset'
            ) from error
        self._lmdb = lmdb
        self._root = root
        self._folders = [Path(root, level.name) for level in levels]
        self._open: list[Any] = []
        for folder, size in zip(self._folders, map_bytes, strict=True):
            folder.mkdir(exist_ok=True)
            self._open.append(lmdb.open(str(folder), map_size=max(size, _LEAST_MAP_BYTES)))

    def __enter__(self) -> LmdbWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for folder, environment in zip(self._folders, self._open, strict=True):
            close_whole(environment, folder)

    def put(self, unit: int) -> None:
        """Put a unit's entries in, and remove its tar files.

        Raises:
            ResourceError: the disk is full.
        """
        parts = [folder / shard_name(unit) for folder in self._folders]
        try:
            for part, environment in zip(parts, self._open, strict=True):
                while not self._put(environment, part):
                    environment.set_mapsize(2 * environment.info()["map_size"])
        except self._lmdb.Error as error:
            raise ResourceError(
                f"the LMDB of {part} cannot be written: {error}. A full disk? What is done so far "
                "stays there: the same build goes on with it"
            ) from error
        names_to_disk(self._root, (folder / LMDB_FILE for folder in self._folders))
        for part in parts:
            part.unlink()

    def _put(self, environment: Any, part: Path) -> bool:
        """Whether a file's entries fitted into the map."""
        try:
            with tarfile.open(part) as entries, environment.begin(write=True) as transaction:
                for entry in entries:
                    file = entries.extractfile(entry)
                    assert file is not None, "a unit's tar file holds files only"
                    transaction.put(entry.name.encode(), file.read())
            return True
        except self._lmdb.MapFullError:
            return False


def close_whole(environment: Any, folder: Path) -> None:
    """Close an LMDB that was written to, and make its file as long as it says that it is."""
    pages, page_bytes = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    environment.close()
    # Last pages that hold nothing may never have been written.
    if (folder / LMDB_FILE).stat().st_size < pages * page_bytes:
        os.truncate(folder / LMDB_FILE, pages * page_bytes)
    (folder / "lock.mdb").unlink(missing_ok=True)
