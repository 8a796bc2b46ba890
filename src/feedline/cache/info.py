"""Contents of a cache, and its reading rates.

Guarantees: nothing is changed; without a measurement, no image is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from feedline.cache.rates import loader_rate
from feedline.images.folder import ImageFolder
from feedline.sources.cache_formats import cache_format
from feedline.sources.manifest import Level, Manifest, load_entries
from feedline.sources.remote_cache import open_location
from feedline.system import usable_cores

__all__ = ["CacheInfo", "LevelInfo", "cache_info", "measured_crop_px"]

_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class LevelInfo:
    """One resolution of a cache: total size of its files, mean size of an image, and the images/s
    of random crops of a size in pixels on all cores; None if not measured.
    """

    level: Level
    bytes: int
    image_bytes: float
    crop_px: int
    images_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class CacheInfo:
    """Contents of a cache: its resolutions, smallest first."""

    root: str
    manifest: Manifest
    levels: tuple[LevelInfo, ...]


def cache_info(root: str | os.PathLike[str], *, measure: bool = True) -> CacheInfo:
    """Describe a cache. A measurement reads random crops of each resolution for about two seconds,
    on all usable cores.
    """
    location = open_location(root)
    manifest, where = location.manifest(), str(location)
    index_folder = location.index(manifest).root
    levels = []
    smaller = 0
    for level in manifest.levels:
        lengths = load_entries(index_folder, level, manifest.samples)[:, 2]
        crop_px = measured_crop_px(level.side, smaller)
        smaller = level.side
        rate = None
        if measure and manifest.samples:
            images = ImageFolder(root, exif=manifest.exif)
            rate = loader_rate(images, crop_px, workers=usable_cores(), seconds=_SECONDS)
        levels.append(
            LevelInfo(
                level=level,
                bytes=cache_format(manifest.format).disk_bytes(where, level),
                image_bytes=float(lengths.mean()) if len(lengths) else 0.0,
                crop_px=crop_px,
                images_per_s=rate,
            )
        )
    return CacheInfo(root=where, manifest=manifest, levels=tuple(levels))


def measured_crop_px(side: int, smaller: int) -> int:
    """Return the crop size, in pixels, at which a resolution is measured.

    7/8 of its side, rounded down to a multiple of 16. If the next smaller resolution (`smaller`, 0
    for none) serves that size, the side itself.
    """
    size = max(8, side * 7 // 8 // 16 * 16)
    return size if size > smaller else side
