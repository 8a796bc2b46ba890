"""Recommend the levels of a cache for a schedule, from measurements on a few hundred images.

Guarantees: only a temporary folder is written and it is removed; no process is left when it
returns or fails.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from feedline.bench.copy_timings import CopyTimings, make_copies
from feedline.bench.level_rates import (
    ROUNDS,
    NoProgress,
    Reading,
    include_dataset_time,
    make_scratch_folder,
    measure_differences,
    measure_rates,
    small_cache,
)
from feedline.bench.planned_cache import CachePlan
from feedline.bench.run import ProgressListener
from feedline.cache.advice import advise
from feedline.cache.build_plan import make_levels
from feedline.cache.choice import (
    CacheMeasurement,
    MachineLimits,
    candidate_sides,
    enumerate_choices,
    estimate_choice,
    level_sets,
    serving,
)
from feedline.cache.open_source import open_source
from feedline.cache.source import CacheSource
from feedline.engine.defaults import worker_count
from feedline.errors import UsageError
from feedline.images.crops import Transform, checked_transform, wanted_side
from feedline.images.folder import ImageFolder
from feedline.order.schedule import Phase, Schedule
from feedline.sources.cache_layout import Level
from feedline.system import cacheable_memory_bytes

__all__ = ["DISK_BYTES_PER_S", "plan_cache"]


DISK_BYTES_PER_S = 500e6
"""Read rate of a SATA SSD: the default."""

_QUALITIES: tuple[int | None, ...] = (95, 90, None)
_FREE = 0.9  # share of the free disk space that a cache may use
_FEW_LARGER = 0.05


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
    report: ProgressListener | None = None,
) -> CachePlan:
    """Measure how well which levels of a cache would serve a schedule; builds nothing.

    A few hundred images are read, and copies of them are made and read, as a build and a loader
    would.

    Args:
        source: any source that `build_cache` accepts: a path, or a map-style Dataset of
            (image, label).
        schedule: the phases of training, each with a size; or text, "112x10,160x10,224x10".
        disk_bytes: limit of the cache's bytes; None: nine tenths of the free space on the
            source's disk.
        disk_bytes_per_s: rate at which the disk reads data that memory does not hold, and writes
            a build.
        sizes: shorter sides of the levels to compare, in pixels; None: each phase's own size and
            the next larger usual one.
        transform: part of an image that is shown; None: `TrainCrop()`.
        workers: processes of the loader and of the build; "auto" for the usable cores; 0: none.
        images: number of images measured, spread over the source.
        seconds: total time of counting images; everything else takes about as long again.
        report: receives the progress.

    Returns:
        all choices with their predicted rates, bytes and times, and the recommended one.

    Raises:
        DatasetError: the source is missing, or none of its images can be read.
        ResourceError: there is no space for the copies of a few hundred images.
        UsageError: an argument is out of range; the source is itself a cache.

    Example:
        >>> plan = feedline.plan_cache("train/", "112x10,160x10,224x10")          # doctest: +SKIP
        >>> print(plan.advice.why, plan.command)                                  # doctest: +SKIP
    """
    progress = report or NoProgress()
    phases, crop = Schedule.of(schedule), checked_transform(transform)
    wanted = _required_sides(phases, crop)
    sides = _level_sides(sizes, wanted)
    _check_numbers(images, disk_bytes, disk_bytes_per_s, seconds)
    processes = worker_count(workers)
    progress.begin("listing the images", 1)
    opened = open_source(source)
    limits = MachineLimits(
        disk_bytes=_usable_disk_bytes(opened) if disk_bytes is None else disk_bytes,
        memory_bytes=cacheable_memory_bytes(),
        disk_bytes_per_s=disk_bytes_per_s,
    )
    with ExitStack() as stack:
        root = make_scratch_folder(stack, min(images, len(opened)), sides)
        levels = [Level(side=side, quality=quality) for quality in _QUALITIES for side in sides]
        numbers = opened.pick(images)
        progress.begin("making copies", len(numbers))
        originals = root / "originals" / "images"
        originals.mkdir(parents=True)
        timings = make_copies(
            opened, numbers, levels, originals, workers=processes, advance=progress.advance
        )
        if sizes is None:
            sides = _drop_rarely_smaller(sides, wanted, timings)
        folders: dict[Level | None, ImageFolder] = {None: ImageFolder(originals.parent, crop)}
        progress.begin("writing copies", len(_QUALITIES) * len(timings.images))
        for done, quality in enumerate(_QUALITIES):
            progress.advance(done * len(timings.images))
            folders |= small_cache(originals.parent, root, sides, quality, crop, processes)
        readings = _readings(wanted, sides)
        progress.begin("comparing pixels", 1)
        differences = measure_differences(folders, readings)
        progress.begin("measuring", ROUNDS * len(readings))
        rates = measure_rates(
            folders, readings, workers=processes, seconds=seconds, advance=progress.advance
        )
    measured = CacheMeasurement(
        images=len(opened),
        schedule=phases,
        wanted=wanted,
        original_bytes=timings.original_bytes,
        open_s=timings.open_s,
        processes=timings.processes,
        levels={level: cost for level, cost in timings.costs().items() if level in folders},
        rates=include_dataset_time(rates, timings),
        differences=differences,
    )
    found = enumerate_choices(measured, limits)
    without = estimate_choice(measured, limits, ())
    return CachePlan(
        source=opened.where,
        kind=opened.kind,
        transform=repr(crop),
        workers=processes,
        auto=workers == "auto",
        measured=measured,
        limits=limits,
        looked_at=len(timings.images),
        median_px=timings.median_px,
        small=sum(min(each.height, each.width) < max(wanted) for each in timings.images),
        skipped=timings.skipped,
        originals=without,
        choices=tuple(found),
        advice=advise(measured, limits, without, found),
    )


def _usable_disk_bytes(source: CacheSource) -> float:
    """Bytes that a cache next to the source may use."""
    place = Path(source.where)
    while not place.exists():  # a pattern, or the name of a Dataset
        place = place.parent
    return _FREE * shutil.disk_usage(place).free


def _drop_rarely_smaller(
    sides: tuple[int, ...], wanted: dict[int, int], timings: CopyTimings
) -> tuple[int, ...]:
    """Drop sides that few originals exceed: their copies would be the originals."""
    kept = [side for side in sides if timings.share_larger(side) > _FEW_LARGER]
    if serving(kept, max(wanted.values())) is None:
        kept.append(min(side for side in sides if side >= max(wanted.values())))
    return tuple(kept)


def _readings(wanted: dict[int, int], sides: Collection[int]) -> list[Reading]:
    """All readings of the choices: the originals, and each level at the sizes it may serve."""
    pairs = {
        (size, serving(chosen, side))
        for chosen in level_sets(sorted(sides), wanted.values())
        for size, side in wanted.items()
    }
    found: list[Reading] = [(size, None) for size in wanted]
    for quality in _QUALITIES:
        found += [(size, Level(side=side, quality=quality)) for size, side in sorted(pairs)]  # type: ignore[arg-type]
    return found


_MAX_SIDE_PX = 8192
_MAX_SIZES = 8
_MAX_IMAGES = 10_000


def _required_sides(schedule: Schedule, crop: Transform) -> dict[int, int]:
    """Shorter side of the images that each size of the schedule needs, in pixels.

    Raises:
        UsageError: the schedule has no sizes, or a size for which no level is large enough.
    """
    if not schedule.image_sizes:
        raise UsageError(
            f"the schedule {schedule} has no image sizes, which a cache plan needs",
            hint='write them, e.g. "112x10,160x10,224x10"',
        )
    wanted = {size: wanted_side(crop, size) for size in sorted(set(schedule.image_sizes))}
    for size, side in wanted.items():
        if side > _MAX_SIDE_PX:
            raise UsageError(
                f"image size {size} px needs copies of {side} px; the limit is {_MAX_SIDE_PX} px",
                hint="train with the originals at that size",
            )
    return wanted


def _level_sides(given: Collection[int] | None, wanted: dict[int, int]) -> tuple[int, ...]:
    """Sides of the levels to compare, smallest first: the given ones, or candidates.

    Raises:
        UsageError: too many sides are given, or none is large enough.
    """
    if given is None:
        return candidate_sides(wanted.values())
    sides = tuple(level.side for level in make_levels(tuple(given), quality=95, raw=False))
    if len(sides) > _MAX_SIZES:
        raise UsageError(f"at most {_MAX_SIZES} sizes are compared, got {len(sides)}")
    most = max(wanted.values())
    if serving(sides, most) is None:
        raise UsageError(
            f"sizes {','.join(map(str, sides))}: none serves image size {max(wanted)} px",
            hint=f"add a size of at least {most}",
        )
    return sides


def _check_numbers(
    images: int, disk_bytes: float | None, disk_bytes_per_s: float, seconds: float
) -> None:
    """Check the numeric arguments.

    Raises:
        UsageError: a number is out of range.
    """
    if isinstance(images, bool) or not isinstance(images, int) or not 1 <= images <= _MAX_IMAGES:
        raise UsageError(
            f"must be a whole number from 1 to {_MAX_IMAGES}, got {images!r}", argument="images"
        )
    given = {"disk_bytes": disk_bytes, "disk_bytes_per_s": disk_bytes_per_s, "seconds": seconds}
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"must be a number above 0, got {value!r}", argument=name)
