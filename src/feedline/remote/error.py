"""Errors of remote files: whether they are permanent, and the advice."""

from __future__ import annotations

import errno

from feedline.errors import DatasetError, UsageError
from feedline.remote.range_guard import RangeIgnored

__all__ = ["Altered", "NoCache", "RemoteError", "image_step", "lasts", "next_step"]

_LASTING = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    RangeIgnored,
    TypeError,
    UsageError,
    ValueError,
)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
_LASTING_NAMES = (*_NO_CREDENTIALS, "TooManyRedirects", "NonHttpUrlRedirectClientError")
_ADDRESS = "For your own store set its address, for S3 AWS_ENDPOINT_URL"
_TRY_AGAIN = (408, 425, 429)  # of the statuses that say that the request was wrong
_EMPTY = 416
_NEVER = 501  # of those that say that the server is
# EINVAL is s3fs's, of no such part; the others are of disks.
_LASTING_NUMBERS = (errno.EINVAL, errno.ENOSPC, errno.EROFS)


class RemoteError(DatasetError):
    """A remote file is unavailable. The message has the file, the reason and the fix."""


class NoCache(DatasetError):
    """There is no cache at a URL."""


class Altered(Exception):
    """Bytes differ from those that were written."""


def lasts(error: BaseException) -> bool:
    """Return True if retrying is useless. Unknown errors may be temporary."""
    status = getattr(error, "status", None)  # of aiohttp
    if isinstance(status, int) and status and error.__cause__ is None:  # else what came is no HTTP
        return status == _NEVER or (400 <= status < 500 and status not in _TRY_AGAIN)
    if isinstance(error, _LASTING) or type(error).__name__ in _LASTING_NAMES:
        return True
    return isinstance(error, OSError) and error.errno in _LASTING_NUMBERS


def image_step(error: BaseException) -> str:
    """Likely cause and fix for an image that could not be fetched, a sentence."""
    if isinstance(error, Altered):
        return (
            "It was replaced there after the folder was listed, or its server sends only a part: "
            "create the dataset again"
        )
    if isinstance(error, RangeIgnored):
        return "Check that this is the URL of an image, and that its server reports file sizes"
    if isinstance(error, FileNotFoundError) or getattr(error, "status", 0) == 404:
        return f"The URL is misspelt, or the image was moved or removed. {_ADDRESS}"
    if getattr(error, "status", 0) == _EMPTY or getattr(error, "errno", 0) == errno.EINVAL:
        return "The file may be empty"
    return next_step(error)


def next_step(error: BaseException) -> str:
    """Likely cause and fix, a sentence."""
    if isinstance(error, Altered):
        return (
            "Its files are damaged, or the cache was rebuilt there after the dataset was created: "
            "run `feedline cache repair URL`, then create the dataset again"
        )
    if isinstance(error, RangeIgnored):
        return (
            "Caches are read in parts (HTTP's Range), which this server does not support: serve "
            "the folder with nginx, Apache or an object store; `python -m http.server` cannot do it"
        )
    if isinstance(error, FileNotFoundError) or getattr(error, "status", 0) == 404:
        return (
            "The URL is misspelt, something was moved, or the cache was copied incompletely: its "
            f"folder must contain everything that `feedline cache build` made. {_ADDRESS}"
        )
    if type(error).__name__ in _NO_CREDENTIALS:
        return (
            "Provide credentials in the service's own way, e.g. AWS_PROFILE or AWS_ACCESS_KEY_ID, "
            'or, for reading, in storage_options; for a public bucket storage_options={"anon": '
            "True}"
        )
    if isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403):
        return (
            "The credentials do not allow it, or it does not exist: check them, or the folder's "
            'permissions; read a public S3 bucket with storage_options={"anon": True}. '
            f"{_ADDRESS}"
        )
    if isinstance(error, UsageError):
        return "See the message above"
    if lasts(error):
        return "Check the URL, and whether the target supports this, is full or read-only"
    return (
        "The server may be down or overloaded, or the network interrupted. When it responds again, "
        f"continue a training from its last checkpoint, a build with the same command. {_ADDRESS}"
    )
