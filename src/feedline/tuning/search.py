"""Choice of the next setting to try. Pure: trials in, settings out.

First the search looks for the highest rate. The number of workers follows from the work of the
first trial and the duration of the step. If steps wait although workers are idle at times, batches
arrive unevenly: then more prefetch or smaller tasks are tried. Then it looks for the fewest workers
with that rate: again from the work, and once a number was too small, from its rate, as the rate of
busy workers is proportional to their number. If workers use all cores, one worker less is tried, as
the training loop needs a core as well. If a step is so short, or a batch so little work, that
handing it over may cost more than making it, the training process tries to make it itself.

Then candidates for the answer are tried again in alternating order: if another process disturbs a
trial, all of its steps are slow, so its error does not show it. The median of a setting's trials
counts; if that asks for further settings, the search continues.

Guarantees: no setting is searched twice; workers and prefetch of each setting after the first fit
into memory; no single trial decides; equal trials give an equal search.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real

from feedline.errors import UsageError
from feedline.throughput.step_model import (
    MAX_WORKERS,
    WorkerLimits,
    is_compute_bound,
    workers_needed,
)
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import StepWindow

_MIN_BUDGET_S = 2.0  # two of the shortest trials


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderSetting:
    """Loader settings that affect speed but not the contents of batches."""

    workers: int  # 0: the training process makes the batches
    prefetch: int
    """Prefetched batches: of all workers together for image rows, else of each worker."""
    task_ms: float | None = None  # duration of a task; None if tasks are whole batches
    pin: bool | None = None  # page-locked memory for batches; None if it is not tried


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderTrial:
    """Measured steps with one setting."""

    setting: LoaderSetting
    window: StepWindow
    start_s: float | None = None  # until new workers returned a batch; None if they ran before
    other_cores: float = 0.0  # usable cores that other programs used meanwhile

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.setting.workers

    @property
    def steps_per_s(self) -> float:
        """Rate of the training."""
        return 1.0 / self.window.step_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of `steps_per_s`; None with too few steps."""
        error, rate = self.window.error, self.steps_per_s
        return None if error >= 1 else (rate / (1 + error), rate / (1 - error))

    @property
    def noise(self) -> float:
        """Relative difference from an equally fast setting that may be noise."""
        return max(THRESHOLDS.alike, min(self.window.error, 2 * THRESHOLDS.alike))

    @property
    def is_uneven(self) -> bool:
        """True if steps wait although workers are idle at times."""
        return (
            self.window.wait_share > THRESHOLDS.search_wait
            and 0 < self.window.busy < THRESHOLDS.busy
        )

    def beats(self, other: LoaderTrial) -> bool:
        """Return True if this trial is faster by more than noise."""
        return self.steps_per_s > (1 + self.noise) * other.steps_per_s

    def uses_all_cores(self, cores: int) -> bool:
        """Return True if computing workers leave no core to the training loop."""
        return (
            self.workers >= max(2, cores) and self.window.blocked_share <= THRESHOLDS.mostly_blocked
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpace:
    """Settings to try besides the number of workers."""

    prefetch: tuple[int, ...] = ()  # larger than in the first setting
    task_ms: float | None = None  # smaller than in the first setting; None for whole batches
    pin: bool = False  # try both values of pin_memory
    in_process: bool = False  # the training process can make the batches


class Search:
    """Search for the fewest workers with the highest rate, from a first setting with workers.

    `ceiling` is the compute-bound rate, in steps per second; None if it was not measured. The
    memory budget of `limits` is that with the workers of `start`.
    """

    def __init__(
        self,
        limits: WorkerLimits,
        start: LoaderSetting,
        ceiling: float | None = None,
        space: SearchSpace | None = None,
    ) -> None:
        self.limits = limits
        self._start = start
        self._base = start  # prefetch and task size of further trials
        self.ceiling = ceiling
        self._space = space or SearchSpace()
        self._all: dict[LoaderSetting, list[LoaderTrial]] = {}
        self._candidates: list[LoaderSetting] = []  # that are repeated
        self._expected: LoaderSetting | None = None  # answer before the round
        self._turns = deque[LoaderSetting]()
        self.rounds = 0
        """Rounds of repeated trials so far: from the first on, the search was complete once."""
        self.trials: dict[LoaderSetting, LoaderTrial] = {}
        """Median trial of each setting, in the order of the first ones."""

    @property
    def turns(self) -> int:
        """Known number of repeated trials that are left."""
        return len(self._turns)

    def add(self, trial: LoaderTrial) -> None:
        """Add a finished trial."""
        setting = trial.setting
        if setting in self.trials:
            self._turns.remove(setting)
        else:
            self._candidates = []
            before = self.trials.get(replace(self._base, workers=trial.workers))
            if before is not None and trial.beats(before):
                self._base = setting
        self._all.setdefault(setting, []).append(trial)
        # Of two the slower one.
        rate = statistics.median_low(each.steps_per_s for each in self._all[setting])
        self.trials[setting] = next(each for each in self._all[setting] if each.steps_per_s == rate)

    def next(self) -> LoaderSetting | None:
        """Return the next setting to try, or None if the answer is known."""
        if not self.trials:
            return replace(self._base, workers=min(self._base.workers, self._max_workers(1.0)))
        if not self._turns:
            ideas = (self._smoother, self._more_workers, self._fewer_workers, self._variants)
            for setting in itertools.chain.from_iterable(idea() for idea in ideas):
                if setting not in self.trials:
                    return setting
            self._begin_round()
        return self._turns[0] if self._turns else None

    def _begin_round(self) -> None:
        """Begin to repeat the candidates, if the answer is in doubt.

        These are the best, the fastest of fewer workers, and a faster one. Each is repeated twice,
        forward and backward, so that the middle one needs no change.
        """
        known = [self.trials[setting] for setting in self._candidates]
        if self.rounds == THRESHOLDS.repeat_rounds or (
            known and _answer(known).setting == self._expected
        ):
            return
        best, all_cores = self.best, self.best.uses_all_cores(self.limits.cores)
        close = THRESHOLDS.close_on_all_cores if all_cores else THRESHOLDS.close
        enough = math.inf if self._is_as_fast_as_possible else best.steps_per_s
        trials = sorted(self.trials.values(), key=lambda trial: -trial.steps_per_s)
        fewer = [each for each in trials if each.workers < best.workers]
        faster = [each for each in trials if each.workers >= best.workers and each is not best]
        candidates = [best]
        candidates += [t for t in fewer[:1] if t.steps_per_s >= (1 - close) * self.fastest]
        candidates += [t for t in faster[:1] if t.steps_per_s >= (1 - THRESHOLDS.close) * enough]
        if len(candidates) > 1:
            candidates.sort(key=lambda trial: trial.workers)
            self._candidates = [each.setting for each in candidates]
            self._expected = _answer(candidates).setting
            self._turns.extend([*self._candidates, *reversed(self._candidates)])
            self.rounds += 1

    @property
    def best(self) -> LoaderTrial:
        """Trial of the fewest workers that are as fast as any."""
        if self._candidates:
            return _answer([self.trials[setting] for setting in self._candidates])
        fast = [trial for trial in self.trials.values() if self._is_fast(trial)]
        return min(fast, key=_cost)

    @property
    def is_compute_bound(self) -> bool:
        """True if the step bounds the fastest trial, and no setting of the loader."""
        return self.ceiling is not None and is_compute_bound(1 - self.fastest / self.ceiling)

    @property
    def _is_as_fast_as_possible(self) -> bool:
        """True if no setting can be faster. Trials are compared more finely than the verdict."""
        ceiling = self.ceiling
        return ceiling is not None and self.fastest >= (1 - THRESHOLDS.alike) * ceiling

    @property
    def fastest(self) -> float:
        """Steps per second of the fastest setting; 0 before the first trial."""
        return max((trial.steps_per_s for trial in self.trials.values()), default=0.0)

    @property
    def _by_workers(self) -> dict[int, LoaderTrial]:
        """Trials that differ from `_base` only in the number of workers, if there are any."""
        return {
            setting.workers: trial
            for setting, trial in self.trials.items()
            if setting.workers and replace(setting, workers=self._base.workers) == self._base
        }

    def _is_fast(self, trial: LoaderTrial) -> bool:
        return trial.steps_per_s >= (1 - trial.noise) * self.fastest

    def _smoother(self) -> Iterator[LoaderSetting]:
        """Yield settings with more prefetch or smaller tasks, if batches arrive unevenly."""
        trials, memory, space = self._by_workers, self.limits.memory, self._space
        largest, enough = trials[max(trials)], self._enough
        uneven = [] if self._is_as_fast_as_possible else [largest]
        if enough is not None:
            # Workers that were added against uneven batches may not be needed.
            slow = [workers for workers in trials if workers < enough - 1]
            uneven += [trials[max(slow)]] if slow else []
        for trial in uneven:
            if not trial.is_uneven:
                continue
            setting = trial.setting
            fits = (
                k
                for k in space.prefetch
                if memory is None or trial.workers <= memory.most_workers(k)
            )
            deeper = replace(setting, prefetch=max(setting.prefetch, *fits, 0))
            smaller = replace(setting, task_ms=space.task_ms or setting.task_ms)
            yield from (each for each in (deeper, smaller) if not self._was_useless(each, setting))

    def _was_useless(self, other: LoaderSetting, setting: LoaderSetting) -> bool:
        """Return True if the change did not help fewer workers with uneven batches."""
        pairs = (
            (trial, self.trials.get(replace(other, workers=workers)))
            for workers, trial in self._by_workers.items()
            if workers < setting.workers and trial.is_uneven
        )
        return any(changed is not None and not changed.beats(trial) for trial, changed in pairs)

    @property
    def _enough(self) -> int | None:
        """Fewest workers that are fast, of the trials that differ in nothing else."""
        trials = self._by_workers
        return min((workers for workers in trials if self._is_fast(trials[workers])), default=None)

    def _more_workers(self) -> Iterator[LoaderSetting]:
        """Yield more workers than in any trial, if that may be faster."""
        trials = self._by_workers
        largest = max(trials)
        trial, window = trials[largest], trials[largest].window
        most = self._max_workers(window.blocked_share)
        if self._is_as_fast_as_possible or largest >= most:
            return
        others = [trials[workers] for workers in trials if workers < largest]
        if self._is_fast(trial):
            # Trials with other prefetch count, too, unless there were too few workers here.
            others += [other for other in self.trials.values() if other.workers > largest]
        if any(other.steps_per_s >= (1 - other.noise) * trial.steps_per_s for other in others):
            return  # more did not help
        wanted = max(largest + 1, self._needed_workers(trial))
        if 0 < window.busy < THRESHOLDS.busy and window.own_s > 0:
            # Against uneven batches each worker counts as much as the others.
            wanted = max(wanted, math.ceil(largest * window.step_s / window.own_s))
        yield replace(self._base, workers=min(most, wanted))

    def _fewer_workers(self) -> Iterator[LoaderSetting]:
        """Yield a number of workers between too few and the smallest that is fast."""
        trials, enough = self._by_workers, self._enough
        slow = max((workers for workers in trials if workers < (enough or 0)), default=0)
        if enough is None or enough - slow <= 1:
            return
        if slow:
            # Too few workers are always busy, so the rate is proportional to their number.
            wanted = slow * (1 - THRESHOLDS.alike) * self.fastest / trials[slow].steps_per_s
            if wanted > (1 + THRESHOLDS.superlinear) * (enough - 1):
                return  # even the largest of these would need a more than proportional gain
        else:
            # If all of these are needed, one less is tried to confirm; if that is unknown, half.
            most = self._max_workers(trials[enough].window.blocked_share)
            wanted = min(self._needed_workers(trials[enough]), most) or enough // 2
        yield replace(self._base, workers=max(slow + 1, min(enough - 1, math.ceil(wanted))))

    def _variants(self) -> Iterator[LoaderSetting]:
        """Yield settings that may be better than the best one, though its workers suffice."""
        best, setting = self.best, self.best.setting
        if not self._is_as_fast_as_possible and best.uses_all_cores(self.limits.cores):
            yield replace(setting, workers=best.workers - 1)
        for depth in sorted(self._space.prefetch):
            if self._start.prefetch < depth < setting.prefetch:
                yield replace(setting, prefetch=depth)
        if self._space.pin and all(each.pin == setting.pin for each in self.trials):
            yield replace(setting, pin=not setting.pin)
        if self._space.in_process and self._is_tiny(best.window):
            yield replace(self._start, workers=0, pin=setting.pin)

    def _is_tiny(self, window: StepWindow) -> bool:
        """Return True if a step that makes its own batch takes hardly longer than now."""
        own_s = window.own_s if self.ceiling is None else min(window.own_s, 1.0 / self.ceiling)
        if window.work_s > 0:
            return own_s + window.work_s <= (1 + THRESHOLDS.close) * window.step_s
        return window.step_s <= THRESHOLDS.tiny_step_s

    def _max_workers(self, blocked_share: float) -> int:
        """Largest number of workers whose work waits for a share of its time."""
        return self.limits.most(blocked_share, self._base.prefetch)

    def _needed_workers(self, trial: LoaderTrial) -> int:
        """Number of workers that make batches as fast as steps; 0 if unknown."""
        load = trial.window.load()
        if self.ceiling is not None:
            load = replace(load, compute_ms=min(load.compute_ms, 1e3 / self.ceiling))
        if load.compute_ms <= 0 or load.work_ms <= 0:
            return 0
        return workers_needed(load) or MAX_WORKERS


def _cost(trial: LoaderTrial) -> tuple[int, int]:
    return trial.workers, trial.setting.prefetch


def _answer(trials: Sequence[LoaderTrial]) -> LoaderTrial:
    """Return the trial of the fewest workers among those that are alike fast."""
    fastest = max(trial.steps_per_s for trial in trials)
    fast = (each for each in trials if each.steps_per_s >= (1 - THRESHOLDS.alike) * fastest)
    return min(fast, key=_cost)


def check_times(budget_s: float, step_ms: float | None) -> None:
    """Check the time limit of a search and the duration of a step, None for none.

    Raises:
        UsageError: the limit is too short, or a value is negative or not a finite number.
    """
    if step_ms is not None and not (isinstance(step_ms, Real) and 0 <= step_ms < math.inf):
        raise UsageError(
            f"must be a number of milliseconds, 0 or above, got {step_ms!r}", argument="step_ms"
        )
    if not (isinstance(budget_s, Real) and _MIN_BUDGET_S <= budget_s < math.inf):
        raise UsageError(
            f"must be at least {_MIN_BUDGET_S:g} seconds, got {budget_s!r}",
            argument="budget_s",
            hint="a search usually takes 20 seconds for each image size",
        )
