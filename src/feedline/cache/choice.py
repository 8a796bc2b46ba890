"""Choices of resolutions: their cost and loading time, from measurements of some images.

Guarantees: pure; data that does not fit into memory is limited by the disk's throughput.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from feedline.order.schedule import Schedule
from feedline.sources.cache_layout import Level

__all__ = [
    "MAX_LEVELS",
    "CacheMeasurement",
    "LevelChoice",
    "LevelCost",
    "MachineLimits",
    "PhaseRate",
    "candidate_sides",
    "enumerate_choices",
    "estimate_choice",
    "level_sets",
    "serving",
    "useful_choices",
]


_STEP = 0.97  # a larger choice is listed if it needs at most this share of the time
MAX_LEVELS = 6
"""Largest number of candidates; all their sets with three qualities are still few."""

_MIN_PX, _MAX_PX = 8, 8192
_COMMON_PX = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)


@dataclass(frozen=True, kw_only=True)
class LevelCost:
    """Cost of a copy in one resolution.

    Args:
        image_bytes: mean size on the disk, including metadata.
        make_s: time to resize and encode it, in one of several busy processes.
    """

    image_bytes: float
    make_s: float


@dataclass(frozen=True, kw_only=True)
class CacheMeasurement:
    """Measurement of some images of a source.

    Args:
        images: number of images in the source.
        schedule: schedule of the training.
        wanted: needed shorter side of a copy for each image size of the schedule, in pixels.
        original_bytes: mean size of an original.
        open_s: time to read and decode a whole original, in one of several busy processes.
        processes: number of these processes.
        levels: cost of the copies in each resolution.
        rates: total images/s from memory, by image size and resolution (None for the originals).
        differences: mean difference of images of a resolution from the originals', in grey levels.
    """

    images: int
    schedule: Schedule
    wanted: Mapping[int, int]
    original_bytes: float
    open_s: float
    processes: int
    levels: Mapping[Level, LevelCost]
    rates: Mapping[tuple[int, Level | None], float]
    differences: Mapping[tuple[int, Level], float]


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """Limits of the machine.

    Args:
        disk_bytes: disk space for a cache.
        memory_bytes: memory that can hold files that were read.
        disk_bytes_per_s: throughput of the disk.
    """

    disk_bytes: float
    memory_bytes: float
    disk_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class PhaseRate:
    """Loading rate of a phase with a choice.

    Args:
        size: image size in pixels.
        epochs: number of epochs.
        level: resolution that is read; None for the originals.
        images_per_s: loading rate.
        cores_images_per_s: loading rate without a limit of the disk.
        level_bytes: size of all images in this form.
        in_memory: True if memory holds them, so that the disk is read once.
        disk_bytes_per_s: disk throughput needed for `cores_images_per_s`; 0 if `in_memory`.
        seconds: loading time of all epochs.
    """

    size: int
    epochs: int
    level: Level | None
    images_per_s: float
    cores_images_per_s: float
    level_bytes: float
    in_memory: bool
    disk_bytes_per_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LevelChoice:
    """A set of resolutions of one quality, or none: the originals.

    Args:
        levels: resolutions, smallest first.
        phases: rates of the schedule's phases.
        bytes: disk space.
        build_s: time to build and write them.
        paid_after: number of epochs after which they save more time than their build; None if
            never within the schedule.
        difference: mean difference from images of the originals over all epochs, in grey levels.
    """

    levels: tuple[Level, ...]
    phases: tuple[PhaseRate, ...]
    bytes: float
    build_s: float
    paid_after: int | None
    difference: float

    @property
    def load_s(self) -> float:
        """Loading time of the whole schedule."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def quality(self) -> int | None:
        """JPEG quality; None for raw pixels. Only for a choice with resolutions."""
        return self.levels[0].quality

    @property
    def sides(self) -> tuple[int, ...]:
        """Resolutions in pixels."""
        return tuple(level.side for level in self.levels)

    def __str__(self) -> str:
        if not self.levels:
            return "originals"
        quality = "raw" if self.quality is None else f"q{self.quality}"
        return f"{','.join(map(str, self.sides))} {quality}"


def enumerate_choices(measured: CacheMeasurement, limits: MachineLimits) -> list[LevelChoice]:
    """Return all sets of the measured resolutions of one quality, without the originals."""
    by_quality: dict[int | None, list[Level]] = {}
    for level in measured.levels:
        by_quality.setdefault(level.quality, []).append(level)
    found = []
    for levels in by_quality.values():
        by_side = {level.side: level for level in levels}
        for sides in level_sets(sorted(by_side), measured.wanted.values()):
            found.append(estimate_choice(measured, limits, [by_side[side] for side in sides]))
    return found


