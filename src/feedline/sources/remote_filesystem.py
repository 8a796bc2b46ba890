"""fsspec filesystem of a URL: opening, requests, retries, and errors.

Guarantees: the objects of one process share its connections; a forked process makes its own and
does not touch those of its parent; a pickle contains none. Temporary failures are retried for a
bounded time, and an unreachable server costs little from then on; a permanent failure raises an
error with the name, fsspec's message and the fix. A password in a URL is never shown. With HTTP,
the body of a checked response is read only if its header matches the request: for a range, status
206 and a length of at most the requested one; for a whole file ("bytes=0-"), the length of the
whole file. Anything else raises an error, so that memory is bounded whatever a web server sends.
Nothing is decompressed.

Relies on: fsspec and its filesystems, imported here and only for a URL; aiohttp's tracing, which
receives a response's header first. With other protocols the length of the received bytes is
checked.
"""

from __future__ import annotations

import errno
import os
import re
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from feedline.errors import DatasetError, UsageError, hide_secrets
from feedline.sources.files import MAX_FILE_BYTES

_REQUESTS = 32
"""Requests of each process at a time, unless the options contain another "batch_size"."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
_LOST_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")  # what pathlib makes of a URL

IMAGE_PATIENCE_S = 40.0
"""Time for retries of a single image. With the first and the last try, it is shorter than the time
after which a loader considers a worker hung."""
FOLDER_PATIENCE_S = 10.0
"""Time for retries of a listing or a transfer, besides the retries of the filesystem. A failed
build continues with the same command."""
INDEX_PATIENCE_S = 3.0
"""Time for retries of the manifest and index of a cache, for which a user waits."""

_UNREACHABLE_S = 10.0
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 4.0
_MAX_ALTERED = 3
_CONNECT_S = 10.0
_SILENCE_S = 15.0  # timeout to receive the next bytes
_WHOLE = "bytes=0-"
_S3 = ("s3", "s3a")

Result = TypeVar("Result")

# Open filesystems, because opening one takes up to a second. The key contains repr(options),
# which may have memory addresses. The value refers to the options, so that no later object gets
# such an address and matches the key by mistake.
_opened: dict[tuple[str, str, int], tuple[Any, object]] = {}
# By their ids, as two that were opened alike are equal.
_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_inherited: list[object] = []


# A forked child shares its parent's sockets, and closing one would also remove it from the parent's
# event loop. So the child keeps the inherited filesystems, and does not use them.
def _inherit() -> None:
    _inherited.extend(_alive.values())
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)


class RemoteError(DatasetError):
    """A remote file is unavailable. `is_missing_file`: only this file, not its server."""

    is_missing_file = False


class NoCacheError(DatasetError):
    """There is no cache at a URL."""


class AlteredError(Exception):
    """Bytes differ from those that were written."""


class RangeError(Exception):
    """A server sent something else than the requested part of a file."""


_PERMANENT = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    RangeError,
    TypeError,
    UsageError,
    ValueError,
)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
_PERMANENT_NAMES = (*_NO_CREDENTIALS, "TooManyRedirects", "NonHttpUrlRedirectClientError")
_TEMPORARY_STATUSES = (408, 425, 429)  # of those from 400 to 499
# s3fs raises EINVAL if a file does not have the requested range; ENOSPC and EROFS come from disks.
_PERMANENT_NUMBERS = (errno.EINVAL, errno.ENOSPC, errno.EROFS)
_ADDRESS = "For your own store set its address, for S3 AWS_ENDPOINT_URL"


def is_url(path: object) -> bool:
    """Return True for a URL, e.g. s3://bucket/folder, and False for a local path.

    Raises a UsageError for a URL that pathlib has changed.
    """
    if isinstance(path, os.PathLike) and was_url(path):
        raise UsageError(
            f"{path!r} was a URL that pathlib reduced to one slash; pass the URL as a string"
        )
    return isinstance(path, str) and _URL.match(path) is not None


def was_url(path: str | os.PathLike[str]) -> bool:
    """Return True for a URL that pathlib has changed."""
    return _LOST_SLASH.match(os.fspath(path)) is not None and not os.path.exists(path)


def host_of(url: str) -> str:
    """Beginning of a URL, up to its host or bucket: "s3://bucket"."""
    return "/".join(url.split("/", 3)[:3])


def check_local(path: str, **arguments: Any) -> None:
    """Raise a UsageError if an argument for URLs is not None with a local path."""
    for name, value in arguments.items():
        if value is not None:
            raise UsageError(
                f"is only for URLs such as s3://bucket/train, but {path!r} is a local path; "
                "remove it",
                argument=name,
            )


def request_options(options: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """Number of requests a process sends at a time, and the other options."""
    others = dict(options or {})
    requests = others.pop("batch_size", _REQUESTS)
    if not isinstance(requests, int) or isinstance(requests, bool) or requests < 1:
        raise UsageError(
            '"batch_size" in storage_options (requests at a time) must be a whole number above 0, '
            f"got {requests!r}"
        )
    return requests, others


class Filesystem:
    """Files below a URL. Its text is the URL without user and password.

    `requests` is the maximum number of concurrent requests. If it is above 0, responses are checked
    and fsspec's own retries are disabled: only `retry` repeats a failed request. If it is 0, whole
    files are read and written, each in several requests, and fsspec's own retries stay enabled. A
    UsageError if the URL or an option is invalid, or a package is missing.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, *, requests: int = 0
    ) -> None:
        self.url = url.rstrip("/")
        self.options, self._requests = dict(options or {}), requests
        self._host = host_of(self.url)
        self._unreachable_until = 0.0
        self.opened()

    def __str__(self) -> str:
        return hide_secrets(self.url)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unreachable_until": 0.0}

    @property
    def _key(self) -> tuple[str, str, int]:
        return self._host, repr(self.options), self._requests

    def opened(self) -> tuple[Any, str]:
        """Filesystem of this process, and the path of the URL in it."""
        try:
            filesystem, _ = _opened.get(self._key) or (None, None)
            if filesystem is None:
                filesystem = self._open()
                _opened[self._key] = filesystem, self.options
            return filesystem, filesystem._strip_protocol(self.url).rstrip("/")
        except ImportError as error:
            raise UsageError(
                f"'{self}' needs a package that is not installed ({error})",
                hint='for http and s3: pip install "feedline[remote]"; for other protocols the one '
                "that fsspec names",
            ) from error
        except Exception as error:
            raise UsageError(
                f"'{self}' cannot be opened by fsspec: {type(error).__name__}: {error}",
                hint="check the protocol, and that storage_options are those of its filesystem",
            ) from error

    def _open(self) -> Any:
        from fsspec.core import url_to_fs

        if self._requests:
            protocol = self.url.partition("://")[0]
            options = _checked_options(protocol, self.options, self._requests)
        else:
            options = {**self.options, "use_listings_cache": False}  # others write there, too
        filesystem, _ = url_to_fs(self._host, skip_instance_cache=True, **options)
        if self._requests and hasattr(filesystem, "retries"):  # of s3fs
            filesystem.retries = 1
            filesystem.connect()  # raises for unknown options
        _alive[id(filesystem)] = filesystem
        return filesystem

    def close(self) -> None:
        """Close the connections; the next request makes others, with the current environment."""
        _opened.pop(self._key, None)

    @property
    def is_unreachable(self) -> bool:
        """True if the server did not respond recently."""
        return time.monotonic() < self._unreachable_until

    def retry(
        self,
        once: Callable[[], Result],
        failure: str,
        *,
        patience_s: float,
        reraise: tuple[type[Exception], ...] = (),
    ) -> Result:
        """Call a function, with retries after growing pauses, while that may help.

        A retry starts at most `patience_s` seconds after the first try, e.g. `IMAGE_PATIENCE_S`.
        If the server was recently unreachable, there is one try only. Exceptions of the types
        `reraise` are raised unchanged; otherwise a RemoteError has the `failure`, such as
        "'s3://bucket/file' cannot be read", the last error, and the fix.
        """
        started, pause_s, tries = time.monotonic(), _FIRST_PAUSE_S, 0
        if was_unreachable := self.is_unreachable:
            patience_s = 0.0
        while True:
            tries += 1
            try:
                result = once()
                self._unreachable_until = 0.0
                return result
            except reraise:
                raise
            except Exception as error:  # each filesystem has exceptions of its own
                last = error
            spent_s = time.monotonic() - started
            if (
                _is_permanent(last)
                or spent_s + pause_s > patience_s
                or (isinstance(last, AlteredError) and tries >= _MAX_ALTERED)
            ):
                break
            # By process, so that workers whose requests failed together retry at different times.
            time.sleep(pause_s * (1 + os.getpid() % 8 / 8))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        if not was_unreachable and not isinstance(
            last, (FileNotFoundError, IsADirectoryError, RangeError)
        ):
            self.close()  # the next request connects again, with the current environment variables
        if not _is_permanent(last):
            # Otherwise each of the next would take as long to fail.
            self._unreachable_until = time.monotonic() + _UNREACHABLE_S
        often = "" if tries == 1 else f" (tried {tries} times in {spent_s:.0f} s)"
        raised = RemoteError(f"{failure}{often}: {type(last).__name__}: {last}. {_advice(last)}")
        raised.is_missing_file = isinstance(last, (FileNotFoundError, AlteredError, RangeError))
        raise raised from last


