"""Which levels, and which sets of them, are worth a thought for a schedule.

Guarantees: pure; for each side that a phase wants there is a level that has it, and there are never
so many levels that measuring all of them takes long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations, pairwise

__all__ = ["MOST_LEVELS", "candidate_sides", "level_sets", "serving"]

MOST_LEVELS = 6
"""Sides of levels that are thought of: with three qualities and all their sets that is plenty."""

_LEAST_SIDE, _MOST_SIDE = 8, 8192  # of a level, in pixels
_LADDER = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)


def candidate_sides(wanted: Collection[int]) -> tuple[int, ...]:
    """The sides of levels to think of, in pixels, smallest first.

    For each wanted side that is the side itself, which makes the fewest bytes and the least to
    decode, and the next larger usual one, of which a random crop is enlarged less.

    Args:
        wanted: the shorter sides at which the phases want images, at least one, at most 8192.
    """
    sides = set()
    for side in wanted:
        sides.add(max(side, _LEAST_SIDE))
        sides.add(next((step for step in _LADDER if step > side), min(2 * side, _MOST_SIDE)))
    found = sorted(sides)
    while len(found) > MOST_LEVELS:
        # The one that the next larger level serves nearly as well.
        gaps = [larger / smaller for smaller, larger in pairwise(found)]
        del found[gaps.index(min(gaps))]
    return tuple(found)


def serving(sides: Collection[int], wanted: int) -> int | None:
    """The smallest of some sides that has a wanted one; None where all are smaller."""
    return min((side for side in sides if side >= wanted), default=None)


def level_sets(sides: Sequence[int], wanted: Collection[int]) -> list[tuple[int, ...]]:
    """All sets of levels of which every wanted side has one, and none is made for nothing."""
    found = []
    for count in range(1, len(sides) + 1):
        for chosen in combinations(sorted(sides), count):
            if {serving(chosen, side) for side in wanted} == set(chosen):
                found.append(chosen)
    return found
