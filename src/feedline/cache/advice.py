"""Which choice of levels to build, and why, in words.

Guarantees: pure. Of all choices whose bytes the disk may hold, the one that loads the schedule in
the least time; of those within a few percent of that the one of the fewest bytes. A lower quality
only where nothing better would fit, or would help. None where the originals are fast enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.filesize import decimal

from feedline.cache.choice import Choice, Limits, Measured

__all__ = ["Advice", "advise", "counted", "duration"]

_ALIKE = 1.05  # times the least loading time
_WORTH_IT = 1.1  # times as fast as the originals


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to build.

    Args:
        choice: the levels; None: no cache.
        why: in one to four sentences.
    """

    choice: Choice | None
    why: str


def advise(
    measured: Measured, limits: Limits, originals: Choice, found: Sequence[Choice]
) -> Advice:
    """What to build.

    Args:
        measured: what the choices follow from.
        limits: what the machine has.
        originals: what the schedule takes without a cache.
        found: all choices, at least one.
    """
    smallest = min(found, key=lambda choice: choice.bytes)
    affordable = [choice for choice in found if choice.bytes <= limits.disk_bytes]
    if not affordable:
        return Advice(
            choice=None,
            why=f"A budget of {_size(limits.disk_bytes)} holds no choice: the smallest, {smallest},"
            f" takes {_size(smallest.bytes)}.",
        )
    best = _best(originals, affordable)
    times = originals.load_s / best.load_s
    if times < _WORTH_IT:
        why = (
            f"No cache is worth it: the originals load these {_epochs(measured)} in "
            f"{duration(originals.load_s)}, the best choice within {_size(limits.disk_bytes)}, "
            f"{best}, in {duration(best.load_s)}."
        )
        return Advice(choice=None, why=why)
    said = [
        f"It loads these {_epochs(measured)} in {duration(best.load_s)}, {times:.1f} times as fast "
        f"as the originals, and takes {_size(best.bytes)}.",
        _payment(best, measured),
        *_memory(best, limits),
    ]
    if best.quality is not None and best.quality < _highest(found):
        said.append(
            f"It has quality {best.quality}, as nothing of {_highest(found)} that fits into "
            f"{_size(limits.disk_bytes)} is enough faster than the originals."
        )
    return Advice(choice=best, why=" ".join(said))


def _best(originals: Choice, affordable: Sequence[Choice]) -> Choice:
    highest = _highest(affordable)
    # Raw pixels lose the least of all.
    good = [choice for choice in affordable if choice.quality in (None, highest)]
    for some in (good, affordable):
        fastest = min(choice.load_s for choice in some)
        near = [choice for choice in some if choice.load_s <= _ALIKE * fastest]
        best = min(near, key=lambda choice: (choice.bytes, choice.load_s))
        if originals.load_s >= _WORTH_IT * best.load_s:
            break
    return best


def _highest(found: Sequence[Choice]) -> int:
    return max((choice.quality for choice in found if choice.quality is not None), default=100)


def _payment(best: Choice, measured: Measured) -> str:
    takes = f"Its build of about {duration(best.build_s)}"
    if best.paid_after is None:
        return (
            f"{takes} takes longer than it saves in these {_epochs(measured)}: build it for more "
            "than one run."
        )
    return f"{takes} has paid for itself after {counted(best.paid_after, 'epoch')}."


def _memory(best: Choice, limits: Limits) -> list[str]:
    """Whether memory holds the levels; one sentence for each that it does not."""
    by_need = sorted(best.phases, key=lambda phase: phase.disk_bytes_per_s)
    large = {phase.level: phase for phase in by_need if not phase.in_memory}
    if not large:
        several = "each level" if len(best.levels) > 1 else "it"
        return [f"Memory holds {several}: the disk is read once."]
    found = []
    for level, phase in large.items():
        bound = phase.images_per_s < phase.cores_images_per_s
        found.append(
            f"{level}, {_size(phase.level_bytes)}, does not fit into the "
            f"{_size(limits.memory_bytes)} of memory: the disk must give "
            f"{_size(phase.disk_bytes_per_s)}/s"
            + (f", and at {_size(limits.disk_bytes_per_s)}/s it is the bound." if bound else ".")
        )
    return found


def _epochs(measured: Measured) -> str:
    return counted(measured.schedule.epochs, "epoch")


def _size(size_bytes: float) -> str:
    return decimal(round(size_bytes))


def counted(number: int, what: str) -> str:
    """So many of something, as text."""
    return f"{number} {what}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    """A time as text, to two or three digits."""
    if seconds < 99.5:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.{1 if hours < 9.95 else 0}f} h"
