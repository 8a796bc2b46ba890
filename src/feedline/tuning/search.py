"""Which crew is tried next, and when enough are known. Pure: trials in, numbers out.

First a crew is sought that is as fast as any: from the first trial's work and the step's own time
follows how many workers there should be. Then the fewest that are as fast: from the work again, and
once a crew was too small, from its rate, as a crew that is busy all the time is as fast as it is
large.

Guarantees: no crew is tried twice; the same trials give the same search.
"""

from __future__ import annotations

import math

from feedline.control.limits import Limits
from feedline.tuning.trial import Trial

__all__ = ["Search"]

_ALIKE = 0.02  # rates that differ by less are alike, or by less than their error
_REACHED = 0.98  # of the ceiling


class Search:
    """A search for the fewest workers with which a training is as fast as it can be.

    Args:
        limits: of the crew.
        start: the crew that is tried first.
        ceiling: steps per second with data for free; None where it was not measured.
    """

    def __init__(self, limits: Limits, start: int, ceiling: float | None) -> None:
        self._limits = limits
        self._start = start
        self._ceiling = ceiling
        self.trials: dict[int, Trial] = {}
        """What was tried, by the number of workers."""

    def add(self, trial: Trial) -> None:
        """A crew was tried."""
        self.trials[trial.workers] = trial

    def next(self) -> int | None:
        """The crew to try next; None where enough are known."""
        if not self.trials:
            return max(1, min(self._start, self._limits.most(self._start, 1.0)))
        return self._more() or self._fewer()

    @property
    def best(self) -> Trial:
        """The trial of the fewest workers that are as fast as any."""
        return self.trials[min(crew for crew in self.trials if self._is_fast(crew))]

    @property
    def reached(self) -> bool:
        """Whether the step is what bounds the best of them, and no setting of the loader."""
        return self._ceiling is not None and self._fastest >= _REACHED * self._ceiling

    @property
    def _fastest(self) -> float:
        return max(trial.steps_per_s for trial in self.trials.values())

    def _is_fast(self, crew: int) -> bool:
        trial = self.trials[crew]
        noise = max(_ALIKE, min(trial.error, 2 * _ALIKE))
        return trial.steps_per_s >= (1 - noise) * self._fastest

    def _more(self) -> int | None:
        """A larger crew than any so far, where that may be faster."""
        largest = max(self.trials)
        trial = self.trials[largest]
        most = self._limits.most(largest, trial.window.blocked_share)
        if self.reached or largest >= most or not self._is_fast(largest):
            return None
        smaller = [crew for crew in self.trials if crew < largest]
        if any(self._is_fast(crew) for crew in smaller):
            return None  # these are enough: more have not helped
        return min(most, max(largest + 1, self._needed(trial)))

    def _fewer(self) -> int | None:
        """A crew between those that are too small and the smallest that is fast."""
        enough = self.best.workers
        slow = max((crew for crew in self.trials if crew < enough), default=0)
        if enough - slow <= 1:
            return None
        if slow:
            # Workers that are too few are busy all the time, so rates go with their number.
            lacking = (1 - _ALIKE) * self._fastest / self.trials[slow].steps_per_s
            return max(slow + 1, min(enough - 1, math.ceil(slow * lacking)))
        share = self.best.window.blocked_share
        needed = min(self._needed(self.best), self._limits.most(enough, share))
        if 0 < needed < enough:
            return needed
        # As many as are needed: only to see that it is not less. Or nothing is known of the work.
        return enough - 1 if needed else enough // 2

    def _needed(self, trial: Trial) -> int:
        """The workers that are busy all the time where steps never wait."""
        own_s = trial.window.own_s
        if self._ceiling is not None:
            own_s = min(own_s, 1.0 / self._ceiling)
        if own_s <= 0 or trial.window.work_s <= 0:
            return 0
        return max(1, math.ceil(trial.window.work_s / own_s))
