"""Which setting is tried next, and when enough are known. Pure: trials in, settings out.

First a setting is sought that is as fast as any. From the first trial's work and the step's own
time follows how many workers there should be. Where steps wait although workers are idle at times,
batches come unevenly: then more of them are made ahead, or in smaller pieces. Then the fewest
workers are sought that are as fast: from the work again, and once a crew was too small, from its
rate, as a crew that is busy all the time is as fast as it is large. A crew that takes all cores is
tried with one worker less, as the training loop needs a core as well.

Guarantees: no setting is tried twice; beyond the first one there is memory for each, crew and depth
together; the same trials give the same search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from feedline.control.limits import Limits
from feedline.control.room import Room
from feedline.tuning.finalists import finalists, takes_all_cores
from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial

__all__ = ["Choices", "Search"]

_ALIKE = 0.02  # rates that differ by less are alike, or by less than their error
_REACHED = 0.98  # of the ceiling
_WAITS = 0.03  # of the time, from which on something is to be gained
_HOPE = 0.05  # by which a crew may be faster than in proportion to a smaller one
_BUSY = 0.9  # of the workers' time: with so much they are too few, and batches not uneven


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What may be tried besides the number of workers.

    Args:
        prefetch: depths beyond that of the first setting.
        pieces_ms: sizes of pieces below that of the first setting; empty for whole batches.
        pin: whether batches may be pinned or not.
    """

    prefetch: tuple[int, ...] = ()
    pieces_ms: tuple[float, ...] = ()
    pin: bool = False

    def of(self, setting: Setting, room: Room | None = None) -> Iterator[Setting]:
        """What may be better against uneven batches than a setting, the likeliest first.

        Args:
            setting: that has uneven batches.
            room: that its batches ahead have; None for no end.
        """
        crew = setting.workers
        fitting = (depth for depth in self.prefetch if room is None or room.fits(crew, depth))
        deepest = max(fitting, default=0)
        if deepest > setting.prefetch:
            yield replace(setting, prefetch=deepest)
        finest = min(self.pieces_ms, default=math.inf)
        if setting.piece_ms is not None and finest < setting.piece_ms:
            yield replace(setting, piece_ms=finest)


