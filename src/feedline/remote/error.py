"""What goes wrong with files on another machine: whether it lasts, and what to do about it."""

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
_ADDRESS = "For a store of your own set its address, for S3 AWS_ENDPOINT_URL"
_TRY_AGAIN = (408, 425, 429)  # of the statuses that say that the request was wrong
_EMPTY = 416
_NEVER = 501  # of those that say that the server is
# EINVAL is s3fs's, of no such part; the others are of disks.
_LASTING_NUMBERS = (errno.EINVAL, errno.ENOSPC, errno.EROFS)


class RemoteError(DatasetError):
    """Something cannot be had from another machine. The message says what, why, and what to do."""


class NoCache(DatasetError):
    """There is no cache at a URL."""


class Altered(Exception):
    """Bytes are not those that were written."""


def lasts(error: BaseException) -> bool:
    """Whether it is of no use to try again. What is not known may pass."""
    status = getattr(error, "status", None)  # of aiohttp
    if isinstance(status, int) and status and error.__cause__ is None:  # else what came is no HTTP
        return status == _NEVER or (400 <= status < 500 and status not in _TRY_AGAIN)
    if isinstance(error, _LASTING) or type(error).__name__ in _LASTING_NAMES:
        return True
    return isinstance(error, OSError) and error.errno in _LASTING_NUMBERS


def image_step(error: BaseException) -> str:
    """The likely cause and what to do where an image was to be fetched whole, a sentence."""
    if isinstance(error, Altered):
        return (
            "It was replaced there since the folder was listed, or its server sends only a part: "
            "make the dataset once more"
        )
    if isinstance(error, RangeIgnored):
        return "Is this the URL of an image, and does its server say how long files are?"
    if isinstance(error, FileNotFoundError) or getattr(error, "status", 0) == 404:
        return f"A misspelt URL, or an image that was moved or removed. {_ADDRESS}"
    if getattr(error, "status", 0) == _EMPTY or getattr(error, "errno", 0) == errno.EINVAL:
        return "Is its file empty?"
    return next_step(error)


def next_step(error: BaseException) -> str:
    """The likely cause and what to do, a sentence."""
    if isinstance(error, Altered):
        return (
            "The cache there was built anew since the dataset was made, or its files are damaged: "
            "make the dataset once more; `feedline cache verify URL` lists what is damaged"
        )
    if isinstance(error, RangeIgnored):
        return (
            "Caches are read in parts (HTTP's Range), which this server does not give: serve the "
            "folder with nginx, Apache or an object store; `python -m http.server` cannot do it"
        )
    if isinstance(error, FileNotFoundError) or getattr(error, "status", 0) == 404:
        return (
            "A misspelt URL, something that was moved, or a cache that was not copied whole: its "
            f"folder must hold all that `feedline cache build` made. {_ADDRESS}"
        )
    if type(error).__name__ in _NO_CREDENTIALS:
        return (
            "Give credentials as the service wants them, such as AWS_PROFILE or AWS_ACCESS_KEY_ID, "
            "or of what is read in storage_options; for a public bucket "
            'storage_options={"anon": True}'
        )
    if isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403):
        return (
            "The credentials that are used do not allow it, or it does not exist: check them, or "
            "the folder's permissions; a public bucket of S3 is read with "
            f'storage_options={{"anon": True}}. {_ADDRESS}'
        )
    if isinstance(error, UsageError):
        return "See there"
    if lasts(error):
        return "Is the URL right, and can what it names do this, or is it full or read only?"
    return (
        "Is the server down or overloaded, or the network broken? When it answers again, go on: a "
        f"training from its last checkpoint, a build with the same command. {_ADDRESS}"
    )
