"""How long something took, many times over: counts in bins that grow with the time.

Guarantees: memory that does not grow, whatever is added; histograms add up; a quantile is within
5% of the true one, and never beyond the longest time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Histogram"]

_PER_OCTAVE = 8  # a bin's upper edge is 9% above its lower one
_LEAST_MS = 2.0**-10  # about a microsecond: all below shares the first bin
_FEW = 16
BINS = 32 * _PER_OCTAVE  # up to 70 minutes: all above shares the last one


@dataclass(slots=True)
class Histogram:
    """Durations, in milliseconds.

    Args:
        count: how many there were.
        total_ms: their sum.
        longest_ms: the longest.
        bins: how many fell into each bin that holds any: bin k begins at 2**(k / 8 - 10) ms.
    """

    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, ms: float) -> None:
        """One duration."""
        self.count += 1
        self.total_ms += ms
        if ms > self.longest_ms:
            self.longest_ms = ms
        k = _bin(ms)
        self.bins[k] = self.bins.get(k, 0) + 1

    def add_all(self, times_ms: list[float]) -> None:
        """Many durations, for a fraction of what `add` takes for each."""
        if len(times_ms) < _FEW:
            for ms in times_ms:
                self.add(ms)
            return
        times = np.array(times_ms)
        self.count += len(times_ms)
        self.total_ms += float(times.sum())
        self.longest_ms = max(self.longest_ms, float(times.max()))
        bins = (np.log2(np.maximum(times / _LEAST_MS, 1.0)) * _PER_OCTAVE).astype(np.int64)
        numbers, counts = np.unique(np.minimum(bins, BINS - 1), return_counts=True)
        for k, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.bins[k] = self.bins.get(k, 0) + count

    def __iadd__(self, other: Histogram) -> Histogram:
        self.count += other.count
        self.total_ms += other.total_ms
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        for k, n in other.bins.items():
            self.bins[k] = self.bins.get(k, 0) + n
        return self

    @property
    def sound(self) -> bool:
        """Whether it can have been added up: a file may hold anything."""
        counts = [self.count, *self.bins.values()]
        return min([self.total_ms, self.longest_ms, *counts]) >= 0 and all(
            0 <= k < BINS for k in self.bins
        )

    @property
    def mean_ms(self) -> float | None:
        """The mean; None where nothing was added."""
        return self.total_ms / self.count if self.count else None

    def times(self) -> list[tuple[float, int]]:
        """The middle of each bin, on a scale of logarithms, in ms, and how many fell into it."""
        return [(min(_middle(k), self.longest_ms), count) for k, count in self.bins.items()]

    def quantile(self, q: float) -> float | None:
        """The time that a share `q` of all, 0 to 1, does not exceed; None where nothing was added.

        It is the middle of the bin, on a scale of logarithms, that the share ends in.
        """
        left = q * self.count
        for k in sorted(self.bins):
            left -= self.bins[k]
            if left <= 0:
                return min(_middle(k), self.longest_ms)
        return self.longest_ms if self.count else None


def _middle(k: int) -> float:
    return math.pow(2.0, (k + 0.5) / _PER_OCTAVE) * _LEAST_MS if k else 0.0


def _bin(ms: float) -> int:
    if ms <= _LEAST_MS:
        return 0
    return min(BINS - 1, int(math.log2(ms / _LEAST_MS) * _PER_OCTAVE))
