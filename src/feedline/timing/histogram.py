"""Histogram of durations, with logarithmic bins.

Guarantees: constant memory; histograms can be added; a quantile is within 5% of the true one, and
never beyond the longest duration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

__all__ = ["Histogram"]

_PER_OCTAVE = 8  # the upper edge of a bin is 9% above its lower one
_MIN_MS = 2.0**-10  # about a microsecond: all shorter durations share the first bin
_FEW = 16
_BINS = 32 * _PER_OCTAVE  # up to 70 minutes: all longer durations share the last one

_Count = Annotated[int, Meta(ge=0)]
_Ms = Annotated[float, Meta(ge=0)]
_Bin = Annotated[int, Meta(ge=0, lt=_BINS)]


@dataclass(slots=True)
class Histogram:
    """Durations, in milliseconds.

    Args:
        count: number of durations.
        total_ms: sum.
        longest_ms: longest duration.
        bins: counts of the bins that are not empty: bin k begins at 2**(k / 8 - 10) ms.
    """

    count: _Count = 0
    total_ms: _Ms = 0.0
    longest_ms: _Ms = 0.0
    bins: dict[_Bin, _Count] = field(default_factory=dict)

    def add(self, ms: float) -> None:
        """Add one duration."""
        self.count += 1
        self.total_ms += ms
        if ms > self.longest_ms:
            self.longest_ms = ms
        k = _bin(ms)
        self.bins[k] = self.bins.get(k, 0) + 1

    def add_all(self, times_ms: list[float]) -> None:
        """Add many durations, in a fraction of the time that `add` takes."""
        if len(times_ms) < _FEW:
            for ms in times_ms:
                self.add(ms)
            return
        times = np.array(times_ms)
        self.count += len(times_ms)
        self.total_ms += float(times.sum())
        self.longest_ms = max(self.longest_ms, float(times.max()))
        bins = (np.log2(np.maximum(times / _MIN_MS, 1.0)) * _PER_OCTAVE).astype(np.int64)
        numbers, counts = np.unique(np.minimum(bins, _BINS - 1), return_counts=True)
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
    def mean_ms(self) -> float | None:
        """Mean; None if it is empty."""
        return self.total_ms / self.count if self.count else None

    def times(self) -> list[tuple[float, int]]:
        """Geometric middle of each bin in ms, with its count."""
        return [(min(_middle(k), self.longest_ms), count) for k, count in self.bins.items()]

    def quantile(self, q: float) -> float | None:
        """Duration that a share `q` of all, 0 to 1, does not exceed; None if it is empty.

        It is the geometric middle of the bin in which the share ends.
        """
        remaining = q * self.count
        for k in sorted(self.bins):
            remaining -= self.bins[k]
            if remaining <= 0:
                return min(_middle(k), self.longest_ms)
        return self.longest_ms if self.count else None


def _middle(k: int) -> float:
    return math.pow(2.0, (k + 0.5) / _PER_OCTAVE) * _MIN_MS if k else 0.0


def _bin(ms: float) -> int:
    if ms <= _MIN_MS:
        return 0
    return min(_BINS - 1, int(math.log2(ms / _MIN_MS) * _PER_OCTAVE))
