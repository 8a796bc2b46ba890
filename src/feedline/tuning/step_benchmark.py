"""Benchmark of a training step over a loader whose settings change.

Guarantees: a trial counts only steps whose batches were loaded entirely with its setting and by all
workers. It ends once its error is small or another setting is clearly faster. It knows the cores
that other programs used meanwhile.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import feedline
from feedline.machine import OtherPrograms
from feedline.private_names import find_private
from feedline.system import usable_cores
from feedline.throughput.rates import PoolRate, Rates, pool_rate
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import RateMeter, StepWindow, error_of
from feedline.tuning.loaders import TunableLoader
from feedline.tuning.search import LoaderSetting, LoaderTrial
from feedline.tuning.training_step import Step

__all__ = ["StepBenchmark", "UserCodeFailure"]

_pytree = find_private("torch.utils._pytree")

_START_TIMEOUT_S = 60.0

_LIBRARIES = tuple(f"{Path(module.__file__ or '').parent}/" for module in (feedline, torch))
_WORKER_TRACEBACK = "\nOriginal Traceback"  # torch's text in the exception of a worker
_MAX_CHARACTERS = 300


class StepBenchmark:
    """Runs and times training steps over a loader. They really train.

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
        known = [trial for trial in trials if trial.window.tasks_s > 0]
        if not known or known[0] is not trials[0]:
            return None
        loader, points = self._loader, tuple(map(self._point, known))
        return Rates(
            size=loader.image_size,
            rows=loader.mean_rows(),
            points=points,
            level_px=loader.copies_px(),
        )

    def _point(self, trial: LoaderTrial) -> PoolRate:
        found = pool_rate(
            trial.window,
            error=trial.error,
            cores=usable_cores(),
            compute_s=self._alone_s,
            step_cpu_s=self.step_cpu_s,
            hand_cpu_s=(trial.wait_cpu_s or 0.0) if trial.workers else 0.0,
            usual_wait_s=trial.usual_wait_s,
        )
        if trial.workers:
            return found
        # Nothing is handed over, and no batch is late.
        return replace(found, load=replace(found.load, hand_ms=0.0, late_ms=0.0))

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
        ).with_tasks(before, loader.stage_timings())
        if not setting.workers:  # the wait is the work
            on_core = sum(waits_cpu_s) / window.wait_s if window.wait_s else 1.0
            window = replace(window, tasks_s=window.wait_s, on_core=min(1.0, on_core), queued=0.0)
        return LoaderTrial(
            setting=setting,
            window=window,
            error=error,
            start_s=loader.start_s,
            usual_wait_s=statistics.median(waits_s),
            wait_cpu_s=statistics.fmean(waits_cpu_s),
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


@dataclass(frozen=True, slots=True)
class UserCodeFailure:
    """An exception of the training step or the dataset.

    Its traceback has only frames of user code, and a worker's traceback once.
    """

    error: Exception
    where: Literal["the step", "loading a batch"]

    @property
    def summary(self) -> str:
        """One line: the code that raised, and the message."""
        text, kind = str(self.error).strip(), type(self.error).__name__
        if _WORKER_TRACEBACK in f"\n{text}":
            last = text.splitlines()[-1]  # of the worker's traceback
        else:
            last = f"{kind}: {text.splitlines()[0]}" if text else kind
        return f"{self.where} raised {last[:_MAX_CHARACTERS]}"

    @property
    def traceback(self) -> str:
        """Traceback with the frames of user code."""
        found = traceback.TracebackException.from_exception(self.error)
        own = [frame for frame in found.stack if not frame.filename.startswith(_LIBRARIES)]
        found.stack = traceback.StackSummary.from_list(own)
        return "".join(found.format() if own else found.format_exception_only()).rstrip()
