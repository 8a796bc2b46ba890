"""The search for a crew, over trainings that are simulated on a clock of their own."""

from __future__ import annotations

from typing import Any

import pytest

from control.simulated import Simulated
from feedline.control.limits import Limits
from feedline.tuning.search import Search
from feedline.tuning.trial import Trial

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
    limits = Limits(cores=training.cores)
    search = Search(limits, start, 1000 / training.own_ms if ceiling else None)
    while (crew := search.next()) is not None:
        assert crew not in search.trials
        assert crew >= 1
        training.workers = crew
        search.add(Trial(window=training.window(), error=0.01))
    return search


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("start", [1, 4, 100])
@pytest.mark.parametrize("ceiling", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_fewest_workers_that_are_as_fast_as_any_are_found(
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


def test_the_step_that_bounds_is_seen() -> None:
    assert searched(Simulated(own_ms=100.0, cpu_ms=30.0, cores=8, workers=1), 8).reached
    assert not searched(Simulated(own_ms=10.0, cpu_ms=200.0, cores=8, workers=1), 8).reached


def test_without_figures_of_the_work_the_search_halves() -> None:
    """As over torch's loader, whose workers are not looked into."""
    training = Simulated(own_ms=20.0, cpu_ms=110.0, cores=16, workers=1)

    class Silent(Simulated):
        def window(self) -> Any:
            from dataclasses import replace

            return replace(super().window(), tasks_s=0.0, on_core=None, queued=None)

    silent = Silent(own_ms=20.0, cpu_ms=110.0, cores=16, workers=1)
    search = searched(silent, 16)
    assert search.best.workers in {6, 7}
    assert training.step_ms(search.best.workers) <= 1.03 * training.best_ms()


def test_a_crew_keeps_to_its_limits() -> None:
    training = Simulated(own_ms=1.0, cpu_ms=100.0, cores=16, workers=1)
    search = Search(Limits(cores=16, more=0), 3, None)
    training.workers = search.next() or 0
    search.add(Trial(window=training.window(), error=0.01))
    assert max(search.trials) == 3
    assert (search.next() or 0) < 3
