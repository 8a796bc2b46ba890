"""Recommendation of a cache for a schedule, from three measured choices.

Guarantees: the choices are built and read as in training, on a sample of the images. Only a
temporary folder is written, and it is removed. Images that do not fit into memory are read at most
as fast as the disk allows. No cache is recommended if the originals are fast enough.
"""

from __future__ import annotations

import glob
import math
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.cache.rates import measure_copies, serving_level
from feedline.cache.source import open_source
from feedline.cache.spec import Spec, estimate, make_levels
from feedline.engine.defaults import worker_count
from feedline.errors import UsageError, hide_secrets
from feedline.images.crops import Transform, wanted_side
from feedline.images.rows import check_transform
from feedline.order.schedule import Phase, Schedule
from feedline.sources.manifest import Level
from feedline.sources.remote_filesystem import is_url
from feedline.system import cacheable_memory_bytes
from feedline.text import (
    ProgressCallback,
    as_bytes,
    as_seconds,
    format_table,
    plural,
    shell_command,
    wrap_text,
)

_DISK_BYTES_PER_S = 500e6  # of a SATA SSD
_USABLE = 0.9  # share of the free disk space
_COMMON_PX = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)
_MIN_PX, _MAX_PX = 8, 8192
_EQUAL = 1.05  # ratio of loading times that count as equal
_WORTH_IT = 1.1  # smallest useful gain over the originals
_MARGIN = 8 / 7  # of a copy over the image size, as 128 px for 112 px: random crops are parts of it
_GRID_PX = 16


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """A cache that may be built, or the originals."""

    levels: tuple[Level, ...]  # resolutions, smallest first; empty for the originals
    bytes: float  # disk space
    build_s: float  # time to build it
    images_per_s: Mapping[int, float]  # by image size, limited by the disk if memory is too small
    disk_bytes_per_s: float  # read rate that the disk must have; 0 if memory holds the images
    load_s: float  # loading time of all epochs of the schedule
    side_ratio: float | None = None
    """Smallest ratio of the side of copies that are read to the image size; None for originals."""

    def __str__(self) -> str:
        if not self.levels:
            return "originals"
        quality = self.levels[0].quality
        sides = ",".join(level.name for level in self.levels)
        return f"{sides} {'raw' if quality is None else f'q{quality}'}"

    def as_dict(self) -> dict[str, Any]:
        """Return the choice, JSON-able; names end in the units."""
        levels = [{"size_px": level.side, "quality": level.quality} for level in self.levels]
        rates = {str(size): rate for size, rate in self.images_per_s.items()}
        return {**vars(self), "levels": levels, "images_per_s": rates}


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """Result of `plan_cache`."""

    source: str  # path, or the name of the Dataset
    kind: str  # "folder", "files", "webdataset", "parquet" or "dataset"
    schedule: Schedule
    transform: str  # its `repr`
    workers: int  # number of processes that the rates hold for
    images: int  # number of images in the source
    images_measured: int  # number of images that were copied and measured
    limits: Mapping[str, float]  # "disk_bytes", "memory_bytes" and "disk_bytes_per_s" here
    originals: CacheChoice  # training without a cache
    choices: tuple[CacheChoice, ...]  # one size, a size for each phase, and the same as raw pixels
    recommended: CacheChoice | None  # None for no cache
    reason: str  # in a few sentences
    command: str  # or the call for a Dataset, that builds it; "" for no cache
    skipped: tuple[tuple[str, str], ...]  # names and reasons of broken images

    def as_dict(self) -> dict[str, Any]:
        """Return the plan, JSON-able; names end in the units."""
        return {
            **vars(self),
            "schedule": str(self.schedule),
            "limits": dict(self.limits),
            "originals": self.originals.as_dict(),
            "choices": [choice.as_dict() for choice in self.choices],
            "recommended": self.recommended and self.recommended.as_dict(),
            "command": self.command or None,
            "skipped": [{"name": name, "why": why} for name, why in self.skipped],
        }

    def __str__(self) -> str:
        """Table of the choices, recommendation and assumed limits."""
        sizes = sorted(self.originals.images_per_s)
        rows = [
            ["", *(f"{size} px" for size in sizes), "loading", "disk", "build", "copy/size", ""]
        ]
        for choice in (self.originals, *self.choices):
            rates = [f"{choice.images_per_s[size]:.0f}" for size in sizes]
            build = as_seconds(choice.build_s) if choice.levels else "-"
            mark = "recommended" if choice is self.recommended else ""
            size = as_bytes(choice.bytes) if choice.bytes else "-"
            ratio = "-" if choice.side_ratio is None else f"{choice.side_ratio:.2f}"
            rows.append([str(choice), *rates, as_seconds(choice.load_s), size, build, ratio, mark])
        workers = plural(self.workers, "worker") if self.workers else "no workers"
        limits = (
            f"Assumed: {as_bytes(self.limits['disk_bytes'])} of disk for a cache, "
            f"{as_bytes(self.limits['memory_bytes'])} of memory for its files, "
            f"{as_bytes(self.limits['disk_bytes_per_s'])}/s from and to the disk."
        )
        if self.skipped:
            name, why = self.skipped[0]
            limits += f" Skipped {plural(len(self.skipped), 'broken image')}; first: {name}: {why}"
        return "\n".join(
            [
                f"{plural(self.images, 'image')} for {self.schedule} with {workers}: images/s, "
                f"measured on {self.images_measured}",
                *format_table(rows),
                *wrap_text(self.reason),
                *([f"\n{self.command}\n"] if self.command else []),
                *wrap_text(limits),
            ]
        )


