"""fsspec filesystem of a URL: opening, requests, and retries.

Guarantees: the objects of one process share its connections; a forked process makes its own and
does not touch those of its parent; a pickle contains none. Temporary failures are retried for a
bounded time, and an unreachable server costs little from then on; a permanent failure raises an
error with the name and fsspec's message. A password in a URL is never shown.

Relies on: fsspec and its filesystems, imported here and only for a URL; `error` for which errors
are permanent.
"""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from feedline.errors import UsageError
from feedline.remote.error import Altered, RemoteError, lasts, next_step
from feedline.remote.range_guard import guard, guarded_options

__all__ = ["Filesystem", "is_url", "shown"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
_USER = re.compile(r"(?<=://)[^/]*@")
# What stands before the @ of these is a container, a bucket or a repository.
_NAMED_SO = ("abfs", "abfss", "github", "oci")

_AWAY_S = 10.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_MOST_ALTERED = 3

Result = TypeVar("Result")

# To open one takes up to a second. By what they were opened with, which is kept with them: an
# option that shows its address shares it with no other.
_opened: dict[tuple[str, str, int], tuple[Any, object]] = {}
# By their ids, as two that were opened alike are equal.
_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_inherited: list[object] = []


# To close a connection that a parent opened would take it from the parent's event loop as well, as
# both share the kernel's side of it. So a child keeps them and does not use them.
def _inherit() -> None:
    _inherited.extend(_alive.values())
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)


def is_url(given: object) -> bool:
    """Return True for a URL, e.g. s3://bucket/folder, and False for a local path."""
    return isinstance(given, str) and _URL.match(given) is not None


def shown(url: str) -> str:
    """A URL without user and password, for messages."""
    return url if url.partition("://")[0] in _NAMED_SO else _USER.sub("", url, count=1)


class Filesystem:
    """Files below a URL. Its text is the URL without user and password.

    Args:
        url: URL of a folder, of any fsspec protocol.
        options: arguments of fsspec's filesystem. The rest, e.g. credentials, comes from fsspec's
            configuration and from the environment.
        parts: number of parts of files requested at a time, by requests whose responses
            `range_guard` checks and which are retried here alone; 0: files are read and written
            whole, in many steps, of which the filesystem itself retries those that it can.

    Raises:
        UsageError: the URL or an option is invalid, or a package is missing.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, *, parts: int = 0
    ) -> None:
        self.url = url.rstrip("/")
        self._options, self._parts = dict(options or {}), parts
        self._store = "/".join(self.url.split("/")[:3])
        self._away_until = 0.0
        self.opened()

    def __str__(self) -> str:
        return shown(self.url)

    def says(self, error: BaseException) -> str:
        """Type and message of an error, without user and password."""
        said = str(error).replace(self._store, shown(self._store))
        return f"{type(error).__name__}: {said}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_away_until": 0.0}

    @property
    def _key(self) -> tuple[str, str, int]:
        return self._store, repr(self._options), self._parts

    def opened(self) -> tuple[Any, str]:
        """Filesystem of this process, and the path of the URL in it.

        Raises:
            UsageError: as in the constructor.
        """
        try:
            filesystem, _ = _opened.get(self._key) or (None, None)
            if filesystem is None:
                filesystem = self._open()
                _opened[self._key] = filesystem, self._options
            return filesystem, filesystem._strip_protocol(self.url).rstrip("/")
        except ImportError as error:
            raise UsageError(
                f"'{self}' needs a package that is not installed ({error}). For http and s3: pip "
                'install "feedline[remote]"; for other protocols the one that fsspec names'
            ) from error
        except Exception as error:
            raise UsageError(
                f"'{self}' cannot be opened by fsspec: {self.says(error)}. Check the protocol, and "
                "that storage_options are those of its filesystem"
            ) from error

    def _open(self) -> Any:
        from fsspec.core import url_to_fs

        if self._parts:
            protocol = self.url.partition("://")[0]
            options = guarded_options(protocol, self._options, self._parts)
        else:
            options = {**self._options, "use_listings_cache": False}  # others write there, too
        filesystem, _ = url_to_fs(self._store, skip_instance_cache=True, **options)
        _alive[id(filesystem)] = filesystem
        if self._parts:
            guard(filesystem)
        return filesystem

    def close(self) -> None:
        """Close the connections; the next request makes others, with the current environment."""
        _opened.pop(self._key, None)

    @property
    def is_away(self) -> bool:
        """True if the server has not responded recently."""
        return time.monotonic() < self._away_until

    def ask(
        self,
        once: Callable[[], Result],
        refused: str,
        *,
        patience_s: float,
        answers: tuple[type[Exception], ...] = (),
        advice: Callable[[BaseException], str] = next_step,
    ) -> Result:
        """Call a function, with retries after growing pauses, while that may help.

        Args:
            once: the function.
            refused: failure, for messages: "'s3://bucket/file' cannot be read".
            patience_s: how long to start retries; none while the server is unreachable.
            answers: exceptions that are answers, and raised unchanged.
            advice: returns the fix for an error.

        Raises:
            RemoteError: it fails; the message has the failure, the last error, and the fix.
        """
        begun, pause_s, tries = time.monotonic(), _FIRST_PAUSE_S, 0
        if away := self.is_away:
            patience_s = 0.0
        while True:
            tries += 1
            try:
                result = once()
                self._away_until = 0.0
                return result
            except answers:
                raise
            except Exception as error:  # each store has exceptions of its own
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
        if not away and not isinstance(last, FileNotFoundError):
            self.close()  # another try has what the environment then says
        if not lasts(last):
            # Else each of the next would take as long to fail.
            self._away_until = time.monotonic() + _AWAY_S
        often = "" if tries == 1 else f" (tried {tries} times in {spent_s:.0f} s)"
        raise RemoteError(f"{refused}{often}: {self.says(last)}. {advice(last)}") from last
