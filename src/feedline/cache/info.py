"""What a cache holds, and how fast it is read.

Guarantees: nothing is changed; without measuring, no image is read.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.remote.open_location import location_of
from feedline.stores.cache_index import load_entries
from feedline.stores.cache_layout import LMDB_FILE, Level, Manifest
from feedline.system import usable_cores

__all__ = ["CacheInfo", "LevelInfo", "cache_info", "size_measured"]

_BATCH = 64
_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class LevelInfo:
    """What is known of a level.

    Args:
        level: its side and its quality.
        bytes: what it takes on the disk, as large as its files are.
        image_bytes: the mean size of an image.
        crop_px: the side of the random crops that were measured.
        images_per_s: how many of those came in a second from all cores; None: not measured.
    """

    level: Level
    bytes: int
    image_bytes: float
    crop_px: int
    images_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class CacheInfo:
    """What is known of a cache.

    Args:
        root: its folder or URL.
        manifest: what it says of itself.
        levels: smallest first.
    """

    root: str
    manifest: Manifest
    levels: tuple[LevelInfo, ...]


def cache_info(root: str | os.PathLike[str], *, measure: bool = True) -> CacheInfo:
    """What a cache holds.

    Args:
        root: its folder or URL.
        measure: read random crops of each level for about two seconds, on all usable cores.

    Raises:
        DatasetError: there is no cache, or its index is damaged.
        ImageError: an image that was read to measure is damaged; names it.
    """
    location = location_of(root)
    manifest, where = location.manifest(), str(location)
    index_folder = location.index(manifest).root
    levels = []
    smaller = 0
    for level in manifest.levels:
        lengths = load_entries(index_folder, level, manifest.samples)[:, 2]
        crop_px = size_measured(level.side, smaller)
        smaller = level.side
        levels.append(
            LevelInfo(
                level=level,
                bytes=_bytes_on_disk(where, manifest, level),
                image_bytes=float(lengths.mean()) if len(lengths) else 0.0,
                crop_px=crop_px,
                images_per_s=_images_per_s(root, manifest, crop_px) if measure else None,
            )
        )
    return CacheInfo(root=where, manifest=manifest, levels=tuple(levels))


def size_measured(side: int, smaller: int) -> int:
    """The side of random crops that a level serves, in pixels: 7/8 of its own, in 16ths.

    Args:
        side: of the level.
        smaller: of the level before it, which would serve what is not larger; 0 for none.
    """
    size = max(8, side * 7 // 8 // 16 * 16)
    return size if size > smaller else side


def _bytes_on_disk(root: str, manifest: Manifest, level: Level) -> int:
    if manifest.format != "lmdb":
        return level.bytes
    # A level knows what went into its LMDB, which takes pages around it.
    try:
        return os.path.getsize(os.path.join(root, level.name, LMDB_FILE))
    except OSError:
        return 0


def _images_per_s(root: str | os.PathLike[str], manifest: Manifest, crop_px: int) -> float | None:
    """How many random crops come in a second; None where there are no images."""
    if not manifest.samples:
        return None
    loader: DataLoader[Any] = DataLoader(
        ImageFolder(root, exif=manifest.exif),
        min(_BATCH, manifest.samples),
        image_size=crop_px,
        seed=0,
        num_workers=usable_cores(),
    )
    with loader:
        images, started, passed = 0, 0.0, 0.0
        while passed < _SECONDS:
            for batch, _ in loader:
                if not started:  # the workers have begun
                    started = time.perf_counter()
                    continue
                images += len(batch)
                passed = time.perf_counter() - started
                if passed >= _SECONDS:
                    break
    return images / passed