def _is_permanent(error: BaseException) -> bool:
    """Return True if retrying is useless. Unknown errors may be temporary."""
    status = getattr(error, "status", None)  # of aiohttp
    # If the error has a cause, the response was not valid HTTP, and its status means nothing.
    if isinstance(status, int) and status and error.__cause__ is None:
        return status == 501 or (400 <= status < 500 and status not in _TEMPORARY_STATUSES)
    if isinstance(error, _PERMANENT) or type(error).__name__ in _PERMANENT_NAMES:
        return True
    return isinstance(error, OSError) and error.errno in _PERMANENT_NUMBERS


def _advice(error: BaseException) -> str:
    """Likely cause and fix, a sentence."""
    status = getattr(error, "status", 0)  # of aiohttp
    if isinstance(error, AlteredError):
        return (
            "It was replaced, or its cache rebuilt there after the dataset was created, or it is "
            "damaged: create the dataset again; `feedline cache repair URL` repairs a cache"
        )
    if isinstance(error, RangeError):
        return (
            "The server must report file sizes and, for caches, support HTTP's Range: nginx, "
            "Apache and object stores do, `python -m http.server` does not"
        )
    if isinstance(error, FileNotFoundError) or status == 404:
        return (
            "The URL is misspelt, or something was moved, removed or copied incompletely: the "
            "folder of a cache must contain everything that `feedline cache build` made. "
            f"{_ADDRESS}"
        )
    if status == 416 or getattr(error, "errno", 0) == errno.EINVAL:
        return "The file may be empty"
    if type(error).__name__ in _NO_CREDENTIALS:
        return (
            "Provide credentials in the service's own way, e.g. AWS_PROFILE or AWS_ACCESS_KEY_ID, "
            'or, for reading, in storage_options; for a public bucket storage_options={"anon": '
            "True}"
        )
    if isinstance(error, PermissionError) or status in (401, 403):
        return (
            "The credentials do not allow it, or it does not exist: check them, or the folder's "
            'permissions; read a public S3 bucket with storage_options={"anon": True}. '
            f"{_ADDRESS}"
        )
    if _is_permanent(error):
        return "Check the URL, and whether the target supports this, is full or read-only"
    return (
        "The server may be down or overloaded, or the network interrupted. When it responds again, "
        f"continue a training from its last checkpoint, a build with the same command. {_ADDRESS}"
    )


