"""`feedline.tune`: the fastest loader settings.

Guarantees: workers of a feedline.DataLoader stay alive between trials. When it returns or raises,
the loader has its former settings and position, and a running iteration continues. Ctrl-C returns
the results so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.engine.defaults import WORKER_BYTES
from feedline.errors import ResourceError, UsageError
from feedline.loader import DataLoader
from feedline.order.schedule import Phase
from feedline.system import available_memory_bytes, usable_cores
from feedline.throughput.limits import WorkerLimits
from feedline.throughput.memory_budget import Room
from feedline.throughput.phase_rates import Rates
from feedline.tuning.arguments import check_budget, check_step_ms
from feedline.tuning.feedline_loader import TunableFeedlineLoader
from feedline.tuning.rates import feedline_rates, torch_rates
from feedline.tuning.search import RepeatedTrials, Search
from feedline.tuning.step_benchmark import MeteredStep, StepBenchmark, UserCodeFailure
from feedline.tuning.torch_loader import TunableTorchLoader
from feedline.tuning.training_step import Step
from feedline.tuning.trial import LoaderSetting, LoaderTrial
from feedline.tuning.tunable import TunableLoader
from feedline.tuning.tuned_phase import SearchStatus, TunedPhase
from feedline.tuning.tuning_result import TuningResult

__all__ = ["TrialCallback", "search_settings", "sleeping_step", "tune"]

TrialCallback = Callable[[int | None, LoaderTrial], object]
"""Function of an image size and the first trial of a setting."""
"""Is called after the first trial of each setting, with the image size."""

_CEILING_S = 1.0
_MIN_S, _MAX_S = 1.0, 2.5  # duration of a trial
_MIN_STEPS = 4  # of a trial: two for warm-up and two that count
_USUAL_TRIALS = 5
_USUAL_REPEATS = 4  # of _MIN_S each
_STEPS = 8  # of a trial, including those of the previous setting
_MEMORY_SHARE = 0.5  # of the available memory


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
    engine has allocated, and smaller tasks. At the end the answer and close candidates are tried
    again in alternating order, as far as time permits, so that no single trial decides. Files
    should be in the page cache, as in later epochs: see `warmup_batches`.

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
    loader: TorchDataLoader[Any],
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    budget_s: float = 60.0,
    on_trial: TrialCallback | None = None,
    warmup_batches: int = 0,
) -> TuningResult:
    """Tune like `tune`, but keep all trials if the step or the dataset raises.

    Args:
        loader, step, step_ms, budget_s, on_trial, warmup_batches: see `tune`.

    Raises:
        UsageError: see `tune`.
    """
    _check(loader, step, step_ms, budget_s, warmup_batches)
    started = time.monotonic()
    tunable: TunableLoader = (
        TunableFeedlineLoader(loader)
        if isinstance(loader, DataLoader)
        else TunableTorchLoader(loader)
    )
    planned = tunable.phases
    largest = max(phase.image_size or 0 for phase in planned)
    start, phases, rates = tunable.start, list[TunedPhase](), list[Rates | None]()
    failure: UserCodeFailure | None = None
    try:
        for k, phase in enumerate(planned):
            left_s = budget_s - (time.monotonic() - started)
            until = time.monotonic() + left_s / (len(planned) - k)
            metered = MeteredStep(step or sleeping_step(step_ms or 0.0, phase.image_size, largest))
            found, failure = _tune_phase(tunable, metered, phase, until, on_trial, warmup_batches)
            phases.append(found)
            if isinstance(loader, DataLoader):
                rates.append(feedline_rates(loader, found, metered.cpu_s))
            else:
                rates.append(torch_rates(found, metered.cpu_s))
            if found.status in ("interrupted", "error"):
                break
    finally:
        tunable.close()
    return TuningResult(
        phases=tuple(phases),
        seconds=time.monotonic() - started,
        batch_size=loader.batch_size,
        loader="feedline" if isinstance(loader, DataLoader) else "torch",
        start=start,
        rates=tuple(each for each in rates if each is not None),
        failure=failure,
        files=f"{warmup_batches} batches of each size loaded beforehand"
        if warmup_batches
        else "not loaded beforehand",
    )


def sleeping_step(step_ms: float, size: int | None, largest: int) -> Step:
    """Return a step that sleeps, in proportion to the pixels of the largest size."""
    share = (size / largest) ** 2 if size and largest else 1.0

    def step(batch: Any) -> None:
        time.sleep(step_ms * share / 1000)

    return step


def _tune_phase(
    tunable: TunableLoader,
    step: MeteredStep,
    phase: Phase,
    until: float,
    on_trial: TrialCallback | None,
    warmup_batches: int,
) -> tuple[TunedPhase, UserCodeFailure | None]:
    """Search in one phase. Also return the exception in user code that ended the search."""
    ceiling, search, repeated, failure = None, None, None, None
    status: SearchStatus = "done"
    benchmark = StepBenchmark(tunable, step, phase.image_size)
    started, ready_s = time.monotonic(), 0.0
    try:
        tunable.begin(phase)
        benchmark.discard_batches(warmup_batches, until)
        ceiling_s = min(_CEILING_S, max(0.0, until - time.monotonic()) / 8)
        ceiling = benchmark.ceiling(ceiling_s, until)
        ready_s = time.monotonic() - started
        limits, memory = (
            WorkerLimits(cores=usable_cores()),
            _memory_budget(tunable.start, benchmark),
        )
        search = Search(limits, tunable.start, ceiling, tunable.search_space, memory)
        while (setting := search.next()) is not None:
            left_s = until - time.monotonic()
            if left_s < max(_MIN_S, _MIN_STEPS / ceiling):
                status = "budget"
                break
            trial = benchmark.trial(
                setting,
                min_s=_MIN_S,
                max_s=min(_MAX_S, left_s),
                fastest=max((each.steps_per_s for each in search.trials.values()), default=None),
            )
            search.add(trial)
            if on_trial is not None:
                on_trial(phase.image_size, trial)
        if status == "done":
            repeated = RepeatedTrials(search.candidates)
            _repeat_trials(repeated, benchmark, 1 / ceiling, until)
    except KeyboardInterrupt:
        status = "interrupted"
    except ResourceError:
        if search is None or not search.trials:
            raise
        status = "resources"
    except UsageError:
        raise
    except Exception as error:
        status, failure = "error", step.failure(error)
    known = search is not None and bool(search.trials)
    best = search.best if search is not None and known else None
    if search is not None and repeated is not None:
        search.trials.update(repeated.trials)
        best = repeated.best
    found = TunedPhase(
        size=phase.image_size,
        batch_size=tunable.batch_size,
        ceiling=ceiling,
        trials=tuple(search.trials.values()) if search is not None else (),
        best=best,
        is_compute_bound=search is not None and known and search.is_compute_bound,
        status=status,
        full_search_s=_full_search_s(ceiling, ready_s),
        error="" if failure is None else failure.summary,
    )
    return found, failure


def _repeat_trials(
    repeated: RepeatedTrials, benchmark: StepBenchmark, step_s: float, until: float
) -> None:
    """Repeat trials of the candidates while there is time for a whole round."""
    max_s = max(_MIN_S, 2 * _STEPS * step_s)
    while (setting := repeated.next()) is not None:
        if until - time.monotonic() < repeated.turns * (max_s + _STEPS * step_s):
            break
        repeated.add(benchmark.trial(setting, min_s=_MIN_S / 2, max_s=max_s))


def _memory_budget(start: LoaderSetting, benchmark: StepBenchmark) -> Room:
    """Memory budget for workers and their prefetched batches."""
    whole_batches = start.task_ms is None
    return Room(
        free=int(_MEMORY_SHARE * available_memory_bytes()),
        workers=start.workers,
        ahead=start.prefetch if whole_batches else 0,
        worker_bytes=WORKER_BYTES,
        batch_bytes=benchmark.batch_bytes if whole_batches else 0,
    )


def _full_search_s(ceiling: float | None, ready_s: float) -> float:
    """Estimate the duration of a usual search, including warm-up steps.

    Args:
        ceiling: compute-bound steps per second.
        ready_s: seconds until the first trial could start.
    """
    step_s = 1.0 / ceiling if ceiling else 0.0
    repeats_s = _USUAL_REPEATS * max(_MIN_S, 3 * _STEPS * step_s)
    return max(ready_s, _CEILING_S) + _USUAL_TRIALS * max(_MAX_S, _STEPS * step_s) + repeats_s


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
    check_step_ms(step_ms)
    check_budget(budget_s)
    if (
        isinstance(warmup_batches, bool)
        or not isinstance(warmup_batches, int)
        or warmup_batches < 0
    ):
        raise UsageError(
            f"warmup_batches must be a whole number, 0 or above, got {warmup_batches!r}"
        )
    if not isinstance(loader, TorchDataLoader):
        raise UsageError(
            f"tune needs a feedline.DataLoader or a torch.utils.data.DataLoader, got "
            f"{type(loader).__name__}",
            hint="feedline.DataLoader accepts any Dataset and torch's arguments",
        )
