"""Search for the number of workers, with trainings simulated on their own clock."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.throughput.limits import WorkerLimits
from feedline.throughput.memory_budget import Room
from feedline.tuning.search import Search, SearchSpace
from feedline.tuning.trial import LoaderSetting, LoaderTrial
from throughput.simulated import Simulated
from tuning.uneven import Uneven

WORK: list[dict[str, Any]] = [
    # bound by decoding, by the step, in between, by a slow server, one core, hardly any work
    {"own_ms": 10.0, "cpu_ms": 200.0, "cores": 8},
    {"own_ms": 50.0, "cpu_ms": 200.0, "cores": 16},
    {"own_ms": 100.0, "cpu_ms": 30.0, "cores": 8},
    {"own_ms": 40.0, "cpu_ms": 100.0, "cores": 2},
    {"own_ms": 20.0, "cpu_ms": 10.0, "cores": 4, "blocked_ms": 120.0},
    {"own_ms": 30.0, "cpu_ms": 29.0, "cores": 1},
    {"own_ms": 200.0, "cpu_ms": 0.5, "cores": 64},
    {"own_ms": 12.0, "cpu_ms": 500.0, "cores": 64},
]


def searched(training: Simulated, start: int, ceiling: bool = True) -> Search:
    """A search that is done."""
    limits = WorkerLimits(cores=training.cores)
    begin = LoaderSetting(workers=start, prefetch=2)
    search = Search(limits, begin, 1000 / training.own_ms if ceiling else None)
    while (setting := search.next()) is not None:
        assert setting not in search.trials
        assert setting.workers >= 1
        training.workers = setting.workers
        search.add(LoaderTrial(setting=setting, window=training.window(), error=0.01))
    return search


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("start", [1, 4, 100])
@pytest.mark.parametrize("ceiling", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_smallest_fastest_number_of_workers_is_found(
    work: dict[str, Any], start: int, ceiling: bool, seed: int
) -> None:
    training = Simulated(workers=1, seed=seed, noise=0.003, **work)
    search = searched(training, start, ceiling)
    found = search.best.workers
    crews = range(1, 4 * training.cores + 1)
    enough = min(n for n in crews if training.step_ms(n) <= 1.01 * training.best_ms())
    assert training.step_ms(found) <= 1.03 * training.best_ms()
    assert found <= enough + 1
    assert len(search.trials) <= 5


def test_compute_bound_step_is_detected() -> None:
    assert searched(Simulated(own_ms=100.0, cpu_ms=30.0, cores=8, workers=1), 8).is_compute_bound
    assert not searched(
        Simulated(own_ms=10.0, cpu_ms=200.0, cores=8, workers=1), 8
    ).is_compute_bound


def test_search_bisects_without_work_figures() -> None:
    """Like with torch's loader, whose workers are not observed."""
    training = Simulated(own_ms=20.0, cpu_ms=110.0, cores=16, workers=1)

    class Silent(Simulated):
        def window(self) -> Any:
            from dataclasses import replace

            return replace(super().window(), tasks_s=0.0, on_core=None, queued=None)

    silent = Silent(own_ms=20.0, cpu_ms=110.0, cores=16, workers=1)
    search = searched(silent, 16)
    assert search.best.workers in {6, 7}
    assert training.step_ms(search.best.workers) <= 1.03 * training.best_ms()


def test_number_of_workers_respects_limits() -> None:
    training = Simulated(own_ms=1.0, cpu_ms=100.0, cores=16, workers=1)
    search = Search(WorkerLimits(cores=16, more=0), LoaderSetting(workers=3, prefetch=2), None)
    first = search.next()
    assert first is not None
    training.workers = first.workers
    search.add(LoaderTrial(setting=first, window=training.window(), error=0.01))
    assert first.workers == 3
    following = search.next()
    assert following is None or following.workers < 3