def estimate_choice(
    measured: CacheMeasurement, limits: MachineLimits, levels: Sequence[Level]
) -> LevelChoice:
    """Estimate cost and rates of a set of resolutions, or of the originals."""
    phases = _phases(measured, limits, levels)
    costs = [measured.levels[level] for level in levels]
    size_bytes, build_s = measured.images * sum(cost.image_bytes for cost in costs), 0.0
    if levels:
        each_s = measured.open_s + sum(cost.make_s for cost in costs)
        build_s = each_s * measured.images / measured.processes
        # A process that finished a shard waits for the disk.
        build_s += size_bytes / limits.disk_bytes_per_s
    epochs = measured.schedule.epochs
    differences = (
        phase.epochs * measured.differences[phase.size, phase.level]
        for phase in phases
        if phase.level is not None
    )
    return LevelChoice(
        levels=tuple(levels),
        phases=phases,
        bytes=size_bytes,
        build_s=build_s,
        paid_after=_paid_after(build_s, _phases(measured, limits, ()), phases) if levels else 0,
        difference=sum(differences) / epochs,
    )


def _phases(
    measured: CacheMeasurement, limits: MachineLimits, levels: Sequence[Level]
) -> tuple[PhaseRate, ...]:
    by_side = {level.side: level for level in levels}
    found = []
    for phase in measured.schedule.phases:
        size = phase.image_size
        assert size is not None, "the schedule has sizes"
        side = serving(by_side, measured.wanted[size])
        assert side is not None or not levels, "a resolution serves each phase"
        level = None if side is None else by_side[side]
        image_bytes = measured.levels[level].image_bytes if level else measured.original_bytes
        level_bytes = measured.images * image_bytes
        cores = measured.rates[size, level]
        in_memory = level_bytes <= limits.memory_bytes
        rate = cores if in_memory else min(cores, limits.disk_bytes_per_s / image_bytes)
        found.append(
            PhaseRate(
                size=size,
                epochs=phase.epochs,
                level=level,
                images_per_s=rate,
                cores_images_per_s=cores,
                level_bytes=level_bytes,
                in_memory=in_memory,
                disk_bytes_per_s=0.0 if in_memory else cores * image_bytes,
                seconds=phase.epochs * measured.images / rate,
            )
        )
    return tuple(found)


def _paid_after(
    build_s: float, originals: Sequence[PhaseRate], phases: Sequence[PhaseRate]
) -> int | None:
    epochs, left_s = 0, build_s
    for before, after in zip(originals, phases, strict=True):
        saved_s = before.seconds - after.seconds
        if saved_s >= left_s:
            return epochs + math.ceil(left_s * after.epochs / saved_s)
        epochs, left_s = epochs + after.epochs, left_s - saved_s
    return None


def useful_choices(
    found: Sequence[LevelChoice], advised: LevelChoice | None = None
) -> list[LevelChoice]:
    """Return the useful choices: faster than all smaller ones of the same quality.

    Ordered by quality, in order of first appearance, then by size. The recommended choice is
    included.
    """
    kept: dict[int | None, list[LevelChoice]] = {choice.quality: [] for choice in found}
    for choice in sorted(found, key=lambda choice: (choice.bytes, choice.load_s)):
        alike = kept[choice.quality]
        quickest_s = min((other.load_s for other in alike), default=math.inf)
        if choice is advised or choice.load_s <= _STEP * quickest_s:
            alike.append(choice)
    return [choice for alike in kept.values() for choice in alike]


def candidate_sides(wanted: Collection[int]) -> tuple[int, ...]:
    """Return candidate resolutions in pixels, smallest first.

    For each wanted size: the size itself, with the fewest bytes and the least decoding, and the
    next larger common one, of which a random crop is enlarged less.

    Args:
        wanted: shorter sides that the phases need, at least one, at most 8192.
    """
    sides = set()
    for side in wanted:
        sides.add(max(side, _MIN_PX))
        sides.add(next((step for step in _COMMON_PX if step > side), min(2 * side, _MAX_PX)))
    found = sorted(sides)
    while len(found) > MAX_LEVELS:
        # Drop the one closest to the next larger one.
        gaps = [larger / smaller for smaller, larger in pairwise(found)]
        del found[gaps.index(min(gaps))]
    return tuple(found)


def serving(sides: Collection[int], wanted: int) -> int | None:
    """Return the smallest resolution that is large enough, or None."""
    return min((side for side in sides if side >= wanted), default=None)


def level_sets(sides: Sequence[int], wanted: Collection[int]) -> list[tuple[int, ...]]:
    """Return all sets of resolutions that serve every wanted size and contain no unused one."""
    found = []
    for count in range(1, len(sides) + 1):
        for chosen in combinations(sorted(sides), count):
            if {serving(chosen, side) for side in wanted} == set(chosen):
                found.append(chosen)
    return found
