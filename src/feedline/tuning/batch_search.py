"""Which batch size is tried next, and when the largest is known. Pure: trials in, numbers out.

The first trial takes the size that was estimated, or a small one. From what trials took of the
memory follows where the largest should be, on the line through the last two. What a line foresees
badly, as kernels choose their workspace by the size, is found by doubling and halving the gap.

Guarantees: no size is tried twice; the answer was tried and fits, and the next one was tried and
does not, or is above `most`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchSearch", "BatchTrial", "even", "smaller"]

_EVEN = 8  # for tensor cores (NVIDIA, "Train with Mixed Precision", shape constraints)
_FORESEEN = 3  # trials that follow a line; others halve or double
_LESS = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTrial:
    """Some training steps with one batch size.

    Args:
        rows: images of a batch.
        peak: bytes that they took at most; None where they broke off for lack of memory.
        fits: they ran, and left the headroom free.
    """

    rows: int
    peak: int | None
    fits: bool


class BatchSearch:
    """A search for the largest batch that fits: 1 to 8, or a multiple of 8.

    Args:
        room: bytes that a batch that fits may take.
        start: the size that is tried first.
        most: no more than this is tried, at least 1.
    """

    def __init__(self, *, room: int, start: int, most: int) -> None:
        self._room = room
        self._last = _place(most)
        self._start = min(max(_place(start), 1), self._last)
        self.trials: dict[int, BatchTrial] = {}
        """What was tried, by the size."""

    def add(self, trial: BatchTrial) -> None:
        """A size was tried."""
        self.trials[trial.rows] = trial

    def next(self) -> int | None:
        """The size to try next; None where the largest is known."""
        low, high = _place(self.best), self._high
        if not self.trials:
            return _rows(self._start)
        if high - low <= 1:
            return None
        aim = self._foreseen() if len(self.trials) <= _FORESEEN else None
        if aim is None:
            # One that does not fit bounds the gap; up to then there is no end to be halved to.
            aim = 2 * low if high > self._last and low else (low + high) // 2
        return _rows(min(max(aim, low + 1), high - 1))

    @property
    def best(self) -> int:
        """The largest that fits, below all that do not; 0 where none does."""
        high = self._high
        fitting = (r for r, trial in self.trials.items() if trial.fits and _place(r) < high)
        return max(fitting, default=0)

    @property
    def _high(self) -> int:
        """The place of the smallest that does not fit, or the one after the last."""
        failed = (_place(rows) for rows, trial in self.trials.items() if not trial.fits)
        return min(failed, default=self._last + 1)

    def _foreseen(self) -> int | None:
        """The place that the line through the two largest known leads to."""
        known = sorted(
            (trial.rows, trial.peak) for trial in self.trials.values() if trial.peak is not None
        )
        if not known:
            return None
        # One point alone: some bytes do not depend on the size, so this is less than what fits.
        (few, less), (many, more) = known[-2:] if len(known) > 1 else [(0, 0), known[0]]
        if more <= less:
            return None
        return _place(int(many + (self._room - more) * (many - few) / (more - less)))


def even(rows: float) -> int:
    """The largest size that is tried and not above this one; 0 below 1."""
    return _rows(_place(int(rows)))


def smaller(rows: int) -> int:
    """The size to take where this one did not hold: some 5% less; 0 below 1."""
    place = _place(rows)
    return _rows(min(_place(int(_LESS * rows)), place - 1)) if place > 1 else 0


def _place(rows: int) -> int:
    """Where a size stands among those that are tried: 1 to 8, then each multiple of 8."""
    return max(0, rows) if rows <= _EVEN else _EVEN + rows // _EVEN - 1


def _rows(place: int) -> int:
    return place if place <= _EVEN else (place - _EVEN + 1) * _EVEN
