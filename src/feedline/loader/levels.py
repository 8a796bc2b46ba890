"""Which copies of a cache the rows of a loader are made of."""

from __future__ import annotations

from typing import Any

from feedline.loader.decide import Decision
from feedline.loader.settings import Settings
from feedline.stores.cache_store import CacheStore
from feedline.stores.cached_files import cache_within

__all__ = ["cache_of", "copies_in_words", "level_read"]


def cache_of(decision: Decision) -> CacheStore | None:
    """The cache that images come from; None for originals."""
    return cache_within(getattr(decision.rows or decision.samples, "store", None))


def level_read(decision: Decision, size: int | None) -> tuple[int | None, int | None]:
    """The shorter side at which images are wanted for rows of a size, and that of their copies.

    Both in pixels. The first is None where feedline does not read the images itself, the second
    where these are the originals.
    """
    source: Any = decision.rows or decision.samples
    size = size or getattr(source, "image_size", None)
    if not size or not hasattr(source, "level_at"):
        return None, None
    wanted = source.wanted_side(size)
    cache = cache_of(decision)
    return wanted, None if cache is None else cache.level_for(wanted).side


def copies_in_words(settings: Settings, decision: Decision) -> str:
    """Which of a cache's levels each phase reads; "" where no cache is read."""
    if decision.to_fill is not None:
        sides = ", ".join(f"{side} px" for side in decision.to_fill.sides)
        return (
            f"none until an epoch is read; meanwhile the cache {decision.to_fill.root} is filled "
            f"with copies of {sides}"
        )
    source: Any = decision.rows or decision.samples
    level_at = getattr(source, "level_at", None)
    if level_at is None:
        return ""
    sizes = [phase.size or source.image_size for phase in settings.asked.phases.phases]
    levels = {size: level_at(size) for size in sizes}
    said = [f"{level} for {size} px" for size, level in levels.items() if level]
    return f"{', '.join(said)} (cache {source.copies_from})" if said else ""