def plan_cache(
    source: Any,
    schedule: str | Schedule | Phase | Iterable[Phase],
    *,
    disk_bytes: float | None = None,
    disk_bytes_per_s: float = _DISK_BYTES_PER_S,
    sizes: Collection[int] | None = None,
    transform: Transform | None = None,
    workers: int | str = "auto",
    images: int = 300,
    seconds: float = 30.0,
    progress: ProgressCallback = lambda stage, done, total: None,
) -> CachePlan:
    """Recommend a cache for a schedule; builds nothing but copies of a few hundred images.

    Compares the originals with three caches: copies of one size, of a size for each phase, and
    the latter as raw pixels.

    Args:
        source: any source that `build_cache` accepts: a path, or a map-style Dataset of
            (image, label).
        schedule: the phases of training, each with a size; or text, "112x10,160x10,224x10".
        disk_bytes: limit of the cache's bytes. Default: nine tenths of the free space on the
            source's disk.
        disk_bytes_per_s: rate at which the disk reads images that memory does not hold, and writes
            a build.
        sizes: shorter sides of the copies in pixels. Default: for each phase at least 8/7 of its
            image size, as 128 px for 112 px.
        transform: part of an image that is shown. Default: `TrainCrop()`.
        workers: processes of the loader and of the build; "auto" for the usable cores; 0: none.
        images: number of images measured, spread over the source.
        seconds: total time of counting images; everything else takes about as long again.
        progress: called repeatedly with the current work, its finished parts, and their number.

    Returns:
        The choices with their rates, bytes and times, and the recommended one.

    Raises:
        DatasetError: the source is missing, or none of its images can be read.
        ResourceError: there is no disk space for the copies of a few hundred images.
        UsageError: an argument is out of range; the source is itself a cache.

    Example:
        >>> plan = feedline.plan_cache("train/", "112x10,160x10,224x10")          # doctest: +SKIP
        >>> print(plan.reason, plan.command)                                      # doctest: +SKIP
    """
    phases, crop = Schedule.of(schedule), check_transform(transform, only_crops=True)
    sides = _required_sides(phases, crop)
    resolutions = _level_sets(sizes, sides)
    numbers = {"disk_bytes": disk_bytes, "disk_bytes_per_s": disk_bytes_per_s, "seconds": seconds}
    for name, value in {**numbers, "images": images}.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"must be a number above 0, got {value!r}", argument=name)
    processes = worker_count(workers)
    progress("listing the images", 0, 1)
    opened = open_source(source)
    where, total = opened.where, len(opened)
    if disk_bytes is None:  # of a pattern or the name of a Dataset: the nearest existing folder
        paths = Path(where), *Path(where).absolute().parents
        disk_bytes = _USABLE * shutil.disk_usage(next(filter(Path.exists, paths))).free
    limits = {
        "disk_bytes": disk_bytes,
        "memory_bytes": cacheable_memory_bytes(),
        "disk_bytes_per_s": disk_bytes_per_s,
    }
    estimates = [estimate(opened, Spec("", "webdataset", levels)) for levels in resolutions]
    rates, sample = measure_copies(
        opened,
        resolutions,
        sides,
        crop=crop,
        workers=processes,
        images=images,
        seconds=seconds,
        progress=progress,
    )

    def choice(levels: Sequence[Level], image_bytes: Sequence[float], make_s: float) -> CacheChoice:
        limited, needed, ratios = {}, 0.0, list[float]()
        for size, side in sides.items():
            level = serving_level(levels, side)
            ratios += [level.side / size] if level else []
            rate, each = rates[size, level], image_bytes[levels.index(level) if level else 0]
            if each * total > limits["memory_bytes"]:
                needed = max(needed, rate * each)
                rate = min(rate, disk_bytes_per_s / each)
            limited[size] = rate
        size_bytes = total * sum(image_bytes)
        return CacheChoice(
            levels=tuple(levels),
            bytes=size_bytes,
            build_s=make_s + size_bytes / disk_bytes_per_s if levels else 0.0,
            images_per_s=limited,
            disk_bytes_per_s=needed,
            load_s=sum(
                phase.epochs * total / limited[phase.image_size or 0] for phase in phases.phases
            ),
            side_ratio=min(ratios, default=None),
        )

    originals = choice((), (sample.file_bytes,), 0.0)
    choices = tuple(
        choice(each.levels, each.copy_bytes, each.seconds / max(1, processes)) for each in estimates
    )
    recommended, reason = recommend(originals, choices, limits, phases.epochs)
    return CachePlan(
        source=where,
        kind=opened.kind,
        schedule=phases,
        transform=repr(crop),
        workers=processes,
        images=total,
        images_measured=len(sample.names),
        limits=limits,
        originals=originals,
        choices=choices,
        recommended=recommended,
        reason=reason,
        command=build_command(opened.kind, where, recommended, bool(sample.broken)),
        skipped=tuple(sorted((hide_secrets(name), why) for name, why in sample.broken.items())),
    )


