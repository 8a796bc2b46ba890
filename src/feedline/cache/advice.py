"""Recommendation of the resolutions to build, with reasons.

Guarantees: pure. Of all choices that fit on the disk, it recommends the one that loads the schedule
fastest; among those within a few percent, the one with the fewest bytes. A lower quality is
recommended only if no better one fits or helps. No cache is recommended if the originals are fast
enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.filesize import decimal

from feedline.cache.choice import CacheMeasurement, LevelChoice, MachineLimits
from feedline.diagnose.finding import count
from feedline.forecast.text import duration

__all__ = ["Advice", "advise"]

_ALIKE = 1.05  # ratio of loading times that count as equal
_WORTH_IT = 1.1  # smallest useful gain over the originals


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommendation of a choice.

    Args:
        choice: resolutions to build; None for no cache.
        why: reason in one to four sentences.
    """

    choice: LevelChoice | None
    why: str


def advise(
    measured: CacheMeasurement,
    limits: MachineLimits,
    originals: LevelChoice,
    found: Sequence[LevelChoice],
) -> Advice:
    """Recommend a choice.

    Args:
        measured: measurement of the source.
        limits: limits of the machine.
        originals: loading without a cache.
        found: all choices, at least one.
    """
    smallest = min(found, key=lambda choice: choice.bytes)
    affordable = [choice for choice in found if choice.bytes <= limits.disk_bytes]
    if not affordable:
        return Advice(
            choice=None,
            why=f"No choice fits into a budget of {_size(limits.disk_bytes)}: the smallest, "
            f"{smallest}, needs {_size(smallest.bytes)}.",
        )
    best = _best(originals, affordable)
    times = originals.load_s / best.load_s
    if times < _WORTH_IT:
        why = (
            f"A cache is not worth it: the originals load these {_epochs(measured)} in "
            f"{duration(originals.load_s)}, the best choice within {_size(limits.disk_bytes)}, "
            f"{best}, in {duration(best.load_s)}."
        )
        return Advice(choice=None, why=why)
    sentences = [
        f"It loads these {_epochs(measured)} in {duration(best.load_s)}, {times:.1f} times as fast "
        f"as the originals, and needs {_size(best.bytes)}.",
        _payment(best, measured),
        *_memory(best, limits),
    ]
    if best.quality is not None and best.quality < _highest(found):
        sentences.append(
            f"Its quality is {best.quality}, as no choice of quality {_highest(found)} within "
            f"{_size(limits.disk_bytes)} is faster enough than the originals."
        )
    return Advice(choice=best, why=" ".join(sentences))


def _best(originals: LevelChoice, affordable: Sequence[LevelChoice]) -> LevelChoice:
    highest = _highest(affordable)
    # Raw pixels have the best quality.
    good = [choice for choice in affordable if choice.quality in (None, highest)]
    for some in (good, affordable):
        fastest = min(choice.load_s for choice in some)
        near = [choice for choice in some if choice.load_s <= _ALIKE * fastest]
        best = min(near, key=lambda choice: (choice.bytes, choice.load_s))
        if originals.load_s >= _WORTH_IT * best.load_s:
            break
    return best


def _highest(found: Sequence[LevelChoice]) -> int:
    return max((choice.quality for choice in found if choice.quality is not None), default=100)


def _payment(best: LevelChoice, measured: CacheMeasurement) -> str:
    build = f"Building it needs about {duration(best.build_s)}"
    if best.paid_after is None:
        return (
            f"{build}, more than it saves in these {_epochs(measured)}: build it for several runs."
        )
    return f"{build} and pays off after {count(best.paid_after, 'epoch')}."


def _memory(best: LevelChoice, limits: MachineLimits) -> list[str]:
    """Describe how much fits into memory; one sentence for each resolution that does not."""
    by_need = sorted(best.phases, key=lambda phase: phase.disk_bytes_per_s)
    large = {phase.level: phase for phase in by_need if not phase.in_memory}
    if not large:
        several = "each resolution fits" if len(best.levels) > 1 else "it fits"
        return [f"In memory {several}: the disk is read once."]
    found = []
    for level, phase in large.items():
        bound = phase.images_per_s < phase.cores_images_per_s
        found.append(
            f"{level}, {_size(phase.level_bytes)}, does not fit into "
            f"{_size(limits.memory_bytes)} of memory: loading needs "
            f"{_size(phase.disk_bytes_per_s)}/s from the disk"
            + (f", and {_size(limits.disk_bytes_per_s)}/s is the bottleneck." if bound else ".")
        )
    return found


def _epochs(measured: CacheMeasurement) -> str:
    return count(measured.schedule.epochs, "epoch")


def _size(size_bytes: float) -> str:
    return decimal(round(size_bytes))
