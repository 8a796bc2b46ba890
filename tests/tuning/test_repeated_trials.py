"""Alternating trials at the end of a search, with simulated trainings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from feedline.throughput.limits import WorkerLimits
from feedline.tuning.search import RepeatedTrials, Search, SearchSpace, find_candidates
from feedline.tuning.trial import LoaderSetting, LoaderTrial
from throughput.simulated import Simulated
from tuning.uneven import Uneven


@dataclass(kw_only=True)
class Crowded(Simulated):
    """Workers on all cores slow down the training loop.

    Args:
        slower: factor of the step time if all cores are used.
    """

    slower: float = 1.09

    def step_ms(self, workers: int) -> float:
        crowded = self.slower if workers >= self.cores else 1.0
        return max(self.own_ms, self.cpu_ms / min(workers, self.cores - 1)) * crowded


def trial_of(training: Simulated, setting: LoaderSetting, disturbed: float = 1.0) -> LoaderTrial:
    training.workers = setting.workers
    window = training.window()
    return LoaderTrial(
        setting=setting, window=replace(window, seconds=disturbed * window.seconds), error=0.01
    )


def decided(training: Simulated, disturbed: int, slower: float) -> tuple[Search, LoaderTrial, int]:
    """The search, the answer, and how many turns it took; one of all trials is disturbed."""
    search = Search(
        WorkerLimits(cores=training.cores), LoaderSetting(workers=training.cores, prefetch=2), 100.0
    )
    made = 0

    def made_trial(setting: LoaderSetting) -> LoaderTrial:
        nonlocal made
        made += 1
        return trial_of(training, setting, slower if made == disturbed else 1.0)

    while (setting := search.next()) is not None:
        search.add(made_trial(setting))
    searched = made
    final = RepeatedTrials(search.candidates)
    while (setting := final.next()) is not None:
        final.add(made_trial(setting))
    return search, final.best, made - searched


@pytest.mark.parametrize("cores", [2, 4, 8])
@pytest.mark.parametrize("disturbed", range(9))
@pytest.mark.parametrize("seed", range(5))
def test_one_worker_less_leaves_a_core_to_the_loop_whichever_trial_is_disturbed(
    cores: int, disturbed: int, seed: int
) -> None:
    training = Crowded(
        own_ms=10.0, cpu_ms=12.0 * (cores - 1), cores=cores, workers=1, seed=seed, noise=0.003
    )
    search, best, turns = decided(training, disturbed, 1.2)
    assert cores - 1 in {trial.workers for trial in search.trials.values()}
    assert training.step_ms(best.workers) <= 1.03 * training.best_ms()
    assert turns <= 8


def test_all_cores_are_used_if_needed() -> None:
    training = Simulated(own_ms=10.0, cpu_ms=100.0, cores=4, workers=1, noise=0.003)
    _, best, _ = decided(training, 0, 1.0)
    assert best.workers == 4


def test_turns_alternate_and_repeat_if_answer_changes() -> None:
    training = Crowded(own_ms=10.0, cpu_ms=12.0, cores=2, workers=1, noise=0.0)
    one, two = LoaderSetting(workers=1, prefetch=2), LoaderSetting(workers=2, prefetch=2)
    agreed = RepeatedTrials([trial_of(training, one), trial_of(training, two)])
    other = RepeatedTrials([trial_of(training, one, 1.2), trial_of(training, two)])
    for final, expected in ((agreed, [1, 2, 2, 1]), (other, [1, 2, 2, 1, 1, 2, 2, 1])):
        turns = []
        while (setting := final.next()) is not None:
            turns.append(setting.workers)
            final.add(trial_of(training, setting))
        assert turns == expected
        assert final.turns == 0
        assert final.best.workers == 1
        assert final.best in final.trials.values()


def test_answer_without_alternative_takes_no_turn() -> None:
    training = Simulated(own_ms=100.0, cpu_ms=30.0, cores=8, workers=1, noise=0.0)
    trials = [trial_of(training, LoaderSetting(workers=n, prefetch=2)) for n in (1, 8)]
    assert find_candidates(trials, trials[0], cores=8, compute_bound=True) == trials[:1]
    final = RepeatedTrials(trials[:1])
    assert final.next() is None
    assert final.best is trials[0]


def test_waiting_work_needs_no_core() -> None:
    training = Simulated(own_ms=10.0, cpu_ms=2.0, blocked_ms=70.0, cores=2, workers=1, noise=0.0)
    search, best, _ = decided(training, 0, 1.0)
    assert training.step_ms(best.workers) <= 1.03 * training.best_ms()
    slow = [trial for trial in search.candidates if trial.workers < 6]
    assert not slow  # of seven that are needed, and nowhere near


def test_no_trial_requires_more_than_linear_speedup() -> None:
    """Three workers instead of four needed; two trials have shown the best possible rate."""
    training = Simulated(own_ms=25.0, cpu_ms=0.0, blocked_ms=100.0, cores=2, workers=1, noise=0.003)
    training_of_few = Search(WorkerLimits(cores=2), LoaderSetting(workers=2, prefetch=2), 40.0)
    while (setting := training_of_few.next()) is not None:
        training_of_few.add(trial_of(training, setting))
    assert {trial.workers for trial in training_of_few.trials.values()} == {2, 4}
    assert training_of_few.best.workers == 4


def test_useless_depth_is_not_tried_with_more_workers() -> None:
    """Batches are uneven, but steps wait for something else."""

    class InVain(Uneven):
        def window(self, workers: int, factor: int):  # type: ignore[no-untyped-def]
            found = super().window(workers, 8)
            return replace(found, seconds=found.seconds * 1.2, wait_s=found.seconds * 0.2)

    training = InVain(batch_ms=60.0, every=10, times=1.0, own_ms=20.0)
    search = Search(
        WorkerLimits(cores=16),
        LoaderSetting(workers=4, prefetch=2),
        None,
        SearchSpace(prefetch=(4, 8)),
    )
    while (setting := search.next()) is not None:
        window = training.window(setting.workers, setting.prefetch)
        search.add(LoaderTrial(setting=setting, window=window, error=0.01))
    deep = [each.workers for each in search.trials if each.prefetch > 2]
    assert len(deep) == 1
