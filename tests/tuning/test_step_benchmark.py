"""The benchmark of a training step on a simulated clock: budgets, batches and missing memory."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from feedline.errors import ResourceError
from feedline.throughput import windows
from feedline.timing.stage_page import StageTimings
from feedline.tuning import step_benchmark
from feedline.tuning import tune as tune_module
from feedline.tuning.loaders import TunableLoader
from feedline.tuning.result import TunedPhase
from feedline.tuning.search import LoaderSetting, SearchSpace
from feedline.tuning.step_benchmark import StepBenchmark
from feedline.tuning.tune import SearchProgress, search_settings


class Batch(NamedTuple):
    images: torch.Tensor
    labels: list[int]


class Ready(TunableLoader):
    """A loader that always has a batch ready, with any number of workers."""

    kind = "feedline"
    start = LoaderSetting(workers=2, prefetch=2)
    search_space = SearchSpace()
    batch_size = 4

    def __init__(self, most: int = 64) -> None:
        self.most = most
        self.given = 0

    def next(self) -> Batch:
        self.given += 1
        return Batch(torch.zeros(4, 8), [1, 2, 3, 4])

    def change(self, setting: LoaderSetting) -> int:
        if setting.workers > self.most:
            raise ResourceError("there is no process for one more")
        return 0

    def stage_timings(self) -> StageTimings:
        return StageTimings()

    def rates(self, trials: Any, *, compute_s: Any, step_cpu_s: Any) -> None:
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Simulated time in seconds, advanced by tests."""
    clock = [1000.0]
    clocks = ("monotonic", "perf_counter", "thread_time", "process_time_ns")
    time = SimpleNamespace(**dict.fromkeys(clocks, lambda: clock[0]))
    monkeypatch.setattr(tune_module, "time", time)
    monkeypatch.setattr(step_benchmark, "time", time)
    monkeypatch.setattr(windows, "time", time)
    return clock


def searched(
    now: list[float], loader: Ready, step_s: float, budget_s: float, **options: Any
) -> TunedPhase:
    def step(batch: Any) -> None:
        now[0] += step_s

    found = search_settings(loader, step, budget_s=budget_s, **options)
    assert found.failure is None
    (phase,) = found.phases
    return phase


@pytest.mark.parametrize("step_s", [0.3, 1.0, 3.0, 5.0, 11.0, 60.0, 600.0])
def test_long_steps_end_within_a_step_of_the_budget(now: list[float], step_s: float) -> None:
    begun = now[0]
    found = searched(now, Ready(), step_s, budget_s=60)
    assert now[0] - begun <= 60 + step_s
    assert found.ceiling == pytest.approx(1 / step_s)
    if found.best is None:
        assert found.status == "budget"
        assert found.full_search_s > 60
        assert f"{found.full_search_s:.0f} s" in found.reason


def test_a_budget_that_is_over_lets_one_step_say_how_long_they_are(now: list[float]) -> None:
    found = searched(now, Ready(), 4.0, budget_s=2)
    assert (found.best, found.status) == (None, "budget")
    assert found.full_search_s >= 5 * 8 * 4.0


def test_files_are_read_before_no_longer_than_the_budget(now: list[float]) -> None:
    class Slow(Ready):
        def next(self) -> Batch:
            now[0] += 10.0
            return super().next()

    loader = Slow()
    found = searched(now, loader, 0.0, budget_s=60, warmup_batches=1000)
    assert loader.given == 7  # six within the budget, and one for a step
    assert (found.best, found.status) == (None, "budget")


def test_missing_resources_end_search_with_partial_result(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_module, "usable_cores", lambda: 8)

    class Waits(Ready):
        def next(self) -> Batch:
            now[0] += 1.0
            return super().next()

    found = searched(now, Waits(most=2), 0.01, budget_s=600)
    assert (found.status, [trial.workers for trial in found.trials]) == ("resources", [2])
    with pytest.raises(ResourceError, match="no process"):
        searched(now, Waits(most=1), 0.01, budget_s=600)


def test_workers_have_memory_for_the_batches_that_they_make(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the free memory holds one more worker with its batches of 128 bytes."""
    monkeypatch.setattr(tune_module, "available_memory_bytes", lambda: 2 * (60 + 2 * 128))
    monkeypatch.setattr(tune_module, "WORKER_BYTES", 60)
    monkeypatch.setattr(tune_module, "usable_cores", lambda: 8)

    class Waits(Ready):
        workers = 2

        def change(self, setting: LoaderSetting) -> int:
            self.workers = setting.workers
            return 0

        def next(self) -> Batch:
            now[0] += 1.0 / self.workers
            return super().next()

    found = searched(now, Waits(), 0.01, budget_s=600)
    assert max(trial.workers for trial in found.trials) == 3


def test_progress_counts_trials_and_time_to_the_end(now: list[float]) -> None:
    seen: list[SearchProgress] = []
    found = searched(now, Ready(), 0.05, budget_s=60, on_progress=seen.append)
    assert seen[0].setting is None
    assert [each.trials for each in seen] == [0, *range(len(seen) - 1)]
    assert {each.setting for each in seen[1:]} == {trial.setting for trial in found.trials}
    assert all(each.trials_left > 0 for each in seen)
    assert all(0 < each.seconds_left <= 60 for each in seen)
    assert [each.seconds for each in seen] == sorted(each.seconds for each in seen)


@pytest.mark.parametrize(
    ("status", "text"), [("interrupted", "Ctrl-C"), ("budget", "30 s"), ("error", "KeyError: 3")]
)
def test_the_reason_for_an_empty_phase_names_the_end(status: Any, text: str) -> None:
    phase = TunedPhase(
        size=None,
        batch_size=4,
        ceiling=None,
        trials=(),
        best=None,
        is_compute_bound=False,
        status=status,
        full_search_s=30.0,
        error="the step raised KeyError: 3" if status == "error" else "",
    )
    assert phase.reason.startswith("not measured: ")
    assert text in phase.reason


def test_a_trial_that_is_clearly_slower_ends_early(now: list[float]) -> None:
    def steps(fastest: float | None) -> int:
        given = 0

        def step(batch: Any) -> None:
            nonlocal given
            given += 1
            now[0] += 0.045 + 0.01 * (given // 6 % 2)

        loader = Ready()
        setting = LoaderSetting(workers=2, prefetch=2)
        StepBenchmark(loader, step).trial(setting, min_s=1.0, max_s=9.0, fastest=fastest)
        return given

    assert steps(fastest=40.0) < steps(fastest=None) / 2
    assert steps(fastest=18.0) == steps(fastest=None)


def test_held_batches_keep_their_type() -> None:
    seen: list[Batch] = []
    loader = Ready()
    benchmark = StepBenchmark(loader, seen.append)
    assert math.isfinite(benchmark.ceiling(0.0))
    assert {type(batch) for batch in seen} == {Batch}
    assert {tuple(batch.labels) for batch in seen} == {(1, 2, 3, 4)}
    assert benchmark.batch_bytes == 4 * 8 * 4
