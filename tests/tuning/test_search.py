"""Search for the number of workers, with trainings simulated on their own clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest

from feedline.throughput.step_model import MemoryBudget, WorkerLimits
from feedline.tuning.search import LoaderSetting, LoaderTrial, Search, SearchSpace
from throughput.phases import a_window
from throughput.simulated import WORK, Simulated, Stepped, periodic

ALL_WORK = [
    *WORK,  # and hardly any work, or too much for the cores
    {"own_ms": 200.0, "cpu_ms": 0.5, "cores": 64},
    {"own_ms": 12.0, "cpu_ms": 500.0, "cores": 64},
]


def search_from(workers, cores, ceiling, space=None, memory=None, **setting):
    start = LoaderSetting(**{"workers": workers, "prefetch": 2, **setting})
    return Search(WorkerLimits(cores=cores, memory=memory), start, ceiling, space)


def for_more(workers):
    """Memory for this many workers more than three."""
    return MemoryBudget(free=workers, workers=3, ahead=2, worker_bytes=1, batch_bytes=0)


def finish(search, trial):
    """Search to the end; return the settings of all trials, with repeated ones."""
    made = []
    while (setting := search.next()) is not None:
        made.append(setting)
        search.add(trial(setting))
    return made


def trial_of(training, setting, disturbed=1.0):
    training.workers = setting.workers
    window = training.window()
    window = replace(window, seconds=disturbed * window.seconds, error=0.01)
    return LoaderTrial(setting=setting, window=window)


def searched(training, start, ceiling=True):
    search = search_from(start, training.cores, 1000 / training.own_ms if ceiling else None)
    finish(search, partial(trial_of, training))
    return search


@pytest.mark.parametrize("work", ALL_WORK)
@pytest.mark.parametrize("start", [1, 4, 100])
@pytest.mark.parametrize("ceiling", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_smallest_fastest_number_of_workers_is_found(work, start, ceiling, seed):
    training = Simulated(workers=1, seed=seed, noise=0.003, **work)
    search = searched(training, start, ceiling)
    found = search.best.workers
    crews = range(1, 4 * training.cores + 1)
    enough = min(n for n in crews if training.step_ms(n) <= 1.01 * training.best_ms())
    assert training.step_ms(found) <= 1.03 * training.best_ms()
    assert found <= enough + 1
    assert len(search.trials) <= 5


def test_search_bisects_without_work_figures():
    """Like with torch's loader, whose workers are not observed."""
    training = Simulated(own_ms=20.0, cpu_ms=110.0, cores=16, workers=1)

    class Silent(Simulated):
        def window(self):
            return replace(super().window(), tasks_s=0.0, on_core=None, queued=None)

    silent = Silent(own_ms=20.0, cpu_ms=110.0, cores=16, workers=1)
    search = searched(silent, 16)
    assert search.best.workers in {6, 7}
    assert training.step_ms(search.best.workers) <= 1.03 * training.best_ms()


@pytest.mark.parametrize(
    ("work", "more"), [({"cpu_ms": 100.0}, 0), ({"cpu_ms": 5.0, "blocked_ms": 200.0}, 2)]
)
def test_number_of_workers_respects_memory_in_all(work, more):
    training = Simulated(own_ms=1.0, cores=16, workers=1, **work)
    made = finish(search_from(3, 16, None, memory=for_more(more)), partial(trial_of, training))
    assert made[0].workers == 3
    assert max(each.workers for each in made) == 3 + more


def uneven_trial(own_ms, batches, setting):
    """Trial over uneven batches, see `periodic`."""
    training = Stepped(
        own_ms=own_ms,
        work=periodic(*batches),
        for_each=setting.prefetch,
        cores=64,
        workers=setting.workers,
        window_s=0.6 * own_ms,
    )
    training.step_ms(100)
    return LoaderTrial(setting=setting, window=replace(training.window(), error=0.01))


@pytest.mark.parametrize("every", [4, 10, 30])
@pytest.mark.parametrize("times", [3.0, 10.0])
@pytest.mark.parametrize("own_ms", [5.0, 20.0, 60.0])
def test_uneven_batches_are_prefetched_deeper(every, times, own_ms):
    trial = cache(partial(uneven_trial, own_ms, (100.0, every, times)))
    factors = (1, 2, 4)
    settings = [LoaderSetting(workers=n, prefetch=k) for n in range(1, 17) for k in factors]
    trials = list(map(trial, settings))
    least_s = min(each.window.step_s for each in trials)
    fast = [each for each in trials if each.window.step_s <= 1.03 * least_s]
    for start in (1, 4, 16):
        space = SearchSpace(prefetch=factors[1:])
        search = search_from(start, 16, 1000 / own_ms, space, prefetch=factors[0])
        finish(search, trial)
        assert search.best.window.step_s <= 1.03 * least_s
        assert search.best.workers <= min(each.workers for each in fast) + 1
        assert len(search.trials) <= 9


def test_even_batches_are_not_prefetched_deeper():
    training = Simulated(own_ms=10.0, cpu_ms=200.0, cores=8, workers=1)
    choices = SearchSpace(prefetch=(4, 8), task_ms=12.5)
    made = finish(search_from(8, 8, 100.0, choices, task_ms=50.0), partial(trial_of, training))
    assert {(each.prefetch, each.task_ms) for each in made} == {(2, 50.0)}


@pytest.mark.parametrize("quicker", [True, False])
def test_batches_are_pinned_if_faster(quicker):
    training = Simulated(own_ms=50.0, cpu_ms=20.0, cores=8, workers=1)

    def trial(setting):
        training.own_ms = 40.0 if setting.pin and quicker else 50.0
        return trial_of(training, setting)

    search = search_from(2, 8, None, SearchSpace(pin=True), pin=False)
    finish(search, trial)
    assert search.best.setting.pin == quicker


