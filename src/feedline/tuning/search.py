"""Choice of the next setting to try. Pure: trials in, settings out.

First the search looks for the highest rate. The number of workers follows from the work of the
first trial and the duration of the step. If steps wait although workers are idle at times, batches
arrive unevenly: then more prefetch or smaller tasks are tried. Then it looks for the fewest workers
with that rate: again from the work, and once a number was too small, from its rate, as the rate of
busy workers is proportional to their number. If workers use all cores, one worker less is tried, as
the training loop needs a core as well.

At the end candidates for the answer are tried again in alternating order (`RepeatedTrials`): if
another process disturbs a trial, all of its steps are slow, so its error does not show it.

Guarantees: no setting is searched twice; workers and prefetch of each setting after the first fit
into memory; no single trial decides; equal trials give an equal search.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from feedline.throughput.limits import WorkerLimits
from feedline.throughput.memory_budget import Room
from feedline.tuning.trial import LoaderSetting, LoaderTrial

__all__ = ["RepeatedTrials", "Search", "SearchSpace", "find_candidates"]

_ALIKE = 0.02  # rates that differ by less are equal, or by less than their error
_CLOSE = 0.07  # relative difference that may be noise,
_CLOSE_ON_ALL_CORES = 0.3  # and if the other setting leaves no core to the training loop
_MAX_BLOCKED = 0.5  # share of work spent waiting, up to which workers need cores
_COMPUTE_BOUND = 0.98  # of the compute-bound rate
_WAITS = 0.03  # share of data wait from which a gain is possible
_SUPERLINEAR = 0.05  # possible gain of more workers beyond their proportion
_BUSY = 0.9  # share of the workers' time: above, there are too few workers, not uneven batches


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """Settings to try besides the number of workers.

    Args:
        prefetch: larger values than in the first setting.
        pieces_ms: smaller task sizes than in the first setting; empty for whole batches.
        pin: True to try both values of pin_memory.
    """

    prefetch: tuple[int, ...] = ()
    pieces_ms: tuple[float, ...] = ()
    pin: bool = False

    def smoother(
        self, setting: LoaderSetting, memory: Room | None = None
    ) -> Iterator[LoaderSetting]:
        """Yield settings that may help against uneven batches, the likeliest first.

        Args:
            setting: a setting with uneven batches.
            memory: memory budget of prefetched batches; None for no limit.
        """
        workers = setting.workers
        fitting = (k for k in self.prefetch if memory is None or memory.fits(workers, k))
        deepest = max(fitting, default=0)
        if deepest > setting.prefetch:
            yield replace(setting, prefetch=deepest)
        finest = min(self.pieces_ms, default=math.inf)
        if setting.task_ms is not None and finest < setting.task_ms:
            yield replace(setting, task_ms=finest)


class Search:
    """Search for the fewest workers with the highest rate.

    Args:
        limits: limits of the number of workers.
        start: first setting to try.
        ceiling: compute-bound steps per second; None if it was not measured.
        space: other settings to try.
        memory: memory budget, taken with the workers of `start`; None for no limit.
    """

    def __init__(
        self,
        limits: WorkerLimits,
        start: LoaderSetting,
        ceiling: float | None,
        space: SearchSpace | None = None,
        memory: Room | None = None,
    ) -> None:
        self._limits = limits
        self._start_workers = start.workers
        self._base = start  # prefetch and task size of further trials
        self._ceiling = ceiling
        self._space = space or SearchSpace()
        self._memory = memory
        self.trials: dict[LoaderSetting, LoaderTrial] = {}
        """Trials by setting."""

    def add(self, trial: LoaderTrial) -> None:
        """Add a finished trial."""
        before = self.trials.get(replace(self._base, workers=trial.workers))
        self.trials[trial.setting] = trial
        if before is not None and trial.steps_per_s > (1 + _noise(trial)) * before.steps_per_s:
            self._base = trial.setting

    def next(self) -> LoaderSetting | None:
        """Return the next setting to try, or None if the answer is known."""
        if not self.trials:
            return replace(self._base, workers=min(self._base.workers, self._max_workers(1.0)))
        return (
            self._smoother()
            or self._more_workers()
            or self._fewer_workers()
            or self._one_core_free()
            or self._less_prefetch()
            or self._other_pinning()
        )

    @property
    def best(self) -> LoaderTrial:
        """Trial of the fewest workers that are as fast as any."""
        fast = [trial for trial in self.trials.values() if self._is_fast(trial)]
        return min(fast, key=lambda trial: (trial.workers, trial.setting.prefetch))

    @property
    def candidates(self) -> list[LoaderTrial]:
        """Possible answers, if single trials were disturbed."""
        trials, cores = list(self.trials.values()), self._limits.cores
        return find_candidates(trials, self.best, cores=cores, compute_bound=self.is_compute_bound)

    @property
    def is_compute_bound(self) -> bool:
        """True if the step bounds the fastest trial, and no setting of the loader."""
        return self._ceiling is not None and self._fastest >= _COMPUTE_BOUND * self._ceiling

    @property
    def _fastest(self) -> float:
        return max(trial.steps_per_s for trial in self.trials.values())

    @property
    def _by_workers(self) -> dict[int, LoaderTrial]:
        """Trials that differ from `_base` only in the number of workers."""
        return {
            setting.workers: trial
            for setting, trial in self.trials.items()
            if replace(setting, workers=self._base.workers) == self._base
        }

    def _is_fast(self, trial: LoaderTrial) -> bool:
        return trial.steps_per_s >= (1 - _noise(trial)) * self._fastest

    def _smoother(self) -> LoaderSetting | None:
        """Return a setting with more prefetch or smaller tasks, if batches arrive unevenly."""
        trials = self._by_workers
        largest, enough = trials[max(trials)], self._enough
        uneven = [] if self.is_compute_bound else [largest]
        if enough is not None:
            # Workers that were added against uneven batches may not be needed.
            slow = [workers for workers in trials if workers < enough - 1]
            uneven += [trials[max(slow)]] if slow else []
        for trial in uneven:
            if _is_uneven(trial):
                for other in self._space.smoother(trial.setting, self._memory):
                    if other not in self.trials and not self._was_useless(other, trial.setting):
                        return other
        return None

    def _was_useless(self, other: LoaderSetting, setting: LoaderSetting) -> bool:
        """Return True if the change did not help fewer workers with uneven batches."""
        pairs = (
            (trial, self.trials.get(replace(other, workers=workers)))
            for workers, trial in self._by_workers.items()
            if workers < setting.workers and _is_uneven(trial)
        )
        return any(
            changed is not None and changed.steps_per_s <= (1 + _noise(changed)) * trial.steps_per_s
            for trial, changed in pairs
        )

    @property
    def _enough(self) -> int | None:
        """Fewest workers that are fast, of the trials that differ in nothing else."""
        trials = self._by_workers
        return min((workers for workers in trials if self._is_fast(trials[workers])), default=None)

    def _more_workers(self) -> LoaderSetting | None:
        """Return more workers than in any trial, if that may be faster."""
        trials = self._by_workers
        largest = max(trials)
        trial, window = trials[largest], trials[largest].window
        most = self._max_workers(window.blocked_share)
        if self.is_compute_bound or largest >= most:
            return None
        others = [trials[workers] for workers in trials if workers < largest]
        if self._is_fast(trial):
            # Trials with other prefetch count, too, unless there were too few workers here.
            others += [other for other in self.trials.values() if other.workers > largest]
        if any(other.steps_per_s >= (1 - _noise(other)) * trial.steps_per_s for other in others):
            return None  # more did not help
        wanted = max(largest + 1, self._needed_workers(trial))
        if 0 < window.busy < _BUSY and window.own_s > 0:
            # Against uneven batches each worker counts as much as the others.
            wanted = max(wanted, math.ceil(largest * window.step_s / window.own_s))
        return replace(self._base, workers=min(most, wanted))

    def _fewer_workers(self) -> LoaderSetting | None:
        """Return a number of workers between too few and the smallest that is fast."""
        trials = self._by_workers
        if (enough := self._enough) is None:
            return None
        slow = max((workers for workers in trials if workers < enough), default=0)
        if enough - slow <= 1:
            return None
        if slow:
            # Too few workers are always busy, so the rate is proportional to their number.
            lacking = (1 - _ALIKE) * self._fastest / trials[slow].steps_per_s
            if slow * lacking > (1 + _SUPERLINEAR) * (enough - 1):
                return None  # even the largest of these would need a more than proportional gain
            workers = max(slow + 1, min(enough - 1, math.ceil(slow * lacking)))
            return replace(self._base, workers=workers)
        share = trials[enough].window.blocked_share
        needed = min(self._needed_workers(trials[enough]), self._max_workers(share))
        if not 0 < needed < enough:
            # As many as needed: try one less to confirm. Nothing known: try half.
            needed = enough - 1 if needed else enough // 2
        return replace(self._base, workers=needed)

    def _one_core_free(self) -> LoaderSetting | None:
        """Return the best setting with one worker less, if it uses all cores."""
        best = self.best
        if self.is_compute_bound or not uses_all_cores(best, self._limits.cores):
            return None
        other = replace(best.setting, workers=best.workers - 1)
        return None if other in self.trials else other

    def _less_prefetch(self) -> LoaderSetting | None:
        """Return the best setting with less prefetch, if it has more than the first one."""
        setting = self.best.setting
        first = next(iter(self.trials)).prefetch
        between = [depth for depth in self._space.prefetch if first < depth < setting.prefetch]
        for depth in sorted(between):
            other = replace(setting, prefetch=depth)
            if other not in self.trials:
                return other
        return None

    def _other_pinning(self) -> LoaderSetting | None:
        """Return the best setting with the other value of pin_memory."""
        setting = self.best.setting
        other = replace(setting, pin=not setting.pin)
        tried = any(each.pin == other.pin for each in self.trials)
        return other if self._space.pin and not tried else None

    def _max_workers(self, blocked_share: float) -> int:
        """Largest number of workers whose work waits for a share of its time."""
        most = self._limits.most(self._start_workers, blocked_share)
        if self._memory is not None:
            fitting = self._memory.most_workers(self._base.prefetch)
            most = max(1, min(most, fitting))
        return most

    def _needed_workers(self, trial: LoaderTrial) -> int:
        """Number of workers that are always busy if steps never wait."""
        own_s = trial.window.own_s
        if self._ceiling is not None:
            own_s = min(own_s, 1.0 / self._ceiling)
        if own_s <= 0 or trial.window.work_s <= 0:
            return 0
        return max(1, math.ceil(trial.window.work_s / own_s))


def _is_uneven(trial: LoaderTrial) -> bool:
    """Return True if steps wait although workers are idle at times."""
    return trial.window.wait_share > _WAITS and 0 < trial.window.busy < _BUSY


def _noise(trial: LoaderTrial) -> float:
    """Relative difference from an equally fast setting that may be noise."""
    return max(_ALIKE, min(trial.error, 2 * _ALIKE))


def find_candidates(
    trials: Sequence[LoaderTrial], best: LoaderTrial, *, cores: int, compute_bound: bool
) -> list[LoaderTrial]:
    """Return the trials that may hold the answer: fewer workers, the best, and a faster one.

    Args:
        trials: trials of a finished search.
        best: its answer.
        cores: cores available to the training and its workers.
        compute_bound: True if the step is the bottleneck, so that nothing can be faster.

    Returns:
        Trials by number of workers; only the best if there is no doubt.
    """
    close = _CLOSE_ON_ALL_CORES if uses_all_cores(best, cores) else _CLOSE
    fastest = max(trial.steps_per_s for trial in trials)
    fewer = [
        trial
        for trial in trials
        if trial.workers < best.workers and trial.steps_per_s >= (1 - close) * fastest
    ]
    faster = [
        trial
        for trial in trials
        if trial.workers >= best.workers
        and trial is not best
        and not compute_bound
        and trial.steps_per_s >= (1 - _CLOSE) * best.steps_per_s
    ]
    chosen = [max(few, key=lambda trial: trial.steps_per_s) for few in (fewer, faster) if few]
    return sorted([best, *chosen], key=lambda trial: trial.workers)


def uses_all_cores(trial: LoaderTrial, cores: int) -> bool:
    """Return True if computing workers leave no core to the training loop."""
    return trial.workers >= max(2, cores) and trial.window.blocked_share <= _MAX_BLOCKED


class RepeatedTrials:
    """Alternating trials of candidates until one of them is the answer.

    Args:
        trials: one trial of each candidate.
    """

    def __init__(self, trials: Sequence[LoaderTrial]) -> None:
        self._trials = {trial.setting: [trial] for trial in trials}
        self._turns = deque(self._round() if len(trials) > 1 else ())
        self._second_round = len(trials) > 1

    def _round(self) -> list[LoaderSetting]:
        """Each setting twice, forward and backward, so that the middle one needs no change."""
        settings = list(self._trials)
        return [*settings, *reversed(settings)]

    def next(self) -> LoaderSetting | None:
        """Return the next setting to try, or None if the answer is known."""
        if not self._turns and self._second_round:
            self._second_round = False
            first = {setting: trials[0] for setting, trials in self._trials.items()}
            if _answer(first) != _answer(self.trials):
                self._turns.extend(self._round())
        return self._turns[0] if self._turns else None

    @property
    def turns(self) -> int:
        """Remaining trials, without a possible second round."""
        return len(self._turns)

    def add(self, trial: LoaderTrial) -> None:
        """Add a finished trial."""
        self._turns.remove(trial.setting)
        self._trials[trial.setting].append(trial)

    @property
    def trials(self) -> dict[LoaderSetting, LoaderTrial]:
        """Median trial of each setting."""
        return {setting: _median(trials) for setting, trials in self._trials.items()}

    @property
    def best(self) -> LoaderTrial:
        """Trial of the fewest workers that are as fast as any."""
        found = self.trials
        return found[_answer(found)]


def _median(trials: Sequence[LoaderTrial]) -> LoaderTrial:
    """Return the median trial; of two the slower one."""
    rate = statistics.median_low(trial.steps_per_s for trial in trials)
    return next(trial for trial in trials if trial.steps_per_s == rate)


def _answer(trials: dict[LoaderSetting, LoaderTrial]) -> LoaderSetting:
    fastest = max(trial.steps_per_s for trial in trials.values())
    fast = [each for each in trials.values() if each.steps_per_s >= (1 - _ALIKE) * fastest]
    return min(fast, key=lambda trial: (trial.workers, trial.setting.prefetch)).setting
