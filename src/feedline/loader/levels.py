"""Which copies of a cache the rows of a loader are made of."""

from __future__ import annotations

from typing import Any

from feedline.images.crops import wanted_side
from feedline.loader.decide import Decision
from feedline.stores.cache_store import CacheStore
from feedline.stores.cached_files import CachedFiles

__all__ = ["cache_of", "level_read"]


def cache_of(decision: Decision) -> CacheStore | None:
    """The cache that images come from; None for originals."""
    store: Any = getattr(decision.rows or decision.samples, "store", None)
    store = store.cache if isinstance(store, CachedFiles) else store
    return store if isinstance(store, CacheStore) else None


def level_read(decision: Decision, size: int | None) -> tuple[int | None, int | None]:
    """The shorter side at which images are wanted for rows of a size, and that of their copies.

    Both in pixels. The first is None where feedline does not read the images itself, the second
    where these are the originals.
    """
    source: Any = decision.rows or decision.samples
    size = size or getattr(source, "image_size", None)
    if not size or not hasattr(source, "level_at"):
        return None, None
    wanted = wanted_side(source.transform, size)
    cache = cache_of(decision)
    return wanted, None if cache is None else cache.level_for(wanted).side