def test_memory_for_two_more_is_memory_for_two_more_in_all() -> None:
    training = Simulated(own_ms=1.0, cpu_ms=5.0, blocked_ms=200.0, cores=16, workers=1)
    search = Search(WorkerLimits(cores=16, more=2), LoaderSetting(workers=3, prefetch=2), None)
    tried = []
    while (setting := search.next()) is not None:
        tried.append(setting.workers)
        training.workers = setting.workers
        search.add(LoaderTrial(setting=setting, window=training.window(), error=0.01))
    assert max(tried) == 5


@pytest.mark.parametrize("every", [4, 10, 30])
@pytest.mark.parametrize("times", [3.0, 10.0])
@pytest.mark.parametrize("own_ms", [5.0, 20.0, 60.0])
@pytest.mark.parametrize("start", [1, 4, 16])
def test_uneven_batches_are_prefetched_deeper(
    every: int, times: float, own_ms: float, start: int
) -> None:
    training = Uneven(batch_ms=100.0, every=every, times=times, own_ms=own_ms)
    factors = (1, 2, 4)
    begin = LoaderSetting(workers=start, prefetch=factors[0])
    search = Search(WorkerLimits(cores=16), begin, 1000 / own_ms, SearchSpace(prefetch=factors[1:]))
    while (setting := search.next()) is not None:
        window = training.window(setting.workers, setting.prefetch)
        search.add(LoaderTrial(setting=setting, window=window, error=0.01))
    crews = range(1, 17)
    grid = {(n, k): training.step_ms(n, k) for n in crews for k in factors}
    best = min(grid.values())
    found = search.best.setting
    assert grid[found.workers, found.prefetch] <= 1.03 * best
    enough = min(n for (n, _), ms in grid.items() if ms <= 1.03 * best)
    assert found.workers <= enough + 1
    assert len(search.trials) <= 9


def test_even_batches_are_not_prefetched_deeper() -> None:
    training = Simulated(own_ms=10.0, cpu_ms=200.0, cores=8, workers=1)
    choices = SearchSpace(prefetch=(4, 8), pieces_ms=(12.5,))
    search = Search(
        WorkerLimits(cores=8), LoaderSetting(workers=8, prefetch=2, task_ms=50.0), 100.0, choices
    )
    while (setting := search.next()) is not None:
        training.workers = setting.workers
        search.add(LoaderTrial(setting=setting, window=training.window(), error=0.01))
    assert {(each.prefetch, each.task_ms) for each in search.trials} == {(2, 50.0)}


def test_batches_are_pinned_if_faster() -> None:
    for quicker in (True, False):
        training = Simulated(own_ms=50.0, cpu_ms=20.0, cores=8, workers=1)
        search = Search(
            WorkerLimits(cores=8),
            LoaderSetting(workers=2, prefetch=2, pin=False),
            None,
            SearchSpace(pin=True),
        )
        while (setting := search.next()) is not None:
            training.workers = setting.workers
            training.own_ms = 40.0 if setting.pin and quicker else 50.0
            search.add(LoaderTrial(setting=setting, window=training.window(), error=0.01))
        assert search.best.setting.pin == quicker


@pytest.mark.parametrize("batches", [0, 8, 16, 40])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_and_depth_grow_together_within_the_memory(batches: int, workers: int) -> None:
    """Uneven batches, with memory for a limited number of them."""
    training = Uneven(batch_ms=100.0, every=10, times=10.0, own_ms=12.0)
    room = Room(free=batches * 10, workers=workers, ahead=2, worker_bytes=0, batch_bytes=10)
    begin = LoaderSetting(workers=workers, prefetch=2)
    search = Search(WorkerLimits(cores=16), begin, 1000 / 12.0, SearchSpace(prefetch=(4, 8)), room)
    while (setting := search.next()) is not None:
        window = training.window(setting.workers, setting.prefetch)
        search.add(LoaderTrial(setting=setting, window=window, error=0.01))
    ahead = [each.workers * each.prefetch for each in search.trials]
    assert max(ahead) <= 2 * workers + batches
    assert len(search.trials) > 1 or not batches
