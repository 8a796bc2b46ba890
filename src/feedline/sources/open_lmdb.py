"""Open LMDBs, each opened once per process, as LMDB requires.

Guarantees: several readers of one LMDB share it; it is closed when the last reader, and the last
reference to its bytes, are gone. A forked process uses the inherited one: without a lock file
readers share only the mapped file, which must not change: a finished cache's does not.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any

from feedline.errors import DatasetError, ImageError
from feedline.sources.cache_layout import LMDB_FILE

__all__ = ["OpenLmdb", "open_lmdb"]

_open: weakref.WeakValueDictionary[str, OpenLmdb] = weakref.WeakValueDictionary()


class OpenLmdb:
    """An open LMDB.

    Args:
        path: folder with its data.mdb, or such a file with another name.

    Raises:
        DatasetError: the package lmdb is missing.
        ImageError: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise DatasetError(
                f"{path!r} is an LMDB, and the package lmdb is not installed",
                hint='pip install "feedline[cache]"',
            ) from error
        self._path, self._error = path, lmdb.Error
        alone = os.path.exists(path) and not os.path.isdir(path)
        data = path if alone else os.path.join(path, LMDB_FILE)
        if os.path.exists(data) and not os.path.isfile(data):  # LMDB would wait on a pipe
            raise self._unreadable(f"{data!r} is not a file")
        try:
            # Nobody writes to it, so no lock file is made: its folder may be read only.
            self._environment = lmdb.open(
                path,
                subdir=not alone,
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                max_dbs=0,
            )
            self._reading = self._environment.begin(buffers=True)
        except lmdb.Error as error:
            raise self._unreadable(error, _advice(error)) from error
        # A builder makes the file as long as this. To read what is missing would end the process.
        pages = self._environment.info()["last_pgno"] + 1
        whole = pages * self._environment.stat()["psize"]
        if (size := os.path.getsize(data)) < whole:
            raise self._unreadable(
                f"{data!r} has {size} of {whole} bytes, so it was not copied completely"
            )

    def keys(self) -> Iterator[bytes]:
        """All keys, in LMDB's order, which is that of their bytes.

        Raises:
            ImageError: the LMDB is damaged.
        """
        try:
            for key in self._reading.cursor().iternext(keys=True, values=False):
                yield bytes(key)
        except self._error as error:
            raise self._unreadable(error) from error

    def get(self, key: bytes) -> memoryview | None:
        """View of an entry's bytes, valid as long as this object lives.

        Raises:
            ImageError: the LMDB is damaged.
        """
        try:
            found: Any = self._reading.get(key)
        except self._error as error:
            raise self._unreadable(error) from error
        return found if found is None else memoryview(found)

    def _unreadable(self, why: object, hint: str = "") -> ImageError:
        return ImageError(f"the LMDB {self._path!r} cannot be read: {why}", hint=hint)


def _advice(error: Exception) -> str:
    if "already open in this process" not in str(error):
        return ""
    return (
        "LMDB allows one lmdb.Environment per file and process: close yours first, or "
        'load in workers (num_workers=1 or more) with start_method="forkserver" or "spawn"'
    )


def open_lmdb(path: str) -> OpenLmdb:
    """Return the LMDB at a path, opened once per process; raises like `OpenLmdb`."""
    place = os.path.realpath(path)
    found = _open.get(place)
    if found is None:
        found = _open[place] = OpenLmdb(path)
    return found
