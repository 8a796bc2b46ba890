"""`feedline.tune`: the fastest loader settings, by timing a training step over the loader.

Guarantees: workers of a feedline.DataLoader stay alive between trials. When it returns or raises,
the loader has its former settings and position, and a running iteration continues. Ctrl-C returns
the results so far. A trial knows the cores that other programs used meanwhile.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.engine.defaults import memory_budget
from feedline.errors import ResourceError, UsageError
from feedline.loader import DataLoader
from feedline.machine import OtherPrograms
from feedline.order.schedule import Phase, is_count
from feedline.private_names import find_private
from feedline.profile.watch import WatchedLoader
from feedline.system import usable_cores
from feedline.throughput.step_model import Part, WorkerLimits, bottleneck
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.what_if import Rates
from feedline.throughput.windows import RateMeter, StepWindow, error_of, pool_rate
from feedline.tuning.loaders import TunableFeedlineLoader, TunableLoader, TunableTorchLoader
from feedline.tuning.result import SearchStatus, TunedPhase, TuningResult, UserCodeFailure
from feedline.tuning.search import LoaderSetting, LoaderTrial, Search, check_times
from feedline.tuning.training_step import Step

_pytree = find_private("torch.utils._pytree")

TrialCallback = Callable[[int | None, LoaderTrial], object]
"""Is called after the first trial of each setting, with the image size."""

_START_TIMEOUT_S = 60.0
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
    loader: TorchDataLoader[Any] | WatchedLoader[Any],
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
            with a GPU pin_memory, are tried as well. Of a watched loader, the loader within.
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
    unwatched: Any = loader.iterable if isinstance(loader, WatchedLoader) else loader
    found = search_settings(
        unwatched,
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


class StepBenchmark:
    """Runs and times training steps over a loader. They really train.

    A trial counts only steps whose batches were loaded entirely with its setting and by all
    workers. It ends once its error is small or another setting is clearly faster.
    `single_warmup` is for long steps: one untimed step instead of two.
    """

    def __init__(self, loader: TunableLoader, step: Step, *, single_warmup: bool = False) -> None:
        self._loader = loader
        self._step = step
        self._warmup_steps = 1 if single_warmup else THRESHOLDS.warmup_steps
        self.batch_bytes = 0
        """Size of the tensors in a batch; 0 before `ceiling` has loaded one."""
        self._alone_s: float | None = None
        self._steps = self._cpu_ns = 0
        self._step_error: Exception | None = None

    @property
    def step_cpu_s(self) -> float:
        """Mean CPU time of a step, all threads together."""
        return self._cpu_ns / 1e9 / max(1, self._steps)

    def _run_step(self, batch: Any) -> None:
        start_ns = time.process_time_ns()
        try:
            self._step(batch)
        except Exception as error:
            self._step_error = error
            raise
        self._cpu_ns += time.process_time_ns() - start_ns
        self._steps += 1

    def failure(self, error: Exception) -> UserCodeFailure:
        """Attribute an exception to the step or to the loader."""
        is_step = error is self._step_error
        return UserCodeFailure(error, "the step" if is_step else "loading a batch")

    def rates(self, trials: Sequence[LoaderTrial]) -> Rates | None:
        """Return the measured rates of the current phase, from which others are predicted.

        The best trial is the first. None without trials, or if its workers noted no times: they are
        of an unsupported torch release, or could not map their page.
        """
        windows = [trial.window for trial in trials if trial.window.tasks_s > 0]
        if not windows or windows[0] is not trials[0].window:
            return None
        cores, alone_s, cpu_s = usable_cores(), self._alone_s, self.step_cpu_s
        return self._loader.rates(
            tuple(
                pool_rate(each, cores=cores, compute_s=alone_s, step_cpu_s=cpu_s)
                for each in windows
            )
        )

    def discard_batches(self, batches: int, until: float = math.inf) -> None:
        """Load batches without a step, for example to read their files into the page cache.

        `until` is the end on the monotonic clock.
        """
        for _ in range(batches):
            if time.monotonic() >= until:
                break
            self._loader.next()

    def ceiling(self, seconds: float, until: float = math.inf) -> float:
        """Measure the compute-bound rate: steps per second over batches kept in memory.

        `until` is the end on the monotonic clock, for long steps. Then only the last step counts.
        """
        kept = []
        for _ in range(THRESHOLDS.kept_batches):
            batch = _pytree.tree_map(_clone, self._loader.next())
            kept.append(batch)
            start = time.perf_counter()
            self._run_step(batch)
            if time.monotonic() >= until:
                self._alone_s = max(1e-9, time.perf_counter() - start)
                return 1 / self._alone_s
        tensors = [leaf for leaf in _pytree.tree_leaves(kept) if isinstance(leaf, Tensor)]
        self.batch_bytes = sum(each.numel() * each.element_size() for each in tensors) // len(kept)
        meter = RateMeter(seconds, least=THRESHOLDS.kept_batches, until=until)
        for batch in itertools.cycle(kept):
            self._run_step(batch)
            if not meter.add():
                break
        self._alone_s = 1 / meter.per_s
        return meter.per_s

    def trial(
        self, setting: LoaderSetting, *, min_s: float, max_s: float, fastest: float | None = None
    ) -> LoaderTrial:
        """Measure a setting for `min_s`, and up to `max_s` if figures vary.

        A trial clearly slower than `fastest`, in steps per second, ends early. Raises errors of the
        step and the dataset, and ResourceError if there is not enough memory.
        """
        loader = self._loader
        # Batches from the previous setting do not count.
        self.discard_batches(loader.change(setting))
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not loader.all_started and time.monotonic() < deadline:
            self._time_step()
        others = OtherPrograms()
        for _ in range(self._warmup_steps):
            self._time_step()
        before, times = loader.stage_timings(), list[tuple[float, float, float]]()
        meter = RateMeter(min_s, least=THRESHOLDS.trial_steps)
        while True:
            times.append(self._time_step())
            more = meter.add()
            if meter.steps < 2 or (more and meter.seconds < max_s):
                continue
            error = error_of([step_s for step_s, _, _ in times])
            if meter.seconds >= max_s or _is_precise(meter, error, (min_s + max_s) / 2, fastest):
                break
        steps_s, waits_s, waits_cpu_s = zip(*times, strict=True)
        window = StepWindow(
            phase=None,
            steps=len(times),
            seconds=sum(steps_s),
            wait_s=sum(waits_s),
            workers=setting.workers,
            error=error,
            usual_wait_s=statistics.median(waits_s),
            wait_cpu_s=statistics.fmean(waits_cpu_s),
        ).with_tasks(before, loader.stage_timings())
        if not setting.workers:  # the wait is the work
            on_core = sum(waits_cpu_s) / window.wait_s if window.wait_s else 1.0
            window = replace(window, tasks_s=window.wait_s, on_core=min(1.0, on_core), queued=0.0)
        return LoaderTrial(
            setting=setting,
            window=window,
            start_s=loader.start_s,
            other_cores=others.cores(),
        )

    def _time_step(self) -> tuple[float, float, float]:
        """Run a step. Return its time, its data wait and the CPU time of the wait, in seconds."""
        start, start_cpu = time.perf_counter(), time.thread_time()
        batch = self._loader.next()
        loaded, loaded_cpu = time.perf_counter(), time.thread_time()
        self._run_step(batch)
        return time.perf_counter() - start, loaded - start, loaded_cpu - start_cpu


def _is_precise(meter: RateMeter, error: float, half_s: float, fastest: float | None) -> bool:
    """Return True if the error is small, or another setting is clearly faster."""
    early = meter.seconds < half_s
    small = THRESHOLDS.trial_error if early else THRESHOLDS.later_trial_error
    slower = THRESHOLDS.clearly_slower
    is_slower = meter.per_s * (1 + error) < (1 - slower) * (fastest or 0.0)
    return error <= small or (is_slower and error < slower)


def _clone(leaf: Any) -> Any:
    """Copy a tensor of a batch; containers keep their type."""
    return leaf.clone() if hasattr(leaf, "clone") else leaf


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
        self._size: int | None = None
        self.started = self._until = time.monotonic()
        self._end = self.started + budget_s
        self.planned = tunable.phases
        self.phases: list[TunedPhase] = []
        self.rates: list[Rates] = []
        self.failure: UserCodeFailure | None = None

    def search_phase(self, phase: Phase, step: Step, warmup_batches: int) -> SearchStatus:
        """Search in one phase and store its result. Return how it ended."""
        tunable, start_s = self._tunable, time.monotonic()
        self._size = phase.image_size
        self._until = start_s + (self._end - start_s) / (len(self.planned) - len(self.phases))
        limits = WorkerLimits(cores=usable_cores())
        search = Search(limits, tunable.start, space=tunable.search_space)
        benchmark, ready_s = StepBenchmark(tunable, step), 0.0
        self._report(search)
        try:
            tunable.begin(phase)
            benchmark.discard_batches(warmup_batches, self._until)
            ceiling_s = min(THRESHOLDS.ceiling_s, max(0.0, self._until - time.monotonic()) / 8)
            search.ceiling = benchmark.ceiling(ceiling_s, self._until)
            ahead, batch_bytes = tunable.start.prefetch, benchmark.batch_bytes
            if tunable.start.task_ms is not None:  # batches of rows have their memory
                ahead = batch_bytes = 0
            memory = memory_budget(tunable.start.workers, ahead, batch_bytes)
            search.limits = replace(limits, memory=memory)
            ready_s = time.monotonic() - start_s
            status = self._run_trials(search, benchmark, 1 / search.ceiling)
        except KeyboardInterrupt:
            status = "interrupted"
        except ResourceError:
            if not search.trials:
                raise
            status = "resources"
        except UsageError:
            raise
        except Exception as error:
            status, self.failure = "error", benchmark.failure(error)
        trials = tuple(search.trials.values())
        best = search.best if trials else None
        part: Part | None = "compute" if search.is_compute_bound else None
        rates = benchmark.rates(sorted(trials, key=lambda trial: trial is not best))
        if rates is not None:
            self.rates.append(rates)
            part = part or bottleneck(rates.now.load, waits=True)
        self.phases.append(
            TunedPhase(
                size=phase.image_size,
                batch_size=tunable.batch_size,
                ceiling=search.ceiling,
                trials=trials,
                best=best,
                is_compute_bound=search.is_compute_bound,
                status=status,
                full_search_s=_full_search_s(search.ceiling, ready_s),
                bottleneck=part,
                error="" if self.failure is None else self.failure.summary,
                copies_px=None if rates is None else rates.level_px,
            )
        )
        return status

    def _run_trials(self, search: Search, benchmark: StepBenchmark, step_s: float) -> SearchStatus:
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
            self._report(search, setting, latest)
            fastest = search.fastest if is_new else None
            latest = benchmark.trial(setting, min_s=min_s, max_s=max_s, fastest=fastest)
            search.add(latest)
            self._trials += 1
            if is_new and self._on_trial is not None:
                self._on_trial(self._size, latest)
        return "done"

    def _report(
        self,
        search: Search,
        setting: LoaderSetting | None = None,
        latest: LoaderTrial | None = None,
    ) -> None:
        """Report the progress: a usual search is assumed until repeated trials are known."""
        if self._on_progress is None:
            return
        now, usual = time.monotonic(), _USUAL_TRIALS + _USUAL_REPEATS
        left = search.turns or max(1, usual - len(search.trials))
        later = usual * (len(self.planned) - len(self.phases) - 1)
        each_s = THRESHOLDS.trial_s if latest is None else latest.window.seconds
        left_s = min(max(0.0, self._until - now), left * each_s) + later * each_s
        progress = SearchProgress(
            size=self._size,
            setting=setting,
            latest=latest,
            trials=self._trials,
            trials_left=left + later,
            seconds=now - self.started,
            seconds_left=min(max(0.0, self._end - now), left_s),
        )
        self._on_progress(progress)


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
