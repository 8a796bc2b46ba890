"""Open LMDBs of this process.

Guarantees: nothing is written, not even a lock file; a truncated LMDB, which would end the process,
raises an error. Each process opens an LMDB once, as LMDB requires, and closes it when the last
reader and the last reference to its bytes are gone; a forked process uses the inherited one.

Relies on: an LMDB that is not written to meanwhile. Without a lock file readers share only the
mapped file.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any

from feedline.errors import DatasetError, ImageError

__all__ = ["LMDB_FILE", "OpenLmdb", "open_lmdb"]

LMDB_FILE = "data.mdb"

_environments: weakref.WeakValueDictionary[str, OpenLmdb] = weakref.WeakValueDictionary()


class OpenLmdb:
    """An open LMDB: a folder with its data.mdb, or such a file; raises an ImageError if it cannot
    be read.
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
        is_file = os.path.exists(path) and not os.path.isdir(path)
        data = path if is_file else os.path.join(path, LMDB_FILE)
        if os.path.exists(data) and not os.path.isfile(data):  # LMDB would wait on a pipe
            raise self._unreadable(f"{data!r} is not a file")
        try:
            # Without a lock file, because it is not written and its folder may be read-only.
            self._environment = lmdb.open(
                path,
                subdir=not is_file,
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                max_dbs=0,
            )
            self._transaction = self._environment.begin(buffers=True)
        except lmdb.Error as error:
            hint = ""
            if "already open in this process" in str(error):
                hint = "LMDB allows one lmdb.Environment per file and process: close yours first"
            raise self._unreadable(error, hint) from error
        # Reading what is missing of a truncated file would end the process.
        pages = self._environment.info()["last_pgno"] + 1
        expected = pages * self._environment.stat()["psize"]
        if (size := os.path.getsize(data)) < expected:
            raise self._unreadable(
                f"{data!r} has {size} of {expected} bytes, so it was not copied completely"
            )

    def keys(self) -> Iterator[bytes]:
        """All keys, in the order of their bytes."""
        try:
            for key in self._transaction.cursor().iternext(keys=True, values=False):
                yield bytes(key)
        except self._error as error:
            raise self._unreadable(error) from error

    def get(self, key: bytes) -> memoryview | None:
        """View of an entry's bytes, valid as long as this object lives."""
        try:
            value: Any = self._transaction.get(key)
        except self._error as error:
            raise self._unreadable(error) from error
        return value if value is None else memoryview(value)

    def _unreadable(self, why: object, hint: str = "") -> ImageError:
        return ImageError(f"the LMDB {self._path!r} cannot be read: {why}", hint=hint)


def open_lmdb(path: str) -> OpenLmdb:
    """Return the LMDB at a path, opened once per process."""
    place = os.path.realpath(path)
    opened = _environments.get(place)
    if opened is None:
        opened = _environments[place] = OpenLmdb(path)
    return opened