def _checked_options(protocol: str, options: Mapping[str, Any], requests: int) -> dict[str, Any]:
    """Arguments of a filesystem: those of the user, and defaults for the rest."""
    merged = dict(options)
    if protocol in ("http", "https"):
        merged["client_kwargs"] = _http_client(merged.get("client_kwargs") or {})
    elif protocol in _S3:
        # The caller repeats what failed; to do so here as well would multiply the time it takes.
        defaults = {
            "connect_timeout": _CONNECT_S,
            "read_timeout": _SILENCE_S,
            "max_pool_connections": requests,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        }
        merged["config_kwargs"] = {**defaults, **(merged.get("config_kwargs") or {})}
    return merged


def _http_client(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an aiohttp session that checks responses."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_check_http)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    return {
        "timeout": timeout,
        **arguments,
        "auto_decompress": False,
        "headers": {"Accept-Encoding": "identity", **(arguments.get("headers") or {})},
        "trace_configs": [*(arguments.get("trace_configs") or ()), trace],
    }


async def _check_http(session: Any, context: Any, parameters: Any) -> None:
    response = parameters.response
    requested = response.request_info.headers.get("Range")
    try:
        if response.status == 404:
            raise FileNotFoundError(str(response.url))
        response.raise_for_status()
        if requested is not None:
            place = response.headers.get("Content-Range")
            _check_range(requested, response.status, response.content_length, place)
    except BaseException:
        response.close()
        raise


def _check_range(requested: str, status: int, length: int | None, place: str | None) -> None:
    """Raise a RangeError if the head of a response does not match its request's Range."""
    whole = requested == _WHOLE
    if status != 206 and not (whole and status == 200):
        size = "of unknown length" if length is None else f"of {length} bytes"
        raise RangeError(f"the server responds with status {status} and a body {size}")
    if length is None:
        raise RangeError("the server does not declare the length of the part")
    if whole:
        if length > MAX_FILE_BYTES:
            raise RangeError(
                f"the server sends {length} bytes, above the limit of {MAX_FILE_BYTES}"
            )
        if status == 206 and (place or "").replace(" ", "") != f"bytes0-{length - 1}/{length}":
            raise RangeError(f"requested a whole file, but the server sends {place}")
    limits = re.fullmatch(r"bytes=(\d+)-(\d+)", requested)
    if limits and length > int(limits[2]) - int(limits[1]) + 1:
        raise RangeError(f"requested {requested}, but the server sends {length} bytes")
