"""The last two or three settings against each other, in short trials that take turns. Pure.

A trial that something else on the machine disturbed gives a search the wrong answer, and its error
does not show it, as all of its steps were disturbed. So what might be the answer is tried again,
there and back, and the median of each setting's trials counts; where that is another answer than
the search's, it is tried there and back once more.

Guarantees: no single trial decides; the same trials give the same answer.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from feedline.tuning.setting import Setting
from feedline.tuning.trial import Trial

__all__ = ["Finalists", "finalists"]

_ALIKE = 0.02  # rates that differ by less are alike
_NEAR = 0.07  # a rate that is missed by less may be missed by chance,
_NEAR_ON_ALL_CORES = 0.3  # and by so much where the other crew leaves no core to the training loop
_COMPUTES = 0.5  # of the work may be waiting, up to which workers need cores


def finalists(trials: Sequence[Trial], best: Trial, *, cores: int, reached: bool) -> list[Trial]:
    """What might be the answer: fewer workers, the answer so far, and what may be faster.

    Args:
        trials: of a search that is done.
        best: its answer.
        cores: that the training and its workers may use.
        reached: the step is the limit: nothing can be faster.

    Returns:
        the trials, fewest workers first; the best alone where there is no doubt.
    """
    near = _NEAR_ON_ALL_CORES if takes_all_cores(best, cores) else _NEAR
    fastest = max(trial.steps_per_s for trial in trials)
    fewer = [
        trial
        for trial in trials
        if trial.workers < best.workers and trial.steps_per_s >= (1 - near) * fastest
    ]
    faster = [
        trial
        for trial in trials
        if trial.workers >= best.workers
        and trial is not best
        and not reached
        and trial.steps_per_s >= (1 - _NEAR) * best.steps_per_s
    ]
    chosen = [max(few, key=lambda trial: trial.steps_per_s) for few in (fewer, faster) if few]
    return sorted([best, *chosen], key=lambda trial: trial.workers)


def takes_all_cores(trial: Trial, cores: int) -> bool:
    """Whether workers that compute leave no core to the training loop."""
    return trial.workers >= max(2, cores) and trial.window.blocked_share <= _COMPUTES


class Finalists:
    """Settings that take turns until one of them is the answer.

    Args:
        trials: one of each.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = {trial.setting: [trial] for trial in trials}
        self._turns = deque(self._there_and_back() if len(trials) > 1 else ())
        self._again = len(trials) > 1

    def _there_and_back(self) -> list[Setting]:
        """Each one twice. In the middle the same setting is tried twice, and nothing is changed."""
        there = list(self._trials)
        return [*there, *reversed(there)]

    def next(self) -> Setting | None:
        """Whose turn it is; None where the answer is known."""
        if not self._turns and self._again:
            self._again = False
            first = {setting: trials[0] for setting, trials in self._trials.items()}
            if _answer(first) != _answer(self.trials):
                self._turns.extend(self._there_and_back())
        return self._turns[0] if self._turns else None

    @property
    def turns(self) -> int:
        """How many are still to be taken, those of a round that is only for doubt left out."""
        return len(self._turns)

    def add(self, trial: Trial) -> None:
        """It had its turn."""
        self._turns.remove(trial.setting)
        self._trials[trial.setting].append(trial)

    @property
    def trials(self) -> dict[Setting, Trial]:
        """Of each setting the trial that stands for all of its trials: the one in the middle."""
        return {setting: _median(trials) for setting, trials in self._trials.items()}

    @property
    def best(self) -> Trial:
        """The fewest workers that are as fast as any."""
        found = self.trials
        return found[_answer(found)]


def _median(trials: Sequence[Trial]) -> Trial:
    """The trial in the middle; of two the slower one."""
    rate = statistics.median_low(trial.steps_per_s for trial in trials)
    return next(trial for trial in trials if trial.steps_per_s == rate)


def _answer(trials: dict[Setting, Trial]) -> Setting:
    fastest = max(trial.steps_per_s for trial in trials.values())
    fast = [each for each in trials.values() if each.steps_per_s >= (1 - _ALIKE) * fastest]
    return min(fast, key=lambda trial: (trial.workers, trial.setting.prefetch)).setting
