"""Resolution of the cache copies that a loader's rows are made of."""

from __future__ import annotations

from typing import Any

from feedline.loader.decide import Decision
from feedline.loader.settings import Settings
from feedline.stores.cache_store import CacheStore
from feedline.stores.cached_files import cache_within

__all__ = ["cache_of", "copies_in_words", "level_read"]


def cache_of(decision: Decision) -> CacheStore | None:
    """Cache the images come from; None for originals."""
    return cache_within(getattr(decision.rows or decision.samples, "store", None))


def level_read(decision: Decision, size: int | None) -> tuple[int | None, int | None]:
    """Shorter side required for rows of a size, and that of the copies read.

    Both in pixels. The first is None if feedline does not read the images itself, the second
    if these are the originals.
    """
    source: Any = decision.rows or decision.samples
    size = size or getattr(source, "image_size", None)
    if not size or not hasattr(source, "level_at"):
        return None, None
    wanted = source.wanted_side(size)
    cache = cache_of(decision)
    return wanted, None if cache is None else cache.level_for(wanted).side


def copies_in_words(settings: Settings, decision: Decision) -> str:
    """Resolutions of a cache that each phase reads, as text; "" if no cache is read."""
    if decision.to_fill is not None:
        sides = ", ".join(f"{side} px" for side in decision.to_fill.sides)
        return (
            f"none for the first epoch, while the cache {decision.to_fill.root} is filled with "
            f"copies of {sides}"
        )
    source: Any = decision.rows or decision.samples
    level_at = getattr(source, "level_at", None)
    if level_at is None:
        return ""
    sizes = [phase.image_size or source.image_size for phase in settings.asked.phases.phases]
    levels = {size: level_at(size) for size in sizes}
    said = [f"{level} for {size} px" for size, level in levels.items() if level]
    return f"{', '.join(said)} (cache {source.copies_from})" if said else ""
