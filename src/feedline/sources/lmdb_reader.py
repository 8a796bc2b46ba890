"""Open LMDBs of this process, and reading of one in another process, which a damaged page may end.

LMDB checks no page: a damaged one makes it read beyond the mapped file. A worker that ends so is
replaced, and its sample named; the training process would end, so it lists keys in a process.

Guarantees: nothing is written, not even a lock file; a truncated LMDB raises an error. Each process
opens an LMDB once, as LMDB requires, and closes it when the last reader and the last reference to
its bytes are gone; a forked process uses the inherited one. The process of an `LmdbReader` ends
with it, and with this process; it does not import torch.

Relies on: an LMDB that is not written to meanwhile: without a lock file readers share only the
mapped file. The standard streams of that process have pickles of this package alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from feedline.errors import DatasetError, ImageError, ResourceError
from feedline.system import describe_exit, python_program, search_path

LMDB_FILE = "data.mdb"
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from feedline.sources.lmdb_reader import serve; serve(sys.argv[1])"
)
_KEYS_AT_A_TIME = 1000

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


class LmdbReader:
    """Reader of the LMDB at a path; a context manager. Raises an ImageError if it cannot be read,
    also if that ends the process.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._process = subprocess.Popen(
                [python_program(), "-c", _BOOT, path, *search_path()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise ResourceError(f"cannot start a process that reads {path!r}: {error}") from error

    def __enter__(self) -> LmdbReader:
        try:
            self._receive()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # a request that the ended process did not read
                stream.close()
        self._process.wait()

    def keys(self) -> Iterator[bytes]:
        """All keys, in the order of their bytes. Read them all before other requests."""
        self._send(None)
        while keys := self._receive():
            yield from keys

    def values(self, keys: Sequence[bytes], max_bytes: int | None = None) -> Iterator[bytes | None]:
        """First bytes of the values of some keys, or whole values; None for missing entries."""
        for start in range(0, len(keys), _KEYS_AT_A_TIME):
            self._send((keys[start : start + _KEYS_AT_A_TIME], max_bytes))
            yield from self._receive()

    def _send(self, request: object) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
        except OSError as error:  # BrokenPipeError; on Windows also EINVAL
            raise self._ended() from error

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ended(self) -> ImageError:
        end = describe_exit("the process that read it", self._process.wait())
        return ImageError(
            f"the LMDB {self._path!r} cannot be read: {end}, probably because its "
            "pages are damaged",
            hint="copy or write it again",
        )


def serve(path: str) -> None:
    """Answer the requests of an `LmdbReader`; the code of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the reader ends it
    out = sys.stdout.buffer
    try:
        opened = OpenLmdb(path)
        _answer(None)
        while True:
            request = pickle.load(sys.stdin.buffer)
            if request is None:
                keys = opened.keys()
                while part := list(islice(keys, _KEYS_AT_A_TIME)):
                    pickle.dump(part, out)
                _answer([])
            else:
                names, max_bytes = request
                values = map(opened.get, names)
                _answer([None if each is None else bytes(each[:max_bytes]) for each in values])
    except (EOFError, BrokenPipeError):
        os._exit(0)
    except Exception as error:
        _answer(error)


def _answer(answer: object) -> None:
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
