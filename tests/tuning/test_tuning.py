"""Tuning: budgets on a simulated clock, and real loaders with steps that only wait."""

from __future__ import annotations

import math
import pickle
import time
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from feedline import DataLoader, watch
from feedline.engine import defaults
from feedline.errors import ResourceError, UsageError
from feedline.throughput import windows
from feedline.timing.stage_page import StageTimings
from feedline.tuning import tune as tune_module
from feedline.tuning.loaders import TunableLoader
from feedline.tuning.search import LoaderSetting, SearchSpace
from feedline.tuning.tune import StepBenchmark, search_settings, tune
from processes import newcomers, own_family
from row_sources import Rows
from sets import Counting, Slow


class Batch(NamedTuple):
    images: torch.Tensor
    labels: list[int]


class Ready(TunableLoader):
    """A loader that has a batch ready, or after the wait of a worker on a simulated clock."""

    kind = "feedline"
    start = LoaderSetting(workers=2, prefetch=2)
    search_space = SearchSpace()
    batch_size = 4

    def __init__(self, now=(), wait_s=0.0, most=64):
        self.now, self.wait_s, self.most = now, wait_s, most
        self.given, self.workers = 0, self.start.workers

    def next(self):
        self.given += 1
        if self.now:
            self.now[0] += self.wait_s / self.workers
        return Batch(torch.zeros(4, 8), [1, 2, 3, 4])

    def change(self, setting):
        if setting.workers > self.most:
            raise ResourceError("there is no process for one more")
        self.workers = setting.workers
        return 0

    def stage_timings(self):
        return StageTimings()

    def close(self):
        pass


@pytest.fixture
def now(monkeypatch):
    """Simulated time in seconds, advanced by tests."""
    clock = [1000.0]
    clocks = ("monotonic", "perf_counter", "thread_time", "process_time_ns")
    time = SimpleNamespace(**dict.fromkeys(clocks, lambda: clock[0]))
    monkeypatch.setattr(tune_module, "time", time)
    monkeypatch.setattr(windows, "time", time)
    return clock


def searched(now, loader, step_s, budget_s, **options):
    def step(batch):
        now[0] += step_s

    found = search_settings(loader, step, budget_s=budget_s, **options)
    assert found.failure is None
    (phase,) = found.phases
    return phase


@pytest.mark.parametrize("step_s", [0.3, 3.0, 11.0, 600.0])
def test_long_steps_end_within_a_step_of_the_budget(now, step_s):
    begun = now[0]
    found = searched(now, Ready(), step_s, budget_s=60)
    assert now[0] - begun <= 60 + step_s
    assert found.ceiling == pytest.approx(1 / step_s)
    if found.best is None:
        assert found.status == "budget"
        assert found.full_search_s > 60
        assert f"{found.full_search_s:.0f} s" in found.reason


def test_a_budget_that_is_over_or_spent_on_reading_lets_one_step_say_how_long_they_are(now):
    found = searched(now, Ready(), 4.0, budget_s=2)
    assert (found.best, found.status) == (None, "budget")
    assert found.full_search_s >= 5 * 8 * 4.0
    loader = Ready(now, wait_s=20.0)
    found = searched(now, loader, 0.0, budget_s=60, warmup_batches=1000)
    assert loader.given == 7  # six within the budget, and one for a step
    assert (found.best, found.status) == (None, "budget")


def test_missing_resources_end_search_with_partial_result(now, monkeypatch):
    monkeypatch.setattr(tune_module, "usable_cores", lambda: 8)
    found = searched(now, Ready(now, 2.0, most=2), 0.01, budget_s=600)
    assert (found.status, [trial.workers for trial in found.trials]) == ("resources", [2])
    with pytest.raises(ResourceError, match="no process"):
        searched(now, Ready(now, 2.0, most=1), 0.01, budget_s=600)


def test_workers_have_memory_for_the_batches_that_they_make(now, monkeypatch):
    """Half of the free memory holds one more worker with its batches of 128 bytes."""
    monkeypatch.setattr(defaults, "available_memory_bytes", lambda: 2 * (60 + 2 * 128))
    monkeypatch.setattr(defaults, "WORKER_BYTES", 60)
    monkeypatch.setattr(tune_module, "usable_cores", lambda: 8)
    found = searched(now, Ready(now, 1.0), 0.01, budget_s=600)
    assert max(trial.workers for trial in found.trials) == 3


