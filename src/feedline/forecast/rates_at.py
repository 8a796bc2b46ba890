"""What is known of a size and a batch size that were not measured.

A size between two that were measured: a step's own time and an image's work go with the pixels
there. Beyond the measured sizes only the step's own time is taken to do so. Both are said.

Guarantees: pure; nothing that was not measured passes for measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.errors import UsageError
from feedline.forecast.rates import Rates

__all__ = ["rates_at"]


def rates_at(measured: Sequence[Rates], size: int | None, rows: int | None = None) -> Rates:
    """What is known of a size and a batch size, measured or not.

    Raises:
        UsageError: what was measured has no sizes, and one is asked for, or the reverse.
    """
    same = [each for each in measured if each.size == size]
    # One size may have been measured with several batch sizes.
    found = min(same, key=lambda each: abs((each.rows or 0) - rows) if rows else 0, default=None)
    if found is None:
        sized = sorted((each for each in measured if each.size), key=lambda each: each.size or 0)
        if size is None or not sized:
            raise UsageError(
                f"the schedule asks for {size or 'no'} px, and what was measured has "
                f"{'sizes' if sized else 'none'}; measure with the sizes of the schedule"
            )
        found = _between(sized, size)
    if rows and found.rows and rows != round(found.rows):
        times = rows / found.rows
        said = f"scaled from batches of {found.rows:.0f}"
        basis = f"{found.basis}, {said}" if found.basis else said
        found = found.scaled(compute=times, work=times, rows=float(rows), basis=basis)
    return found


def _between(sized: Sequence[Rates], size: int) -> Rates:
    """The rates of a size that was not measured."""
    below = [each for each in sized if (each.size or 0) < size]
    above = [each for each in sized if (each.size or 0) > size]
    near = min(sized, key=lambda each: abs((each.size or 0) ** 2 - size**2))
    near_px = near.size or size
    if not below or not above:
        return near.scaled(
            compute=(size / near_px) ** 2,
            work=1.0,
            size=size,
            wanted_px=_wanted(near, size),
            basis=f"not measured: a step's own time is taken to go with the pixels of {near_px} "
            "px, an image's work to be as there",
        )
    low, high = below[-1], above[0]
    low_px, high_px = low.size or 0, high.size or 0
    share = (size**2 - low_px**2) / (high_px**2 - low_px**2)

    def between(name: str) -> float:
        """How many times as long as at the nearer size."""
        ends = [getattr(each.now.load, name) / (each.rows or 1.0) for each in (low, high)]
        own = getattr(near.now.load, name) / (near.rows or 1.0)
        return ((1 - share) * ends[0] + share * ends[1]) / own if own > 0 else 1.0

    return near.scaled(
        compute=between("compute_ms"),
        work=between("work_ms"),
        size=size,
        wanted_px=_wanted(near, size),
        basis=f"between {low_px} and {high_px} px, by the pixels",
    )


def _wanted(near: Rates, size: int) -> int | None:
    return round(near.wanted_px * size / (near.size or size)) if near.wanted_px else None
