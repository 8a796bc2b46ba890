"""Choice of the next batch size to try. Pure: trials in, sizes out.

The first trial uses a small size. The next sizes follow from the memory that
trials used, on the line through the last two. If the line predicts badly, since kernels choose
their workspace by the size, the gap is doubled or halved.

Guarantees: no size is tried twice. The answer was tried and fits; the next larger size was tried
and does not fit, or exceeds the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchSearch", "BatchTrial", "next_smaller"]

_MULTIPLE = 8  # for tensor cores (NVIDIA, "Train with Mixed Precision", shape constraints)
_EXTRAPOLATED = 3  # trials that follow a line; later ones halve or double
_SMALLER = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTrial:
    """Training steps with one batch size.

    Args:
        rows: images in a batch.
        peak_bytes: peak memory; None if memory ran out.
        fits: True if the steps ran and left the headroom free.
    """

    rows: int
    peak_bytes: int | None
    fits: bool


class BatchSearch:
    """Search for the largest batch that fits: 1 to 8, or a multiple of 8.

    Args:
        usable_bytes: memory limit of a batch.
        start: first size to try.
        max_rows: largest size to try, at least 1.
    """

    def __init__(self, *, usable_bytes: int, start: int, max_rows: int) -> None:
        self._usable_bytes = usable_bytes
        self._last = _index(max_rows)
        self._start = min(max(_index(start), 1), self._last)
        self.trials: dict[int, BatchTrial] = {}
        """Trials by batch size."""

    def add(self, trial: BatchTrial) -> None:
        """Add a finished trial."""
        self.trials[trial.rows] = trial

    def next(self) -> int | None:
        """Return the next size to try, or None if the largest is known."""
        low, high = _index(self.best), self._high
        if not self.trials:
            return _size(self._start)
        if high - low <= 1:
            return None
        target = self._extrapolate() if len(self.trials) <= _EXTRAPOLATED else None
        if target is None:
            # Until a size fails, the gap has no upper end to be halved.
            target = 2 * low if high > self._last and low else (low + high) // 2
        return _size(min(max(target, low + 1), high - 1))

    @property
    def best(self) -> int:
        """Largest size that fits, below all that do not; 0 if none fits."""
        high = self._high
        fitting = (r for r, trial in self.trials.items() if trial.fits and _index(r) < high)
        return max(fitting, default=0)

    @property
    def _high(self) -> int:
        """Index of the smallest size that does not fit, or one past the last."""
        failed = (_index(rows) for rows, trial in self.trials.items() if not trial.fits)
        return min(failed, default=self._last + 1)

    def _extrapolate(self) -> int | None:
        """Index of the largest size on the line through the two largest measured sizes."""
        known = sorted(
            (trial.rows, trial.peak_bytes)
            for trial in self.trials.values()
            if trial.peak_bytes is not None
        )
        if not known:
            return None
        # A single point underestimates, since some bytes do not depend on the size.
        (few, less), (many, more) = known[-2:] if len(known) > 1 else [(0, 0), known[0]]
        if more <= less:
            return None
        return _index(int(many + (self._usable_bytes - more) * (many - few) / (more - less)))


def next_smaller(rows: int) -> int:
    """Size to try after this one failed: about 5% smaller; 0 below 1."""
    index = _index(rows)
    return _size(min(_index(int(_SMALLER * rows)), index - 1)) if index > 1 else 0


def _index(rows: int) -> int:
    """Index of a size in the list 1 to 8, then each multiple of 8."""
    return max(0, rows) if rows <= _MULTIPLE else _MULTIPLE + rows // _MULTIPLE - 1


def _size(index: int) -> int:
    return index if index <= _MULTIPLE else (index - _MULTIPLE + 1) * _MULTIPLE