def recommend(
    originals: CacheChoice,
    choices: Sequence[CacheChoice],
    limits: Mapping[str, float],
    epochs: int,
) -> tuple[CacheChoice | None, str]:
    """Return the choice that loads the schedule fastest, or None, and the reason.

    Of choices that are equally fast within 5% it is the one with the fewest bytes.
    """
    budget, schedule = as_bytes(limits["disk_bytes"]), f"these {plural(epochs, 'epoch')}"
    fitting = [choice for choice in choices if choice.bytes <= limits["disk_bytes"]]
    if not fitting:
        smallest = min(choices, key=lambda choice: choice.bytes)
        return None, (
            f"No choice fits into {budget}: the smallest, {smallest}, needs "
            f"{as_bytes(smallest.bytes)}."
        )
    fastest = min(choice.load_s for choice in fitting)
    equal = [choice for choice in fitting if choice.load_s <= _EQUAL * fastest]
    best = min(equal, key=lambda choice: (choice.bytes, choice.load_s))
    if originals.load_s < _WORTH_IT * best.load_s:
        return None, (
            f"A cache is not worth it: the originals load {schedule} in "
            f"{as_seconds(originals.load_s)}, the best choice within {budget}, {best}, in "
            f"{as_seconds(best.load_s)}."
        )
    saved_s = originals.load_s - best.load_s
    paid = (
        f"which pays off after {plural(math.ceil(epochs * best.build_s / saved_s), 'epoch')}"
        if saved_s >= best.build_s
        else f"longer than it saves in {schedule}: build it for several runs"
    )
    reason = (
        f"It loads {schedule} in {as_seconds(best.load_s)}, {originals.load_s / best.load_s:.1f} "
        f"times as fast as the originals, and needs {as_bytes(best.bytes)}. Building it takes "
        "about "
        f"{as_seconds(best.build_s)}, {paid}."
    )
    if best.disk_bytes_per_s:
        reason += (
            f" It does not fit into {as_bytes(limits['memory_bytes'])} of memory: loading "
            "reads up to "
            f"{as_bytes(best.disk_bytes_per_s)}/s from the disk."
        )
    return best, reason