def test_progress_counts_trials_and_time_to_the_end(now):
    seen = []
    found = searched(now, Ready(), 0.05, budget_s=60, on_progress=seen.append)
    assert seen[0].setting is None
    assert [each.trials for each in seen] == [0, *range(len(seen) - 1)]
    assert {each.setting for each in seen[1:]} == {trial.setting for trial in found.trials}
    assert all(each.trials_left > 0 for each in seen)
    assert all(0 < each.seconds_left <= 60 for each in seen)
    assert [each.seconds for each in seen] == sorted(each.seconds for each in seen)


def test_a_trial_that_is_clearly_slower_ends_early(now):
    def steps(fastest):
        given = 0

        def step(batch):
            nonlocal given
            given += 1
            now[0] += 0.045 + 0.01 * (given // 6 % 2)

        loader = Ready()
        setting = LoaderSetting(workers=2, prefetch=2)
        StepBenchmark(loader, step).trial(setting, min_s=1.0, max_s=9.0, fastest=fastest)
        return given

    assert steps(fastest=40.0) < steps(fastest=None) / 2
    assert steps(fastest=18.0) == steps(fastest=None)


def test_held_batches_keep_their_type():
    seen = []
    loader = Ready()
    benchmark = StepBenchmark(loader, seen.append)
    assert math.isfinite(benchmark.ceiling(0.0))
    assert {type(batch) for batch in seen} == {Batch}
    assert {tuple(batch.labels) for batch in seen} == {(1, 2, 3, 4)}
    assert benchmark.batch_bytes == 4 * 8 * 4


def first_numbers(loader):
    batch = next(iter(loader))
    return batch.flatten().tolist()


@pytest.mark.usefixtures("quick_trials")
def test_sufficient_workers_are_found_and_loader_is_restored():
    with DataLoader(Slow(4000, 0.005), 8, shuffle=True, seed=0, num_workers=1) as plain:
        expected = first_numbers(plain)
    with DataLoader(Slow(4000, 0.005), 8, shuffle=True, seed=0, num_workers=1) as loader:
        state = loader.state_dict()
        told = []
        found = tune(
            loader, step_ms=12, budget_s=120, on_trial=lambda _, trial: told.append(trial.workers)
        )
        assert (loader.num_workers, loader.adapts) == (1, False)
        assert loader.state_dict() == state
        assert first_numbers(loader) == expected
    (phase,) = found.phases
    assert phase.size is None
    assert phase.status == "done"
    assert phase.best is not None
    # 40 ms of waiting for a batch, and a step of 12 ms: four workers, on any machine at least two.
    assert 1 < phase.best.workers == found.num_workers
    assert told == [trial.workers for trial in phase.trials]
    assert f"num_workers={found.num_workers}" in str(found)
    assert "images/s" in str(found)


@pytest.mark.usefixtures("quick_trials")
def test_each_phase_of_a_schedule_is_tuned_with_its_batches():
    steps = []

    def step(batch):
        steps.append((batch[0].shape[-1], len(batch[0])))
        time.sleep(0.01)

    with DataLoader(Rows(64), 8, schedule="8x1@32,16x2", seed=0, num_workers=1) as loader:
        found = tune(loader, step, budget_s=120)
        assert (loader.epoch, next(iter(loader))[0].shape) == (0, (32, 3, 8, 8))
    assert [(phase.size, phase.batch_size) for phase in found.phases] == [(8, 32), (16, 8)]
    assert list(dict.fromkeys(steps)) == [(8, 32), (16, 8)]
    assert "8 px" in str(found)


@pytest.mark.usefixtures("quick_trials")
def test_ctrl_c_returns_partial_result():
    def told(size, trial):
        raise KeyboardInterrupt

    with DataLoader(Rows(64), 8, image_size=16, num_workers=1) as loader:
        found = tune(loader, step_ms=10, budget_s=60, on_trial=told)
        assert loader.num_workers == 1
    (phase,) = found.phases
    assert phase.status == "interrupted"
    assert phase.ceiling is not None
    assert [trial.workers for trial in phase.trials] == [found.num_workers] == [1]


def test_step_that_raises_leaves_loader_unchanged():
    def step(batch):
        raise ArithmeticError("the step broke")

    with DataLoader(Rows(64), 8, image_size=16, num_workers=1) as loader:
        with pytest.raises(ArithmeticError, match="the step broke"):
            tune(loader, step)
        assert (loader.num_workers, loader.epoch) == (1, 0)
        assert sum(1 for _ in loader) == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either step"),
        ({"step_ms": float("nan")}, "milliseconds"),
        ({"step_ms": 1, "budget_s": 1}, "at least 2 seconds"),
        ({"step_ms": 1, "budget_s": float("nan")}, "at least 2 seconds"),
        ({"step_ms": 1, "warmup_batches": -1}, "warmup_batches"),
        ({"step": 40}, "function of a batch"),
    ],
)
def test_untunable_loader_is_rejected(options, said):
    with (
        DataLoader(Rows(64), 8, image_size=16, num_workers=1) as loader,
        pytest.raises(UsageError, match=said),
    ):
        tune(loader, **options)


