"""Open LMDBs of this process, and reading of one in another process, which a damaged page may end.

LMDB checks no page: a damaged one makes it read beyond the mapped file. A worker that ends so is
replaced, and its sample named; the training process would end, so it lists keys in a process.

Guarantees: nothing is written, not even a lock file; a truncated LMDB raises an error. Each process
opens an LMDB once, as LMDB requires, and closes it when the last reader and the last reference to
its bytes are gone; a forked process uses the inherited one. The other process does not import
torch.

Relies on: an LMDB that is not written to meanwhile: without a lock file readers share only the
mapped file. The standard streams of that process have pickles of this package alone.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from feedline.errors import DatasetError, ImageError, ResourceError
from feedline.system import code_command, describe_exit

LMDB_FILE = "data.mdb"
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from feedline.sources.lmdb_reader import answer_queries; answer_queries(sys.argv[1])"
)

_environments: weakref.WeakValueDictionary[str, OpenLmdb] = weakref.WeakValueDictionary()


class OpenLmdb:
    """An open LMDB: a folder with data.mdb, or such a file. An ImageError if it is unreadable."""

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


def read_in_process(path: str, *queries: tuple[Sequence[bytes] | None, int | None]) -> list[Any]:
    """Answer queries about the LMDB at a path in another process, each as a list.

    A query is a sequence of keys and a length: the answer has the first bytes of each value, or
    whole values if the length is None, and None for missing entries. (None, None) lists all keys,
    in the order of their bytes. Raises an ImageError if the LMDB cannot be read, also if that ends
    the process.
    """
    command = code_command(_BOOT, path)
    try:
        ended = subprocess.run(command, input=pickle.dumps(queries), stdout=subprocess.PIPE)
    except OSError as error:
        raise ResourceError(f"cannot start a process that reads {path!r}: {error}") from error
    try:
        answer: list[Any] | Exception = pickle.loads(ended.stdout)
    except (EOFError, pickle.UnpicklingError) as error:
        end = describe_exit("the process that read it", ended.returncode)
        raise ImageError(
            f"the LMDB {path!r} cannot be read: {end}, probably because its pages are damaged",
            hint="copy or write it again",
        ) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def answer_queries(path: str) -> None:
    """Answer the queries from standard input; the code of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process ends it
    answer: list[Any] | Exception
    try:
        opened, answer = OpenLmdb(path), []
        for keys, max_bytes in pickle.load(sys.stdin.buffer):
            if keys is None:
                answer.append(list(opened.keys()))
            else:
                values = map(opened.get, keys)
                answer.append(
                    [None if each is None else bytes(each[:max_bytes]) for each in values]
                )
    except Exception as error:
        answer = error
    pickle.dump(answer, sys.stdout.buffer)
