"""How fast a loader makes rows of the levels of caches, and how far these are from the originals.

Guarantees: a loader with workers of its own makes the rows, as in training; all are measured in
turn, several times over, and the median counts; no level comes out faster than a smaller one of its
quality. Relies on: images that lie in memory by then.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import TypeAlias

import numpy as np

from feedline.bench.ours import Ours
from feedline.bench.sample import Sample
from feedline.bench.settings import Settings
from feedline.images.folder import ImageFolder
from feedline.plan.row import Item
from feedline.plan.seeds import mix
from feedline.stores.cache_layout import Level
from feedline.stores.cache_store import CacheStore

__all__ = ["ROUNDS", "Reading", "level_of", "measure_differences", "measure_rates", "without_rises"]

Reading: TypeAlias = "tuple[int, Level | None]"
"""The size of the rows in pixels, and what they are made of; None: of the originals."""

ROUNDS = 3

_LEAST_TURN_S = 0.15
_LEAST_BATCH, _MOST_BATCH, _BATCH_PIXELS = 8, 64, 1 << 24
_COMPARED = 64
_COMPARE_S = 5.0


def level_of(folder: ImageFolder, side: int) -> ImageFolder:
    """A cache that reads one of its levels whatever the size of the rows is."""
    assert isinstance(folder.store, CacheStore), "levels are of caches"
    one, store = copy.copy(folder), copy.copy(folder.store)
    levels = tuple(level for level in store.manifest.levels if level.side == side)
    store.manifest = replace(store.manifest, levels=levels)
    one.store = store
    return one


def measure_rates(
    folders: Mapping[Level | None, ImageFolder],
    readings: Sequence[Reading],
    *,
    workers: int,
    seconds: float,
    advance: Callable[[int, str], None],
) -> dict[Reading, float]:
    """Images/s of a loader for each reading.

    Args:
        folders: the images of each level, and the originals.
        readings: which sizes of rows of which of them.
        workers: processes; 0 for this one.
        seconds: how long to count images, in all; starting the loaders comes on top.
        advance: called with the number of turns that are over, and what is measured next.
    """
    turn_s = max(_LEAST_TURN_S, seconds / (ROUNDS * len(readings)))
    found: dict[Reading, list[float]] = {reading: [] for reading in readings}
    over = 0
    # A loader that rests keeps the fork server alive, which all others then share.
    with _loader(folders, readings[0], workers):
        for number in range(ROUNDS):
            for reading in readings:
                size, level = reading
                what = f"{size} px of {level or 'the originals'}"
                advance(over, f"round {number + 1} of {ROUNDS}: {what}")
                over += 1
                with _loader(folders, reading, workers) as loader:
                    found[reading].append(loader.turn(turn_s).images_per_s)
    return without_rises({reading: median(rates) for reading, rates in found.items()})


def without_rises(rates: Mapping[Reading, float]) -> dict[Reading, float]:
    """Rates in which no level is faster than a smaller one of its quality, at one size of rows.

    There is more to read and to decode of it, so what was measured otherwise is noise: neighbours
    that rise are replaced by their mean (the pool-adjacent-violators algorithm).
    """
    series: dict[tuple[int, int | None], list[Level]] = {}
    for size, level in rates:
        if level is not None:
            series.setdefault((size, level.quality), []).append(level)
    found = dict(rates)
    for (size, _), levels in series.items():
        levels.sort(key=lambda level: level.side)
        pools: list[list[float]] = []
        for level in levels:
            pools.append([rates[size, level]])
            while len(pools) > 1 and mean(pools[-1]) > mean(pools[-2]):
                last = pools.pop()
                pools[-1] += last
        even = [mean(pool) for pool in pools for _ in pool]
        found |= {(size, level): rate for level, rate in zip(levels, even, strict=True)}
    return found


def _loader(folders: Mapping[Level | None, ImageFolder], reading: Reading, workers: int) -> Ours:
    size, level = reading
    folder = folders[level]
    settings = Settings(
        folder=Path(folder.root),
        size_px=size,
        batch_size=max(_LEAST_BATCH, min(_MOST_BATCH, _BATCH_PIXELS // size**2)),
        workers=workers,
    )
    return Ours("", Sample(folder, range(len(folder))), settings, workers)


def measure_differences(
    folders: Mapping[Level | None, ImageFolder], readings: Sequence[Reading]
) -> dict[tuple[int, Level], float]:
    """How far rows of a level are from those of the originals, with the same random crops.

    Returns:
        for each reading of a level the mean of the pixels' absolute differences, in grey levels.
    """
    found: dict[tuple[int, Level], list[float]] = {
        (size, level): [] for size, level in readings if level is not None
    }
    until = time.monotonic() + _COMPARE_S
    for sample in range(min(_COMPARED, len(folders[None]))):
        originals = {size: _row(folders[None], sample, size) for size, _ in readings}
        for (size, level), differences in found.items():
            away = np.abs(_row(folders[level], sample, size) - originals[size])
            differences.append(float(away.mean()))
        if time.monotonic() > until:
            break
    return {reading: mean(differences) for reading, differences in found.items()}


def _row(
    folder: ImageFolder, sample: int, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    pixels, label = np.zeros((size, size, 3), np.uint8), np.zeros((), np.int64)
    folder.load(Item(sample, size, mix(sample), 1.0), (pixels, label))
    return pixels.astype(np.int16)
