"""Files below a URL, of which parts are fetched, many at a time, by fsspec.

Guarantees: what is given has the length that was asked for; all requests have a deadline; what
fails by chance is tried again a bounded number of times, and a server that stays away costs little
from then on; a pickle holds no connection, and a process that was forked makes its own and does not
touch those of its parent; passwords in a URL are not shown.

Relies on: `range_guard` for answers that are something else; fsspec's own event loop.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from feedline.errors import UsageError
from feedline.stores.joined_parts import Part, joined
from feedline.stores.range_guard import guard, guarded_options
from feedline.stores.remote_error import Altered, RemoteError, lasts, next_step

__all__ = ["RemoteFiles"]

IN_FLIGHT = 32
"""Requests of each process at a time, unless the options have another "batch_size"."""

_DEADLINE_S = 20.0  # of the requests that are sent together
_SHORT_DEADLINE_S = 2.0  # while a server is away
_AWAY_S = 10.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_MOST_ALTERED = 3

Result = TypeVar("Result")
Answer = bytes | Exception

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[Any] = []

# To close a connection that a parent opened would take it from the parent's event loop as well, as
# both share the kernel's side of it. So a child keeps them and does not use them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _inherited.extend(_open))


class RemoteFiles:
    """The files below a URL.

    Args:
        url: of their folder, of any protocol that fsspec knows.
        options: the arguments of fsspec's filesystem; "batch_size" among them is how many requests
            each process sends at a time.

    Raises:
        UsageError: the URL or an option cannot be used, or a package is missing.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options or {})
        self._in_flight = self.options.pop("batch_size", IN_FLIGHT)
        self._begin()
        scheme, _, rest = self.url.partition("://")
        if not scheme or not rest or "::" in url or ("?" in url and scheme.startswith("http")):
            raise UsageError(
                f"{str(self)!r} names no folder whose files could be read: give "
                "PROTOCOL://HOST/FOLDER, without a query and without another protocol around it"
            )
        self._opened()

    def _begin(self) -> None:
        self._filesystem: Any = None
        self._top, self._pid = "", 0
        self._away_until = 0.0

    def __str__(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def _opened(self) -> Any:
        """The filesystem of this process."""
        if self._filesystem is not None and self._pid == os.getpid():
            return self._filesystem
        try:
            from fsspec.core import url_to_fs

            scheme = self.url.partition("://")[0]
            options = guarded_options(scheme, self.options, self._in_flight)
            filesystem, top = url_to_fs(self.url, skip_instance_cache=True, **options)
            _open.add(filesystem)
            guard(filesystem)
        except ImportError as error:
            raise UsageError(
                f"to read {self}, a package is missing ({error}). For http and s3: "
                'pip install "feedline[remote]"; for other protocols the one that fsspec names'
            ) from error
        except Exception as error:
            raise UsageError(
                f"{self} cannot be opened by fsspec: {type(error).__name__}: {error}. Is the "
                "protocol right, and are storage_options those of its filesystem?"
            ) from error
        self._filesystem, self._top, self._pid = filesystem, top.rstrip("/"), os.getpid()
        return filesystem

    def close(self) -> None:
        """Let go of the connections; the next read makes others."""
        self._filesystem = None

    def fetch(self, parts: Sequence[Part]) -> list[Answer]:
        """Fetch parts, in any order, at the same time, each once: its bytes, or what went wrong."""
        try:
            blocks, where = joined(parts)
        except ImportError as error:
            return [error] * len(parts)
        found = self._ask(blocks, short=False)
        given: list[Answer] = []
        for part, at in zip(parts, where, strict=True):
            data, start = found[at], part.first - blocks[at].first
            given.append(data[start : start + part.length] if isinstance(data, bytes) else data)
        return given

    def _ask(self, blocks: Sequence[Part], *, short: bool) -> list[Answer]:
        """One request for each block; `short`: files may end before their blocks do."""
        away = time.monotonic() < self._away_until
        deadline_s = _SHORT_DEADLINE_S if away else _DEADLINE_S
        try:
            filesystem = self._opened()
            options: dict[str, Any] = {}
            if filesystem.async_impl:
                options = {"batch_size": self._in_flight, "timeout": deadline_s}
            answers = filesystem.cat_ranges(
                [f"{self._top}/{block.name}" for block in blocks],
                [block.first for block in blocks],
                [block.first + block.length for block in blocks],
                on_error="return",
                **options,
            )
        except Exception as error:
            return [error] * len(blocks)
        pairs = zip(blocks, answers, strict=True)
        return [_checked(block, answer, short) for block, answer in pairs]

    def read(
        self, part: Part, *, patience_s: float, sound: Callable[[bytes], bool] = lambda data: True
    ) -> bytes:
        """A part, asked for again while that may help.

        Args:
            part: what is wanted.
            patience_s: how long to begin anew.
            sound: whether bytes are what was written there.

        Raises:
            RemoteError: it cannot be had.
        """

        def once() -> bytes:
            (found,) = self.fetch([part])
            if isinstance(found, Exception):
                raise found
            if not sound(found):
                raise Altered("its checksum differs from that of what was written")
            return found

        return self.patiently(once, str(part), patience_s)

    def rest(self, part: Part, *, patience_s: float) -> bytes:
        """A part, or as much of it as its file has; raises as `read` does."""

        def once() -> bytes:
            (found,) = self._ask([part], short=True)
            if isinstance(found, Exception):
                raise found
            return found

        return self.patiently(once, repr(part.name), patience_s)

    def patiently(self, once: Callable[[], Result], what: str, patience_s: float) -> Result:
        """Do something again, with growing pauses, while that may help.

        Raises:
            RemoteError: it does not; says what was tried, the last failure, and what to do.
        """
        begun, pause_s, tries = time.monotonic(), _FIRST_PAUSE_S, 0
        if begun < self._away_until:
            patience_s = 0.0
        while True:
            tries += 1
            try:
                result = once()
                self._away_until = 0.0
                return result
            except Exception as error:
                last = error
            spent_s = time.monotonic() - begun
            if (
                lasts(last)
                or spent_s + pause_s > patience_s
                or (isinstance(last, Altered) and tries >= _MOST_ALTERED)
            ):
                break
            # Workers that failed together do not come back together.
            time.sleep(pause_s * (1 + os.getpid() % 8 / 8))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if not lasts(last):
            # Else each of the next reads would take as long to fail.
            self._away_until = time.monotonic() + _AWAY_S
        often = "" if tries == 1 else f", {tries} times in {spent_s:.0f} s"
        raise RemoteError(
            f"{what} was asked for at {self}{often}: {type(last).__name__}: {last}. "
            f"{next_step(last)}"
        ) from last

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self.options, "_in_flight": self._in_flight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _checked(block: Part, answer: Any, short: bool) -> Answer:
    if isinstance(answer, Exception):
        return answer
    data = bytes(answer)
    if len(data) == block.length or (short and len(data) < block.length):
        return data
    return Altered(f"{len(data)} bytes came, and there were {block.length}")
