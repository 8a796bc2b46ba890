"""Whether a folder can become a cache."""

from __future__ import annotations

import os

from feedline.errors import UsageError
from feedline.stores.cache_layout import LOCK, is_cache

__all__ = ["check_place"]


def check_place(root: str, source: str | None) -> None:
    """See whether a folder can be the cache of a source. Changes nothing.

    Args:
        root: the absolute path of the folder, which need not be there.
        source: that of what the cache is to be made of; None: it has none.

    Raises:
        UsageError: the folder holds something else, or lies in the source.
    """
    if source is not None and _below(root, source):
        raise UsageError(
            f"the cache {root!r} would lie in its source {source!r} and become a part of it; "
            "name a folder elsewhere"
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"the cache {root!r} would be a folder, and there is a file; name another")
    # A build that was refused or stopped before it did anything leaves its lock.
    if os.path.isdir(root) and set(os.listdir(root)) - {LOCK} and not is_cache(root):
        raise UsageError(
            f"{root!r} is not empty, and it is no cache of feedline's; name a new folder, or empty "
            "this one"
        )


def _below(path: str, folder: str) -> bool:
    """Whether a path is that of a folder or of what lies in it, by whichever links."""
    inner, outer = (os.path.join(os.path.realpath(each), "") for each in (path, folder))
    return inner.startswith(outer)
