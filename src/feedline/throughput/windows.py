"""Rate of something counted in steps, and the error of a mean of correlated steps.

Guarantees: pure, except for the clock; what was not counted has no rate.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["RateMeter", "error_of", "error_of_means"]

_BLOCKS = 8  # of steps, whose means tell the error: neighbouring steps are not independent
_MIN_MEANS = 4
# Student's t for 95%, by degrees of freedom.
_T = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class RateMeter:
    """Counts what steps finish, after a warm-up.

    Args:
        seconds: time to count, at least.
        warmup: steps that are not counted, such as those of batches that were made ahead.
        least: steps to count, at least.
        until: end on the monotonic clock; then the steps counted so far suffice.
    """

    def __init__(
        self, seconds: float, *, warmup: int = 0, least: int = 1, until: float = math.inf
    ) -> None:
        self._least_s, self._least, self._until = seconds, least, until
        self._warmup = warmup
        self.count = self.steps = 0
        """Counted things, and the steps that finished them."""
        self._start = self._end = time.perf_counter()

    def add(self, count: int = 1) -> bool:
        """Count a step that has just finished `count` things. Return True if more are needed."""
        self._end = time.perf_counter()
        if self._warmup:
            self._warmup -= 1
            self._start = self._end
            return True
        self.count += count
        self.steps += 1
        enough = self.steps >= self._least and self.seconds >= self._least_s
        return not enough and time.monotonic() < self._until

    @property
    def seconds(self) -> float:
        """Counted time, up to the latest step."""
        return self._end - self._start

    @property
    def per_s(self) -> float:
        """Rate over the counted time."""
        return self.count / max(1e-9, self.seconds)


def error_of(times: Sequence[float]) -> float:
    """Relative half-width of the 95% confidence interval of the mean step time, from block means.

    Args:
        times: step times, in order; returns 1.0 if there are fewer than blocks.
    """
    if len(times) < _BLOCKS:
        return 1.0
    # No step is left out: a window often ends with the one that was waited for.
    edges = [len(times) * k // _BLOCKS for k in range(_BLOCKS + 1)]
    error = error_of_means([statistics.fmean(times[a:b]) for a, b in pairwise(edges)])
    return 1.0 if error is None else error


def error_of_means(means: Sequence[float]) -> float | None:
    """Relative half-width of the 95% confidence interval of the mean of 4 to 10 block means.

    Neighbouring steps are correlated, so the means of long blocks of them count as independent
    ("method of batch means"). None with too few means, or if their mean is not above 0.
    """
    if len(means) < _MIN_MEANS or not (mean := statistics.fmean(means)) > 0:
        return None
    return _T[len(means) - 1] * statistics.stdev(means) / math.sqrt(len(means)) / mean
