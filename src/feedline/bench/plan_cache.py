"""Which levels a cache should have for a schedule: measured on a few hundred images, and advised.

Guarantees: nothing but a temporary folder is written, which is gone afterwards; when it returns or
breaks off, none of its processes is left.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from feedline.bench.level_rates import (
    ROUNDS,
    Reading,
    measure_differences,
    measure_rates,
)
from feedline.bench.making import Making, make_copies
from feedline.bench.plan_arguments import asked_sides, check_numbers, wanted_sides
from feedline.bench.planned_cache import CachePlan
from feedline.bench.run import Report
from feedline.bench.small_cache import Silent, room_for, small_cache, with_reading
from feedline.cache.advice import advise
from feedline.cache.candidates import level_sets, serving
from feedline.cache.choice import Limits, Measured, choices, predict
from feedline.cache.open_source import open_source
from feedline.cache.source import Source
from feedline.images.crops import Transform, checked_transform
from feedline.images.folder import ImageFolder
from feedline.loader.checks import worker_count
from feedline.plan.schedule import Phase, Schedule
from feedline.stores.cache_layout import Level
from feedline.system import cacheable_memory_bytes

__all__ = ["DISK_BYTES_PER_S", "plan_cache"]

DISK_BYTES_PER_S = 500e6
"""What a SATA SSD gives: taken for a disk of which nothing is said."""

_QUALITIES: tuple[int | None, ...] = (95, 90, None)
_FREE = 0.9  # of the disk, that a cache may take
_FEW_SHRINK = 0.05


def plan_cache(
    source: Any,
    schedule: str | Schedule | Phase | Iterable[Phase],
    *,
    disk_bytes: float | None = None,
    disk_bytes_per_s: float = DISK_BYTES_PER_S,
    sizes: Collection[int] | None = None,
    transform: Transform | None = None,
    workers: int | str = "auto",
    images: int = 300,
    seconds: float = 30.0,
    report: Report | None = None,
) -> CachePlan:
    """Measure which levels would serve a schedule, and how well; nothing is built.

    A few hundred images are read, and copies of them made and read, as a build and a loader would.

    Args:
        source: what `build_cache` takes: a path, or a map-style Dataset of (image, label).
        schedule: the phases of training, each with a size; or as text, "112x10,160x10,224x10".
        disk_bytes: the most that a cache may take; None: nine tenths of what is free on the disk
            of the source.
        disk_bytes_per_s: what the disk gives of what memory does not hold, and takes of a build.
        sizes: the shorter sides of the levels to think of, in pixels; None: of each phase's own
            size, and of the next larger usual one.
        transform: which part of an image is shown; None: `TrainCrop()`.
        workers: processes of the loader and of the build; "auto" for the usable cores; 0: none.
        images: how many are looked at, spread over the source.
        seconds: how long to count images, in all; all else takes about as long again.
        report: is told what is done.

    Returns:
        all choices with their predicted rates, bytes and times, and which one to build.

    Raises:
        DatasetError: there is no source, or not one of its images can be read.
        ResourceError: there is no room for the copies of a few hundred images.
        UsageError: an argument cannot be used; the source is a cache itself.

    Example:
        >>> plan = feedline.plan_cache("train/", "112x10,160x10,224x10")          # doctest: +SKIP
        >>> print(plan.advice.why, plan.command)                                  # doctest: +SKIP
    """
    told = report or Silent()
    phases, crop = Schedule.of(schedule), checked_transform(transform)
    wanted = wanted_sides(phases, crop)
    sides = asked_sides(sizes, wanted)
    check_numbers(images, disk_bytes, disk_bytes_per_s, seconds)
    processes = worker_count(workers)
    told.begin("listing the images", 1)
    opened = open_source(source)
    limits = Limits(
        disk_bytes=_free(opened) if disk_bytes is None else disk_bytes,
        memory_bytes=cacheable_memory_bytes(),
        disk_bytes_per_s=disk_bytes_per_s,
    )
    with ExitStack() as stack:
        root = room_for(stack, min(images, len(opened)), sides)
        levels = [level for quality in _QUALITIES for level in _levels(sides, quality)]
        numbers = opened.some(images)
        told.begin("making copies", len(numbers))
        originals = root / "originals" / "images"
        originals.mkdir(parents=True)
        making = make_copies(
            opened, numbers, levels, originals, workers=processes, advance=told.advance
        )
        if sizes is None:
            sides = _that_shrink(sides, wanted, making)
        folders: dict[Level | None, ImageFolder] = {None: ImageFolder(originals.parent, crop)}
        told.begin("writing copies", len(_QUALITIES) * len(making.looks))
        for done, quality in enumerate(_QUALITIES):
            told.advance(done * len(making.looks))
            folders |= small_cache(originals.parent, root, sides, quality, crop, processes)
        readings = _readings(wanted, sides)
        told.begin("comparing pixels", 1)
        differences = measure_differences(folders, readings)
        told.begin("measuring", ROUNDS * len(readings))
        rates = measure_rates(
            folders, readings, workers=processes, seconds=seconds, advance=told.advance
        )
    measured = Measured(
        images=len(opened),
        schedule=phases,
        wanted=wanted,
        original_bytes=making.original_bytes,
        open_s=making.open_s,
        processes=making.processes,
        levels={level: cost for level, cost in making.costs().items() if level in folders},
        rates=with_reading(rates, making),
        differences=differences,
    )
    found = choices(measured, limits)
    without = predict(measured, limits, ())
    return CachePlan(
        source=opened.where,
        kind=opened.kind,
        transform=repr(crop),
        workers=processes,
        auto=workers == "auto",
        measured=measured,
        limits=limits,
        looked_at=len(making.looks),
        median_px=making.median_px,
        small=sum(min(each.height, each.width) < max(wanted) for each in making.looks),
        skipped=making.skipped,
        originals=without,
        choices=tuple(found),
        advice=advise(measured, limits, without, found),
    )


def _free(source: Source) -> float:
    """What a cache beside the source may take."""
    place = Path(source.where)
    while not place.exists():  # a pattern, or what a Dataset is called
        place = place.parent
    return _FREE * shutil.disk_usage(place).free


def _levels(sides: Collection[int], quality: int | None) -> list[Level]:
    return [Level(side=side, quality=quality) for side in sides]


def _that_shrink(sides: tuple[int, ...], wanted: dict[int, int], making: Making) -> tuple[int, ...]:
    """Without the sides that hardly an original exceeds, as copies would be the originals."""
    kept = [side for side in sides if making.larger_than(side) > _FEW_SHRINK]
    if serving(kept, max(wanted.values())) is None:
        kept.append(min(side for side in sides if side >= max(wanted.values())))
    return tuple(kept)


def _readings(wanted: dict[int, int], sides: Collection[int]) -> list[Reading]:
    """What some choice reads: the originals, and each level at the sizes it may serve."""
    pairs = {
        (size, serving(chosen, side))
        for chosen in level_sets(sorted(sides), wanted.values())
        for size, side in wanted.items()
    }
    found: list[Reading] = [(size, None) for size in wanted]
    for quality in _QUALITIES:
        found += [(size, Level(side=side, quality=quality)) for size, side in sorted(pairs)]  # type: ignore[arg-type]
    return found