def _required_sides(schedule: Schedule, crop: Transform) -> dict[int, int]:
    """Return the shorter side of the images that each size of the schedule needs, in pixels."""
    if not schedule.image_sizes:
        raise UsageError(
            f"the schedule {schedule} has no image sizes, which a cache plan needs",
            hint='write them, e.g. "112x10,160x10,224x10"',
        )
    sides = {size: wanted_side(crop, size) for size in sorted(set(schedule.image_sizes))}
    if (side := max(sides.values())) > _MAX_PX:
        raise UsageError(
            f"image size {max(sides)} px needs copies of {side} px; the limit is {_MAX_PX} px",
            hint="train with the originals at that size",
        )
    return sides


def _level_sets(sizes: Collection[int] | None, sides: Mapping[int, int]) -> list[tuple[Level, ...]]:
    """Return the resolutions of the choices: one size; all sizes; all sizes as raw pixels."""
    each = _recommended_sides(sides) if sizes is None else sizes
    jpeg, raw = (make_levels(tuple(each), raw=raw) for raw in (False, True))
    one, largest = jpeg[-1], max(sides.values())
    if one.side < largest:
        raise UsageError(
            f"sizes {','.join(level.name for level in jpeg)}: none serves image size "
            f"{max(sides)} px",
            hint=f"add a size of at least {largest}",
        )
    if sizes is None:
        one = replace(one, side=next((px for px in _COMMON_PX if px >= one.side), one.side))
    return list(dict.fromkeys([(one,), jpeg, raw]))


def _recommended_sides(sides: Mapping[int, int]) -> set[int]:
    """Return a shorter side of copies for each image size, which no larger image size reads.

    A phase reads the smallest copies that are large enough, whatever they were made for.
    """
    found: dict[int, int] = {}
    for size in sorted(sides, reverse=True):
        side, rounded = (math.ceil(size * _MARGIN / grid) * grid for grid in (1, _GRID_PX))
        side = rounded if all(rounded < sides[other] for other in found) else side
        side = max(min(side, _MAX_PX), sides[size], _MIN_PX)
        found[size] = max([side, *(found[other] for other in found if side >= sides[other])])
    return set(found.values())


def build_command(kind: str, where: str, choice: CacheChoice | None, skips: bool) -> str:
    """Return the command, or the call for a Dataset, that builds a choice; "" for None."""
    if choice is None:
        return ""
    quality, sides = choice.levels[0].quality, [level.side for level in choice.levels]
    if kind == "dataset":
        options = "raw=True" if quality is None else f"quality={quality}"
        options += ', on_error="skip"' * skips
        return f'feedline.build_cache(dataset, "cache/", {tuple(sides)}, {options})'
    # The cache lies next to the source's folder, or in this one if the source is remote.
    named = where.lower().endswith((".tar", ".parquet")) or glob.has_magic(where)
    folder = (
        os.path.dirname(where) if named and not os.path.isdir(where) else where.rstrip("/" + os.sep)
    )
    cache = f"{os.path.basename(folder) if is_url(where) else folder}-cache"
    command = ["feedline", "cache", "build", where, cache, "--sizes", ",".join(map(str, sides))]
    command += ["--raw"] if quality is None else ["--quality", str(quality)]
    return shell_command(*command, *["--on-error", "skip"] * skips)