def test_loaders_with_fixed_workers_or_no_batches_are_rejected():
    anything = [1, 2, 3]
    with pytest.raises(UsageError, match=r"feedline\.DataLoader.*list"):
        tune(anything, step_ms=1)
    for dataset, workers, said in (
        (Counting(9), 1, "IterableDataset"),
        (TensorDataset(torch.zeros(64, 3)), 1, "needs no workers"),
        (list(range(9)), 0, "no workers"),
    ):
        loader = DataLoader(dataset, 2, num_workers=workers)
        with loader, pytest.raises(UsageError, match=said):
            tune(loader, step_ms=1)
    with pytest.raises(UsageError, match="no batch"):
        tune(TorchDataLoader(anything, 2, sampler=[], num_workers=1), step_ms=1)


@pytest.mark.usefixtures("quick_trials")
def test_a_loader_that_adapts_adapts_afterwards():
    with DataLoader(Rows(64), 8, image_size=16, num_workers="auto") as loader:
        tune(loader, step_ms=5, budget_s=2)
        assert loader.adapts
        assert pickle.loads(pickle.dumps(loader)).adapts


@pytest.mark.slow
@pytest.mark.usefixtures("quick_trials")
def test_one_image_size_with_two_batch_sizes_is_tuned_with_both():
    with DataLoader(Rows(64), 8, schedule="8x1@8,8x1@32", drop_last=True, num_workers=1) as loader:
        found = tune(loader, step_ms=10, budget_s=120)
    assert [(phase.size, phase.batch_size) for phase in found.phases] == [(8, 8), (8, 32)]
    assert [each.rows for each in found.rates] == [8, 32]
    assert "8 px, batches of 8\n" in str(found)
    assert "8 px, batches of 32\n" in str(found)
    assert "8 px, batches of 32" in str(found.what_if("gpu=0.5"))
    said = found.forecast("8x1@8,8x1@32")
    assert {phase.basis for phase in said.phases} == {"measured"}


@pytest.mark.usefixtures("quick_trials")
def test_workers_of_torch_are_found_and_its_loader_is_restored():
    generator = torch.Generator().manual_seed(3)
    loader = TorchDataLoader(Slow(4000, 0.005), 8, shuffle=True, num_workers=1, generator=generator)
    states = torch.get_rng_state(), generator.get_state()
    before = own_family()
    found = tune(watch(loader), step_ms=15, budget_s=120)
    (phase,) = found.phases
    assert phase.best is not None
    # 40 ms of waiting for a batch, and a step of 15 ms: three workers; one is too few anywhere.
    assert 1 < phase.best.workers == found.num_workers
    assert all(trial.start_s is not None for trial in phase.trials)
    assert found.loader == "torch"
    assert "persistent_workers=True, pin_memory=False" in found.snippet
    assert "persistent_workers=True starts them once" in str(found)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 2, False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(generator.get_state(), states[1])
    assert not newcomers(before)


def test_cpu_time_of_a_step_distinguishes_sleep_from_work():
    def work(batch):
        until = time.process_time() + 0.03
        while time.process_time() < until:
            pass

    def cpu_s(step):
        benchmark = StepBenchmark(Ready(), step)
        assert benchmark.step_cpu_s == 0.0
        benchmark.ceiling(0.1)
        return benchmark.step_cpu_s

    assert cpu_s(work) == pytest.approx(0.03, abs=0.005)
    assert cpu_s(lambda batch: time.sleep(0.02)) < 0.01
