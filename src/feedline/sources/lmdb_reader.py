"""Reading of an LMDB's keys and values in another process, which a damaged page may end.

LMDB checks no page: a damaged one makes it read beyond the mapped file. A worker that ends so is
replaced, and its sample named; the training process would end.

Guarantees: the process ends with the reader, and with this process. It does not import torch.

Relies on: its standard input and output, for pickles of this package alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from feedline.errors import ImageError, ResourceError
from feedline.sources.open_lmdb import OpenLmdb
from feedline.system import describe_exit, python_program, search_path

__all__ = ["LmdbReader", "serve"]

_BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from feedline.sources.lmdb_reader import serve; serve(sys.argv[1])"
)
_KEYS_AT_A_TIME = 1000


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
