"""The entries of a unit's tar files into an LMDB.

Guarantees: a unit goes in whole or not at all; a map that turns out too small is made larger, and
the unit is tried again.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feedline.cache.writers import part_path
from feedline.errors import ResourceError, UsageError
from feedline.stores.cache_layout import Level

__all__ = ["LmdbWriter"]

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
        self._lmdb, self._root, self._levels = lmdb, root, levels
        self._open: list[Any] = []
        for level, size in zip(levels, map_bytes, strict=True):
            folder = Path(root, level.name)
            folder.mkdir(exist_ok=True)
            self._open.append(
                # What was written is brought to the disk when the cache is finished.
                lmdb.open(str(folder), map_size=max(size, _LEAST_MAP_BYTES), sync=False)
            )

    def __enter__(self) -> LmdbWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for environment in self._open:
            environment.close()
        for level in self._levels:
            Path(self._root, level.name, "lock.mdb").unlink(missing_ok=True)

    def put(self, unit: int) -> None:
        """Put a unit's entries in, and remove its tar files.

        Raises:
            ResourceError: the disk is full.
        """
        for level, environment in zip(self._levels, self._open, strict=True):
            part = part_path(self._root, level, unit)
            while not self._put(environment, part):
                environment.set_mapsize(2 * environment.info()["map_size"])
            environment.sync()
        for level in self._levels:
            part_path(self._root, level, unit).unlink()

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
        except self._lmdb.DiskError as error:
            raise ResourceError(f"the LMDB of {part} cannot be written: {error}") from error
