"""Choices of levels: what each costs and brings, from what was measured of some images.

Guarantees: pure; what memory does not hold comes as fast as the disk gives it, never faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedline.cache.candidates import level_sets, serving
from feedline.plan.schedule import Schedule
from feedline.stores.cache_layout import Level

__all__ = ["Choice", "LevelCost", "Limits", "Measured", "PhaseRate", "choices", "front", "predict"]

_STEP = 0.97  # a choice of more bytes is worth a line where it takes at most this part of the time


@dataclass(frozen=True, kw_only=True)
class LevelCost:
    """What a copy of a level costs.

    Args:
        image_bytes: its mean size on the disk, with what lies beside it.
        make_s: to resize and encode it, in one of so many processes that all work.
    """

    image_bytes: float
    make_s: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of some images of a source.

    Args:
        images: how many the source has.
        schedule: what they are trained by.
        wanted: for each size of a row, in pixels, the shorter side at which images are wanted.
        original_bytes: the mean size of an original.
        open_s: to read and decode an original whole, in one of so many processes that all work.
        processes: how many those are.
        levels: what their copies cost.
        rates: images/s of all workers together, by the size of the rows and the level that they
            are made of, None for the originals; read from memory.
        differences: of the rows of a level from those of the originals, in grey levels.
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
class Limits:
    """What the machine has.

    Args:
        disk_bytes: a cache may take so much.
        memory_bytes: so much of it stays in memory once it was read.
        disk_bytes_per_s: what the disk gives of the rest, and takes of a cache that is built.
    """

    disk_bytes: float
    memory_bytes: float
    disk_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class PhaseRate:
    """A phase with a choice.

    Args:
        size: of its rows, in pixels.
        epochs: how many it has.
        level: what the rows are made of; None: of the originals.
        images_per_s: how many come in a second.
        cores_images_per_s: how many the cores make where the disk is no bound.
        level_bytes: of all images in this form.
        in_memory: memory holds these, so the disk is read once.
        disk_bytes_per_s: what the disk must give for what the cores make; 0 where memory holds all.
        seconds: to load all epochs.
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
class Choice:
    """Some levels of one quality, or none: the originals.

    Args:
        levels: smallest first.
        phases: those of the schedule.
        bytes: what the levels take on the disk.
        build_s: to make them and to write them to the disk.
        paid_after: epochs of the schedule after which they have saved the time of their making;
            None where they do not within it.
        difference: of the rows from those of the originals, in grey levels, mean over all epochs.
    """

    levels: tuple[Level, ...]
    phases: tuple[PhaseRate, ...]
    bytes: float
    build_s: float
    paid_after: int | None
    difference: float

    @property
    def load_s(self) -> float:
        """Seconds to load the whole schedule."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def quality(self) -> int | None:
        """Of the JPEGs; None: raw pixels. Of a choice that has levels."""
        return self.levels[0].quality

    @property
    def sides(self) -> tuple[int, ...]:
        """Of the levels, in pixels."""
        return tuple(level.side for level in self.levels)

    def __str__(self) -> str:
        if not self.levels:
            return "originals"
        quality = "raw" if self.quality is None else f"q{self.quality}"
        return f"{','.join(map(str, self.sides))} {quality}"


def choices(measured: Measured, limits: Limits) -> list[Choice]:
    """All choices of levels that were measured, each of one quality; not the originals."""
    by_quality: dict[int | None, list[Level]] = {}
    for level in measured.levels:
        by_quality.setdefault(level.quality, []).append(level)
    found = []
    for levels in by_quality.values():
        by_side = {level.side: level for level in levels}
        for sides in level_sets(sorted(by_side), measured.wanted.values()):
            found.append(predict(measured, limits, [by_side[side] for side in sides]))
    return found


def predict(measured: Measured, limits: Limits, levels: Sequence[Level]) -> Choice:
    """What some levels cost and bring; none: what the originals do."""
    phases = _phases(measured, limits, levels)
    costs = [measured.levels[level] for level in levels]
    size_bytes, build_s = measured.images * sum(cost.image_bytes for cost in costs), 0.0
    if levels:
        each_s = measured.open_s + sum(cost.make_s for cost in costs)
        build_s = each_s * measured.images / measured.processes
        # A process that has made a shard waits until the disk has it.
        build_s += size_bytes / limits.disk_bytes_per_s
    epochs = measured.schedule.epochs
    differences = (
        phase.epochs * measured.differences[phase.size, phase.level]
        for phase in phases
        if phase.level is not None
    )
    return Choice(
        levels=tuple(levels),
        phases=phases,
        bytes=size_bytes,
        build_s=build_s,
        paid_after=_paid_after(build_s, _phases(measured, limits, ()), phases) if levels else 0,
        difference=sum(differences) / epochs,
    )


def _phases(measured: Measured, limits: Limits, levels: Sequence[Level]) -> tuple[PhaseRate, ...]:
    by_side = {level.side: level for level in levels}
    found = []
    for phase in measured.schedule.phases:
        size = phase.size
        assert size is not None, "each phase of this schedule has a size"
        side = serving(by_side, measured.wanted[size])
        assert side is not None or not levels, "some level serves each phase"
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


def front(found: Sequence[Choice], advised: Choice | None = None) -> list[Choice]:
    """Those that are worth a look: each is quicker than all of its quality that take fewer bytes.

    They come by quality, in the order in which the qualities first come, fewest bytes first; with
    them comes the one that is advised.
    """
    kept: dict[int | None, list[Choice]] = {choice.quality: [] for choice in found}
    for choice in sorted(found, key=lambda choice: (choice.bytes, choice.load_s)):
        alike = kept[choice.quality]
        quickest_s = min((other.load_s for other in alike), default=math.inf)
        if choice is advised or choice.load_s <= _STEP * quickest_s:
            alike.append(choice)
    return [choice for alike in kept.values() for choice in alike]
