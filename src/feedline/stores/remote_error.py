"""What goes wrong with files on another machine: whether it lasts, and what to do about it."""

from __future__ import annotations

import errno

from feedline.errors import UsageError
from feedline.stores.range_guard import RangeIgnored

__all__ = ["Altered", "RemoteError", "lasts", "next_step"]

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
_TRY_AGAIN = (408, 425, 429)  # of the statuses that say that the request was wrong


class RemoteError(Exception):
    """Something cannot be had from another machine. The message says what, why, and what to do."""


class Altered(Exception):
    """Bytes are not those that were written."""


def lasts(error: BaseException) -> bool:
    """Whether it is of no use to try again. What is not known may pass."""
    status = getattr(error, "status", None)  # of aiohttp
    if isinstance(status, int) and status:
        return 400 <= status < 500 and status not in _TRY_AGAIN
    if isinstance(error, _LASTING) or type(error).__name__ in _NO_CREDENTIALS:
        return True
    return isinstance(error, OSError) and error.errno == errno.EINVAL  # s3fs, of no such part


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
            "A misspelt URL, a cache that was moved, or one that was not copied whole: its folder "
            "must hold all that `feedline cache build` made"
        )
    if type(error).__name__ in _NO_CREDENTIALS:
        return (
            "Give credentials as the service wants them, such as AWS_PROFILE or AWS_ACCESS_KEY_ID, "
            'or in storage_options; for a public bucket storage_options={"anon": True}'
        )
    if isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403):
        return (
            "The credentials that are used may not read it, or it does not exist: check them, or "
            'the folder\'s permissions; a public bucket of S3 wants storage_options={"anon": True}'
        )
    if isinstance(error, UsageError):
        return "See there"
    return (
        "Is the server down or overloaded, or the network broken? When it answers again, go on "
        "from the last checkpoint"
    )
