"""Location of a cache from a user's path or URL, and the cache itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from feedline.errors import UsageError
from feedline.remote.filesystem import is_url
from feedline.remote.location import RemoteLocation
from feedline.sources.cache_location import CacheLocation, FolderLocation
from feedline.sources.cache_store import CacheStore

__all__ = ["check_local", "location_of", "open_cache", "was_url"]

# What pathlib makes of a URL.
_LOST_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")


def location_of(
    root: str | os.PathLike[str],
    *,
    local_dir: str | os.PathLike[str] | None = None,
    local_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    keep: bool = True,
) -> CacheLocation:
    """Location of a cache.

    Args:
        root: a local folder, or a URL.
        local_dir, local_bytes, storage_options, keep: for a URL; see `RemoteLocation`.

    Raises:
        UsageError: an argument is invalid.
    """
    if isinstance(root, str) and is_url(root):
        return RemoteLocation(
            root, storage_options, local_dir=local_dir, local_bytes=local_bytes, keep=keep
        )
    path = os.fspath(root)
    check_local(path, local_dir=local_dir, local_bytes=local_bytes, storage_options=storage_options)
    if not isinstance(root, str) and was_url(root):
        raise UsageError(
            f"{root!r} was a URL that pathlib reduced to one slash; pass the URL as a string"
        )
    return FolderLocation(os.path.abspath(os.path.expanduser(path)))


def check_local(path: str, **given: Any) -> None:
    """Check that no argument for URLs is given with a local path.

    Args:
        path: local path.
        given: arguments by name; None if not given.

    Raises:
        UsageError: one is given.
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} is only for URLs such as s3://bucket/train, but {path!r} is a local path; "
                "remove it"
            )


def was_url(path: str | os.PathLike[str]) -> bool:
    """Return True for a URL that pathlib has changed."""
    return _LOST_SLASH.match(os.fspath(path)) is not None and not os.path.exists(path)


def open_cache(root: str | os.PathLike[str]) -> CacheStore:
    """Open the cache in a folder or at a URL; raises like `location_of` and `CacheStore`."""
    return CacheStore(location_of(root))
