"""fsspec filesystems whose responses are checked before their bodies are read.

Guarantees: with HTTP and S3, a body is read only if the server declares a part of a file (206), not
longer than requested; or, if all of a file was requested ("bytes=0-"), that it is all of it, with
its length. Anything else raises an error, so that memory is bounded whatever a server sends.
Nothing is decompressed.

Relies on: aiohttp's tracing and botocore's events, which receive a response's header first. With
other protocols only the length of the received bytes is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

__all__ = ["MOST_BYTES", "RangeIgnored", "guard", "guarded_options"]

CONNECT_S = 10.0
SILENCE_S = 15.0
"""Timeout to connect, and to receive the next bytes."""

MOST_BYTES = 1 << 30
"""Maximum length of a whole file."""

_WHOLE = "bytes=0-"
_HTTP = ("http", "https")
_S3 = ("s3", "s3a")

# Requests are tasks of their own, so each has its own.
_asked_of_s3: ContextVar[str | None] = ContextVar("asked_of_s3", default=None)


class RangeIgnored(Exception):
    """A server sent something else than the requested part of a file."""


def guarded_options(protocol: str, given: Mapping[str, Any], in_flight: int) -> dict[str, Any]:
    """Arguments of a filesystem: those of the user, and defaults for the rest.

    Args:
        protocol: "http", "s3", ...
        given: by the user.
        in_flight: number of requests at a time.
    """
    options = dict(given)
    if protocol in _HTTP:
        options["client_kwargs"] = _http_client(options.get("client_kwargs") or {})
    elif protocol in _S3:
        # Who asks repeats what failed; to do so here as well would multiply the time it takes.
        defaults = {
            "connect_timeout": CONNECT_S,
            "read_timeout": SILENCE_S,
            "max_pool_connections": in_flight,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        }
        options["config_kwargs"] = {**defaults, **(options.get("config_kwargs") or {})}
    return options


def guard(filesystem: Any) -> None:
    """Set what the options of a filesystem cannot."""
    if not set(_S3).intersection(_protocols(filesystem)):
        return
    from fsspec.asyn import sync

    filesystem.retries = 1
    client = sync(filesystem.loop, filesystem.set_session)
    client.meta.events.register("before-call.s3.GetObject", _note_s3)
    client.meta.events.register("before-parse.s3.GetObject", _check_s3)


def _protocols(filesystem: Any) -> tuple[str, ...]:
    named = filesystem.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _http_client(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an aiohttp session."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_check_http)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    return {
        "timeout": timeout,
        **given,
        "auto_decompress": False,
        "headers": {"Accept-Encoding": "identity", **(given.get("headers") or {})},
        "trace_configs": [*(given.get("trace_configs") or ()), trace],
    }


async def _check_http(session: Any, context: Any, answer: Any) -> None:
    response = answer.response
    asked = response.request_info.headers.get("Range")
    try:
        if response.status == 404:
            raise FileNotFoundError(str(response.url))
        response.raise_for_status()
        if asked is not None:
            place = response.headers.get("Content-Range")
            _check(asked, response.status, response.content_length, place)
    except BaseException:
        response.close()
        raise


def _note_s3(params: dict[str, Any], **_: Any) -> None:
    _asked_of_s3.set(params["headers"].get("Range"))


def _check_s3(response_dict: dict[str, Any], **_: Any) -> None:
    status, asked = response_dict["status_code"], _asked_of_s3.get()
    if status >= 300 or asked is None:
        return  # of an error botocore makes an exception
    headers = response_dict["headers"]
    length, place = headers.get("content-length"), headers.get("content-range")
    try:
        _check(asked, status, int(length) if length else None, place)
    except BaseException:
        response_dict["body"].close()
        raise


def _check(asked: str, status: int, length: int | None, place: str | None) -> None:
    """Check the header of a response against the request.

    Args:
        asked: Range of the request.
        status: status of the response.
        length: length of its body in bytes.
        place: its Content-Range.

    Raises:
        RangeIgnored: it does not match.
    """
    whole = asked == _WHOLE
    if status != 206 and not (whole and status == 200):
        size = "of unknown length" if length is None else f"of {length} bytes"
        raise RangeIgnored(f"the server responds with status {status} and a body {size}")
    if length is None:
        raise RangeIgnored("the server does not declare the length of the part")
    if whole:
        if length > MOST_BYTES:
            raise RangeIgnored(f"the server sends {length} bytes, above the limit of {MOST_BYTES}")
        if status == 206 and (place or "").replace(" ", "") != f"bytes0-{length - 1}/{length}":
            raise RangeIgnored(f"requested a whole file, but the server sends {place}")
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
    if wanted and length > int(wanted[2]) - int(wanted[1]) + 1:
        raise RangeIgnored(f"requested {asked}, but the server sends {length} bytes")
