"""LMDBs that are read, each opened once in a process, as LMDB demands.

Guarantees: several readers of one LMDB share it; it is closed when the last reader, and the last
bytes that lie in it, are gone. A process that was forked reads what it inherited: without a lock
file readers share the mapped file only, and a finished cache's file does not change.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from feedline.errors import DatasetError, ImageError
from feedline.stores.cache_layout import LMDB_FILE

__all__ = ["OpenLmdb", "open_lmdb"]

_open: weakref.WeakValueDictionary[str, OpenLmdb] = weakref.WeakValueDictionary()


class OpenLmdb:
    """An LMDB that is read as it was when it was opened.

    Args:
        folder: where its data.mdb lies.

    Raises:
        DatasetError: the package lmdb is missing.
        ImageError: it cannot be read.
    """

    def __init__(self, folder: str) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise DatasetError(
                "this cache is an LMDB, and the package lmdb is not installed: "
                'pip install "feedline[cache]"'
            ) from error
        self._folder, self._error = folder, lmdb.Error
        path = os.path.join(folder, LMDB_FILE)
        if os.path.exists(path) and not os.path.isfile(path):  # LMDB would wait on a pipe
            raise self._unreadable(f"{path!r} is no file")
        try:
            # Nobody writes to it, so no lock file is made: its folder may be read only.
            self._environment = lmdb.open(
                folder, readonly=True, lock=False, create=False, readahead=False, max_dbs=0
            )
            self._reading = self._environment.begin(buffers=True)
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        # A builder makes the file as long as this. To read what is missing would end the process.
        pages = self._environment.info()["last_pgno"] + 1
        whole = pages * self._environment.stat()["psize"]
        if (size := os.path.getsize(path)) < whole:
            raise self._unreadable(f"{path!r} has {size} bytes of {whole}, it was not copied whole")

    def get(self, name: str) -> memoryview | None:
        """The bytes of an entry, where they lie: valid as long as this object lives.

        Raises:
            ImageError: the LMDB is damaged.
        """
        try:
            found: Any = self._reading.get(name.encode())
        except self._error as error:
            raise self._unreadable(error) from error
        return found if found is None else memoryview(found)

    def _unreadable(self, why: object) -> ImageError:
        return ImageError(f"the LMDB {self._folder!r} cannot be read: {why}")


def open_lmdb(folder: str) -> OpenLmdb:
    """The LMDB in a folder, opened by this process already or now; raises as `OpenLmdb` does."""
    place = os.path.realpath(folder)
    found = _open.get(place)
    if found is None:
        found = _open[place] = OpenLmdb(folder)
    return found
