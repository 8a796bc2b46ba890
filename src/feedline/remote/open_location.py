"""From what a user calls a cache to where it lies, and to the cache."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from feedline.errors import UsageError
from feedline.remote.filesystem import is_url
from feedline.remote.location import RemoteLocation
from feedline.stores.cache_location import CacheLocation, FolderLocation
from feedline.stores.cache_store import CacheStore

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
    """Where a cache lies.

    Args:
        root: a folder of this machine, or a URL.
        local_dir, local_bytes, storage_options, keep: of a URL; see `RemoteLocation`.

    Raises:
        UsageError: an argument cannot be used.
    """
    if isinstance(root, str) and is_url(root):
        return RemoteLocation(
            root, storage_options, local_dir=local_dir, local_bytes=local_bytes, keep=keep
        )
    path = os.fspath(root)
    check_local(path, local_dir=local_dir, local_bytes=local_bytes, storage_options=storage_options)
    if not isinstance(root, str) and was_url(root):
        raise UsageError(
            f"{root!r} was a URL, of which pathlib keeps one slash; pass the URL as a string"
        )
    return FolderLocation(os.path.abspath(os.path.expanduser(path)))


def check_local(path: str, **given: Any) -> None:
    """See whether nothing was said that is of URLs alone.

    Args:
        path: of this machine, which was named.
        given: arguments by their names; None where they were left out.

    Raises:
        UsageError: something was.
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} is of what lies at a URL, such as s3://bucket/train, and {path!r} is a "
                "path of this machine; leave it out"
            )


def was_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is what pathlib makes of a URL."""
    return _LOST_SLASH.match(os.fspath(path)) is not None and not os.path.exists(path)


def open_cache(root: str | os.PathLike[str]) -> CacheStore:
    """The cache in a folder or at a URL; raises as `location_of` and `CacheStore` do."""
    return CacheStore(location_of(root))