class Search:
    """A search for the fewest workers with which a training is as fast as it can be.

    Args:
        limits: of the crew.
        start: what is tried first.
        ceiling: steps per second with data for free; None where it was not measured.
        choices: what else may change.
        room: memory, looked at when the crew was that of `start`; None for no end.
    """

    def __init__(
        self,
        limits: Limits,
        start: Setting,
        ceiling: float | None,
        choices: Choices | None = None,
        room: Room | None = None,
    ) -> None:
        self._limits = limits
        self._begun_with = start.workers
        self._now = start  # its depth and pieces are those of the crews that are tried
        self._ceiling = ceiling
        self._choices = choices or Choices()
        self._room = room
        self.trials: dict[Setting, Trial] = {}
        """What was tried."""

    def add(self, trial: Trial) -> None:
        """A setting was tried."""
        before = self.trials.get(replace(self._now, workers=trial.workers))
        self.trials[trial.setting] = trial
        if before is not None and trial.steps_per_s > (1 + _noise(trial)) * before.steps_per_s:
            self._now = trial.setting

    def next(self) -> Setting | None:
        """What to try next; None where enough is known."""
        if not self.trials:
            return replace(self._now, workers=min(self._now.workers, self._most(1.0)))
        return (
            self._evener()
            or self._more()
            or self._fewer()
            or self._sparing()
            or self._shallower()
            or self._pinned()
        )

    @property
    def best(self) -> Trial:
        """The trial of the fewest workers that are as fast as any."""
        fast = [trial for trial in self.trials.values() if self._is_fast(trial)]
        return min(fast, key=lambda trial: (trial.workers, trial.setting.prefetch))

    @property
    def finalists(self) -> list[Trial]:
        """What might be the answer, if single trials were disturbed."""
        trials, cores = list(self.trials.values()), self._limits.cores
        return finalists(trials, self.best, cores=cores, reached=self.reached)

    @property
    def reached(self) -> bool:
        """Whether the step is what bounds the best of them, and no setting of the loader."""
        return self._ceiling is not None and self._fastest >= _REACHED * self._ceiling

    @property
    def _fastest(self) -> float:
        return max(trial.steps_per_s for trial in self.trials.values())

    @property
    def _crews(self) -> dict[int, Trial]:
        """Trials that differ from what is tried now in the number of workers alone."""
        return {
            setting.workers: trial
            for setting, trial in self.trials.items()
            if replace(setting, workers=self._now.workers) == self._now
        }

    def _is_fast(self, trial: Trial) -> bool:
        return trial.steps_per_s >= (1 - _noise(trial)) * self._fastest

    def _evener(self) -> Setting | None:
        """A crew with more made ahead, or in smaller pieces, where its batches are uneven."""
        crews = self._crews
        largest, enough = crews[max(crews)], self._enough
        uneven = [] if self.reached else [largest]
        if enough is not None:
            # A crew that is large against unevenness alone is not needed.
            slow = [crew for crew in crews if crew < enough - 1]
            uneven += [crews[max(slow)]] if slow else []
        for trial in uneven:
            if _is_uneven(trial):
                for other in self._choices.of(trial.setting, self._room):
                    if other not in self.trials and not self._was_in_vain(other, trial.setting):
                        return other
        return None

    def _was_in_vain(self, other: Setting, setting: Setting) -> bool:
        """Whether what `other` has more of did not help a smaller crew that was uneven as well."""
        pairs = (
            (trial, self.trials.get(replace(other, workers=crew)))
            for crew, trial in self._crews.items()
            if crew < setting.workers and _is_uneven(trial)
        )
        return any(
            with_it is not None and with_it.steps_per_s <= (1 + _noise(with_it)) * trial.steps_per_s
            for trial, with_it in pairs
        )

    @property
    def _enough(self) -> int | None:
        """The fewest workers that are fast, of those that differ in nothing else."""
        crews = self._crews
        return min((crew for crew in crews if self._is_fast(crews[crew])), default=None)

    def _more(self) -> Setting | None:
        """A larger crew than any so far, where that may be faster."""
        crews = self._crews
        largest = max(crews)
        trial, window = crews[largest], crews[largest].window
        most = self._most(window.blocked_share)
        if self.reached or largest >= most:
            return None
        rivals = [crews[crew] for crew in crews if crew < largest]
        if self._is_fast(trial):
            # Other depths count, too: what is faster than a crew that is too small is no rival.
            rivals += [other for other in self.trials.values() if other.workers > largest]
        if any(other.steps_per_s >= (1 - _noise(other)) * trial.steps_per_s for other in rivals):
            return None  # more have not helped
        wanted = max(largest + 1, self._needed(trial))
        if 0 < window.busy < _BUSY and window.own_s > 0:
            # Against unevenness each worker counts as much as the others.
            wanted = max(wanted, math.ceil(largest * window.step_s / window.own_s))
        return replace(self._now, workers=min(most, wanted))

    def _fewer(self) -> Setting | None:
        """A crew between those that are too small and the smallest that is fast."""
        crews = self._crews
        if (enough := self._enough) is None:
            return None
        slow = max((crew for crew in crews if crew < enough), default=0)
        if enough - slow <= 1:
            return None
        if slow:
            # Workers that are too few are busy all the time, so rates go with their number.
            lacking = (1 - _ALIKE) * self._fastest / crews[slow].steps_per_s
            if slow * lacking > (1 + _HOPE) * (enough - 1):
                return None  # the largest of these would have to be faster than it is large
            crew = max(slow + 1, min(enough - 1, math.ceil(slow * lacking)))
            return replace(self._now, workers=crew)
        share = crews[enough].window.blocked_share
        needed = min(self._needed(crews[enough]), self._most(share))
        if not 0 < needed < enough:
            # As many as are needed: only to see that it is not less. Or nothing is known.
            needed = enough - 1 if needed else enough // 2
        return replace(self._now, workers=needed)

    def _sparing(self) -> Setting | None:
        """The best one with a core left to the training loop, where it leaves none."""
        best = self.best
        if self.reached or not takes_all_cores(best, self._limits.cores):
            return None
        other = replace(best.setting, workers=best.workers - 1)
        return None if other in self.trials else other

    def _shallower(self) -> Setting | None:
        """The best one with less made ahead, where more than at first was needed."""
        setting = self.best.setting
        first = next(iter(self.trials)).prefetch
        between = [depth for depth in self._choices.prefetch if first < depth < setting.prefetch]
        for depth in sorted(between):
            other = replace(setting, prefetch=depth)
            if other not in self.trials:
                return other
        return None

    def _pinned(self) -> Setting | None:
        """The best one, pinned or not, whichever it is not."""
        setting = self.best.setting
        other = replace(setting, pin=not setting.pin)
        tried = any(each.pin == other.pin for each in self.trials)
        return other if self._choices.pin and not tried else None

    def _most(self, blocked_share: float) -> int:
        """How large a crew may be whose work is waiting to so much of it."""
        most = self._limits.most(self._begun_with, blocked_share)
        if self._room is not None:
            fitting = self._room.most_workers(self._now.prefetch)
            most = max(1, min(most, fitting))
        return most

    def _needed(self, trial: Trial) -> int:
        """The workers that are busy all the time where steps never wait."""
        own_s = trial.window.own_s
        if self._ceiling is not None:
            own_s = min(own_s, 1.0 / self._ceiling)
        if own_s <= 0 or trial.window.work_s <= 0:
            return 0
        return max(1, math.ceil(trial.window.work_s / own_s))


def _is_uneven(trial: Trial) -> bool:
    """Whether steps wait although workers are idle at times."""
    return trial.window.wait_share > _WAITS and 0 < trial.window.busy < _BUSY


def _noise(trial: Trial) -> float:
    """By how much a trial's rate may differ from another one that is as good."""
    return max(_ALIKE, min(trial.error, 2 * _ALIKE))
