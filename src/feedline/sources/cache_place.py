"""Check whether a folder can become a cache."""

from __future__ import annotations

import os

from feedline.errors import UsageError
from feedline.sources.cache_layout import LOCK, is_cache

__all__ = ["check_place"]


def check_place(root: str, source: str | None) -> None:
    """Check that a folder can become the cache of a source. Changes nothing.

    Args:
        root: absolute path of the folder, which need not exist.
        source: path of the cache's source; None if there is none.

    Raises:
        UsageError: the folder contains something else, or lies in the source.
    """
    if source is not None and _below(root, source):
        raise UsageError(
            f"the cache {root!r} would lie inside its source {source!r} and become part of it; use "
            "a folder elsewhere"
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"the cache folder {root!r} is an existing file; use another path")
    # A build that was refused or stopped before it did anything leaves its lock.
    if os.path.isdir(root) and set(os.listdir(root)) - {LOCK} and not is_cache(root):
        raise UsageError(
            f"{root!r} is not empty and not a feedline cache; use a new folder, or empty this one"
        )


def _below(path: str, folder: str) -> bool:
    """Return True if a path is a folder or lies in it, through any links."""
    inner, outer = (os.path.join(os.path.realpath(each), "") for each in (path, folder))
    return inner.startswith(outer)