@pytest.mark.parametrize("batches", [0, 8, 16, 40])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_and_depth_grow_together_within_the_memory(batches, workers):
    """Uneven batches, with memory for a limited number of them."""
    room = MemoryBudget(free=batches * 10, workers=workers, ahead=2, worker_bytes=0, batch_bytes=10)
    search = search_from(workers, 16, 1000 / 12.0, SearchSpace(prefetch=(4, 8)), room)
    finish(search, partial(uneven_trial, 12.0, (100.0, 10, 10.0)))
    ahead = [each.workers * each.prefetch for each in search.trials]
    assert max(ahead) <= 2 * workers + batches
    assert len(search.trials) > 1 or not batches


@pytest.mark.parametrize(
    ("own_ms", "work_ms", "hand_ms", "expected"),
    [(2.0, 0.1, 0.8, 0), (0.2, 0.1, 0.4, 0), (200.0, 0.5, 0.1, 0), (20.0, 15.0, 0.5, 1)],
)
def test_no_worker_is_the_answer_if_steps_or_batches_are_tiny(own_ms, work_ms, hand_ms, expected):
    """Handing a batch over takes time, in the training process as well."""

    def trial(setting):
        wait_ms = hand_ms if setting.workers else work_ms
        window = a_window(
            steps=100,
            seconds=(own_ms + wait_ms) / 10,
            wait_s=wait_ms / 10,
            tasks_s=work_ms / 10,
            workers=setting.workers,
            error=0.001,
        )
        return LoaderTrial(setting=setting, window=window)

    space = SearchSpace(prefetch=(4, 8), in_process=True)
    search = search_from(2, 4, 1000 / own_ms, space)
    finish(search, trial)
    assert search.best.workers == expected
    assert (0 in {each.workers for each in search.trials}) == (not expected)


@dataclass(kw_only=True)
class Crowded(Simulated):
    """Workers on all cores slow down the training loop.

    Args:
        slower: factor of the step time if all cores are used.
    """

    slower: float = 1.09

    def step_ms(self, workers):
        crowded = self.slower if workers >= self.cores else 1.0
        return max(self.own_ms, self.cpu_ms / min(workers, self.cores - 1)) * crowded


def decided(training, disturbed, slower, start, ceiling):
    """The search and all its trials, one of which is disturbed."""
    search, numbers = search_from(start, training.cores, ceiling), itertools.count(1)

    def trial(setting):
        return trial_of(training, setting, slower if next(numbers) == disturbed else 1.0)

    return search, finish(search, trial)


@pytest.mark.parametrize("cores", [2, 4, 8])
@pytest.mark.parametrize("disturbed", range(9))
@pytest.mark.parametrize("seed", range(5))
def test_one_worker_less_leaves_a_core_to_the_loop_whichever_trial_is_disturbed(
    cores, disturbed, seed
):
    training = Crowded(
        own_ms=10.0, cpu_ms=12.0 * (cores - 1), cores=cores, workers=1, seed=seed, noise=0.003
    )
    search, made = decided(training, disturbed, 1.2, cores, 100.0)
    assert cores - 1 in {each.workers for each in made}
    assert training.step_ms(search.best.workers) <= 1.03 * training.best_ms()
    assert len(made) - len(search.trials) <= 8


@pytest.mark.parametrize(("disturbed", "turns"), [(0, [1, 2, 2, 1]), (2, 2 * [1, 2, 2, 1])])
def test_turns_alternate_and_repeat_if_answer_changes(disturbed, turns):
    training = Crowded(own_ms=10.0, cpu_ms=12.0, cores=2, workers=1, noise=0.0, slower=1.05)
    search, made = decided(training, disturbed, 1.4, 2, 100.0)
    repeated = [each.workers for k, each in enumerate(made) if each in made[:k]]
    assert repeated == turns
    assert search.turns == 0
    assert search.best.workers == 1
    # An answer without an alternative takes no turn.

    training = Simulated(own_ms=100.0, cpu_ms=30.0, cores=8, workers=1, noise=0.0)
    search = searched(training, 8)
    assert (search.best.workers, search.rounds) == (1, 0)


def test_repeated_trials_that_show_a_gain_continue_the_search():
    """Other programs use the cores in the first trials: more workers seem not to help."""
    training = Simulated(own_ms=1.0, cpu_ms=40.0, cores=8, workers=1, noise=0.0)
    search, numbers = search_from(1, 8, 1000.0), itertools.count(1)

    def trial(setting):
        disturbed = training.step_ms(1) / training.step_ms(setting.workers)
        return trial_of(training, setting, disturbed if next(numbers) <= 2 else 1.0)

    finish(search, trial)
    assert search.best.workers >= 7


def test_no_trial_requires_more_than_linear_speedup():
    """Three workers instead of four needed; two trials have shown the best possible rate."""
    training = Simulated(own_ms=25.0, cpu_ms=0.0, blocked_ms=100.0, cores=2, workers=1, noise=0.003)
    search = searched(training, 2)
    assert {trial.workers for trial in search.trials.values()} == {2, 4}
    assert search.best.workers == 4


def test_useless_depth_is_not_tried_with_more_workers():
    """Steps wait as if batches were uneven, but for something else."""

    def trial(setting):
        found = uneven_trial(20.0, (60.0, 10, 1.0), replace(setting, prefetch=8))
        seconds = found.window.seconds
        window = replace(found.window, seconds=seconds * 1.2, wait_s=seconds * 0.2)
        return LoaderTrial(setting=setting, window=window)

    search = search_from(4, 16, None, SearchSpace(prefetch=(4, 8)))
    finish(search, trial)
    deep = [each.workers for each in search.trials if each.prefetch > 2]
    assert len(deep) == 1
