"""`feedline.tune`: the fastest loader settings.

Guarantees: workers of a feedline.DataLoader stay alive between trials. When it returns or raises,
the loader has its former settings and position, and a running iteration continues. Ctrl-C returns
the results so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.engine.defaults import WORKER_BYTES
from feedline.errors import ResourceError, UsageError
from feedline.loader import DataLoader
from feedline.order.schedule import Phase, is_count
from feedline.system import available_memory_bytes, usable_cores
from feedline.throughput.limits import MemoryBudget, WorkerLimits
from feedline.throughput.rates import Rates
from feedline.throughput.step_model import Part, bottleneck
from feedline.throughput.thresholds import THRESHOLDS
from feedline.tuning.loaders import TunableFeedlineLoader, TunableLoader, TunableTorchLoader
from feedline.tuning.result import SearchStatus, TunedPhase, TuningResult
from feedline.tuning.search import LoaderSetting, LoaderTrial, Search, check_times
from feedline.tuning.step_benchmark import StepBenchmark, UserCodeFailure
from feedline.tuning.training_step import Step

__all__ = ["SearchProgress", "TrialCallback", "search_settings", "tune"]

TrialCallback = Callable[[int | None, LoaderTrial], object]
"""Is called after the first trial of each setting, with the image size."""

_USUAL_TRIALS = 5
_USUAL_REPEATS = 4  # of `trial_s` each


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchProgress:
    """State of a search, before each trial."""

    size: int | None  # image size of the phase; None if the loader has no sizes
    setting: LoaderSetting | None  # tried next; None for the step without loading
    latest: LoaderTrial | None  # of the phase; None before the first
    trials: int  # finished ones of all phases
    trials_left: int  # that usually follow
    seconds: float
    seconds_left: float  # estimated


def tune(
    loader: TorchDataLoader[Any],
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    budget_s: float = 60.0,
    on_trial: TrialCallback | None = None,
    warmup_batches: int = 0,
) -> TuningResult:
    """Find the fewest workers that reach the highest throughput, for each image size.

    If batches arrive unevenly, also tries more prefetch, within the memory that the image-row
    engine has allocated, and smaller tasks; if steps or batches are tiny, no workers. At the end
    the answer and close candidates are tried again in alternating order, as far as time permits, so
    that no single trial decides. Files should be in the page cache, as in later epochs: see
    `warmup_batches`.

    Args:
        loader: a feedline.DataLoader with workers, of which batches are consumed; afterwards it has
            its former position, and a running iteration continues with its next batch. Or a
            torch.utils.data.DataLoader, which is copied for each trial; then prefetch_factor, and
            with a GPU pin_memory, are tried as well.
        step: training step on a batch, including the copy to the device, that waits for its result
            (`torch.cuda.synchronize`). It really trains.
        step_ms: instead of `step`, duration of a step at the largest size; shorter at smaller ones
            in proportion to the pixels. The process sleeps for that time.
        budget_s: time limit in seconds. A running step is finished, and each size needs at least
            one.
        on_trial: called after the first trial of each setting with the image size.
        warmup_batches: batches of each size that are loaded without a step before the measurement.

    Raises:
        UsageError: neither or both of `step` and `step_ms`; the loader has no workers, or their
            number cannot change; the budget is too short.
        Exception: any error of the step or the dataset.

    Example:
        >>> found = feedline.tune(loader, train_step)                           # doctest: +SKIP
        >>> print(found)                                                        # doctest: +SKIP
    """
    found = search_settings(
        loader,
        step,
        step_ms=step_ms,
        budget_s=budget_s,
        on_trial=on_trial,
        warmup_batches=warmup_batches,
    )
    if found.failure is not None:
        raise found.failure.error
    return found


def search_settings(
    loader: TorchDataLoader[Any] | TunableLoader,
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    budget_s: float = 60.0,
    on_trial: TrialCallback | None = None,
    on_progress: Callable[[SearchProgress], object] | None = None,
    warmup_batches: int = 0,
) -> TuningResult:
    """Tune like `tune`, but keep all trials if the step or the dataset raises.

    `on_progress` is called before each trial.
    """
    _check(loader, step, step_ms, budget_s, warmup_batches)
    if isinstance(loader, TunableLoader):
        tunable = loader
    elif isinstance(loader, DataLoader):
        tunable = TunableFeedlineLoader(loader)
    else:
        tunable = TunableTorchLoader(loader)
    largest = max(phase.image_size or 0 for phase in tunable.phases)
    batch_size = tunable.batch_size  # before a phase sets another
    tuning = _Tuning(tunable, budget_s, on_trial, on_progress)
    try:
        for phase in tuning.planned:
            run = step or _sleeping_step(step_ms or 0.0, phase.image_size, largest)
            if tuning.search_phase(phase, run, warmup_batches) in ("interrupted", "error"):
                break
    finally:
        tunable.close()
    files = f"{warmup_batches} batches of each size" if warmup_batches else "not"
    return TuningResult(
        phases=tuple(tuning.phases),
        seconds=time.monotonic() - tuning.started,
        batch_size=batch_size,
        loader=tunable.kind,
        start=tunable.start,
        rates=tuple(tuning.rates),
        failure=tuning.failure,
        files=f"{files} loaded beforehand",
    )


def _sleeping_step(step_ms: float, size: int | None, largest: int) -> Step:
    """Return a step that sleeps, in proportion to the pixels of the largest size."""
    share = (size / largest) ** 2 if size and largest else 1.0
    return lambda batch: time.sleep(step_ms * share / 1000)


class _Tuning:
    """Searches in all phases of a loader, one after the other."""

    def __init__(
        self,
        tunable: TunableLoader,
        budget_s: float,
        on_trial: TrialCallback | None,
        on_progress: Callable[[SearchProgress], object] | None,
    ) -> None:
        self._tunable, self._on_trial, self._on_progress = tunable, on_trial, on_progress
        self._trials = 0
        self.started = self._until = time.monotonic()
        self._end = self.started + budget_s
        self.planned = tunable.phases
        self.phases: list[TunedPhase] = []
        self.rates: list[Rates] = []
        self.failure: UserCodeFailure | None = None

    def search_phase(self, phase: Phase, step: Step, warmup_batches: int) -> SearchStatus:
        """Search in one phase and store its result. Return how it ended."""
        tunable, size, begun = self._tunable, phase.image_size, time.monotonic()
        until = begun + (self._end - begun) / (len(self.planned) - len(self.phases))
        self._until = until
        ceiling, search, ready_s = None, None, 0.0
        status: SearchStatus = "done"
        benchmark = StepBenchmark(tunable, step)
        self._report(size)
        try:
            tunable.begin(phase)
            benchmark.discard_batches(warmup_batches, until)
            ceiling_s = min(THRESHOLDS.ceiling_s, max(0.0, until - time.monotonic()) / 8)
            ceiling = benchmark.ceiling(ceiling_s, until)
            ready_s = time.monotonic() - begun
            search = Search(
                WorkerLimits(cores=usable_cores()),
                tunable.start,
                ceiling,
                tunable.search_space,
                _memory_budget(tunable.start, benchmark.batch_bytes),
            )
            status = self._run_trials(search, benchmark, size, 1 / ceiling)
        except KeyboardInterrupt:
            status = "interrupted"
        except ResourceError:
            if search is None or not search.trials:
                raise
            status = "resources"
        except UsageError:
            raise
        except Exception as error:
            status, self.failure = "error", benchmark.failure(error)
        trials = () if search is None else tuple(search.trials.values())
        best = search.best if search is not None and trials else None
        rates = benchmark.rates(sorted(trials, key=lambda trial: trial is not best))
        compute_bound = search is not None and best is not None and search.is_compute_bound
        part: Part | None = "compute" if compute_bound else None
        if rates is not None:
            self.rates.append(rates)
            part = part or bottleneck(rates.now.load, waits=True)
        self.phases.append(
            TunedPhase(
                size=size,
                batch_size=tunable.batch_size,
                ceiling=ceiling,
                trials=trials,
                best=best,
                is_compute_bound=compute_bound,
                status=status,
                full_search_s=_full_search_s(ceiling, ready_s),
                bottleneck=part,
                error="" if self.failure is None else self.failure.summary,
                copies_px=None if rates is None else rates.level_px,
            )
        )
        return status

    def _run_trials(
        self, search: Search, benchmark: StepBenchmark, size: int | None, step_s: float
    ) -> SearchStatus:
        """Try settings until the answer is known, or the time is over."""
        latest = None
        while (setting := search.next()) is not None:
            left_s = self._until - time.monotonic()
            is_new = setting not in search.trials
            if is_new:
                min_s, max_s = THRESHOLDS.trial_s, min(THRESHOLDS.max_trial_s, left_s)
                if left_s < max(THRESHOLDS.trial_s, THRESHOLDS.min_trial_steps * step_s):
                    return "done" if search.rounds else "budget"
            else:
                steps_s = THRESHOLDS.usual_trial_steps * step_s
                min_s, max_s = THRESHOLDS.trial_s / 2, max(THRESHOLDS.trial_s, 2 * steps_s)
                if left_s < search.turns * (max_s + steps_s):
                    return "done"  # not without the rest of the round
            self._report(size, search, setting, latest)
            fastest = search.fastest if is_new else None
            latest = benchmark.trial(setting, min_s=min_s, max_s=max_s, fastest=fastest)
            search.add(latest)
            self._trials += 1
            if is_new and self._on_trial is not None:
                self._on_trial(size, latest)
        return "done"

    def _report(
        self,
        size: int | None,
        search: Search | None = None,
        setting: LoaderSetting | None = None,
        latest: LoaderTrial | None = None,
    ) -> None:
        """Report the progress: a usual search is assumed until repeated trials are known."""
        if self._on_progress is None:
            return
        now, usual = time.monotonic(), _USUAL_TRIALS + _USUAL_REPEATS
        left = usual if search is None else search.turns or max(1, usual - len(search.trials))
        later = usual * (len(self.planned) - len(self.phases) - 1)
        each_s = THRESHOLDS.trial_s if latest is None else latest.window.seconds
        left_s = min(max(0.0, self._until - now), left * each_s) + later * each_s
        progress = SearchProgress(
            size=size,
            setting=setting,
            latest=latest,
            trials=self._trials,
            trials_left=left + later,
            seconds=now - self.started,
            seconds_left=min(max(0.0, self._end - now), left_s),
        )
        self._on_progress(progress)


def _memory_budget(start: LoaderSetting, batch_bytes: int) -> MemoryBudget:
    """Memory budget for workers and their prefetched batches."""
    whole_batches = start.task_ms is None
    return MemoryBudget(
        free=int(THRESHOLDS.memory_share * available_memory_bytes()),
        workers=start.workers,
        ahead=start.prefetch if whole_batches else 0,
        worker_bytes=WORKER_BYTES,
        batch_bytes=batch_bytes if whole_batches else 0,
    )


def _full_search_s(ceiling: float | None, ready_s: float) -> float:
    """Estimate the duration of a usual search; the first trial could start after `ready_s`."""
    steps_s = THRESHOLDS.usual_trial_steps / ceiling if ceiling else 0.0
    trials_s = _USUAL_TRIALS * max(THRESHOLDS.max_trial_s, steps_s)
    repeats_s = _USUAL_REPEATS * max(THRESHOLDS.trial_s, 3 * steps_s)
    return max(ready_s, THRESHOLDS.ceiling_s) + trials_s + repeats_s


def _check(
    loader: object, step: Step | None, step_ms: float | None, budget_s: float, warmup_batches: int
) -> None:
    if (step is None) == (step_ms is None):
        raise UsageError(
            "tune needs either step=, a function that trains on a batch, or step_ms=, the duration "
            "of a training step; the number of workers depends on it"
        )
    if step is not None and not callable(step):
        raise UsageError(f"step must be a function of a batch, got {type(step).__name__}")
    check_times(budget_s, step_ms)
    if not is_count(warmup_batches):
        raise UsageError(
            f"warmup_batches must be a whole number, 0 or above, got {warmup_batches!r}"
        )
    if not isinstance(loader, TorchDataLoader | TunableLoader):
        raise UsageError(
            f"tune needs a feedline.DataLoader or a torch.utils.data.DataLoader, got "
            f"{type(loader).__name__}",
            hint="feedline.DataLoader accepts any Dataset and torch's arguments",
        )
