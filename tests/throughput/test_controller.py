"""The controller of workers, with trainings simulated on their own clock."""

import pytest

from feedline.throughput.controller import Controller
from feedline.throughput.step_model import MemoryBudget, WorkerLimits
from slow import slow
from throughput.simulated import WORK, Simulated


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("start", ["one", "four times too many"])
@pytest.mark.parametrize("seed", range(5))
def test_bad_initial_setting_is_corrected(work, start, seed):
    """Within 30 s of training the step is within 5% of the best."""
    workers = 1 if start == "one" else 4 * int(work["cores"])
    training = Simulated(workers=workers, seed=seed, **work).run(30)
    assert training.step_ms(training.workers) <= 1.05 * training.best_ms()


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("seed", [0, *slow(1, 2, 3, 4)])
def test_controller_settles(work, noise, seed):
    """In a steady hour nothing that was taken back is tried again."""
    training = Simulated(workers=1, seed=seed, noise=noise, **work).run(3600)
    back = [each for _, each in training.decisions if each.kind == "back"]
    grown = [each.before for each in back if each.after < each.before]
    shrunk = [each.before for each in back if each.after > each.before]
    assert len(grown) <= 1
    assert len(shrunk) <= 1
    assert not [when for when, _ in training.decisions if when > 600]
    assert training.step_ms(training.workers) <= 1.05 * training.best_ms()


def test_unneeded_workers_are_released():
    training = Simulated(own_ms=100.0, cpu_ms=150.0, cores=16, workers=16).run(30)
    assert training.workers == 2
    ((_, decision),) = training.decisions
    assert decision.kind == "shrink"
    assert str(decision).startswith("16 workers -> 2: ")


def test_computing_workers_do_not_exceed_cores_and_waiting_ones_do():
    training = Simulated(own_ms=1.0, cpu_ms=100.0, cores=4, workers=1).run(60)
    assert training.workers == 4
    training = Simulated(own_ms=20.0, cpu_ms=5.0, blocked_ms=100.0, cores=2, workers=1).run(60)
    assert 6 <= training.workers <= 8


def test_memory_limits_workers():
    training = Simulated(own_ms=1.0, cpu_ms=100.0, cores=16, workers=2)
    for workers, free in ((2, 1), (3, 0)):
        memory = MemoryBudget(free=free, workers=workers, ahead=0, worker_bytes=1, batch_bytes=0)
        training.controller.limits = WorkerLimits(cores=16, memory=memory)
        training.run(1)
    training.run(30)
    assert training.workers == 3


def test_growing_that_does_not_help_is_undone():
    """A lock between the workers: more of them wait for each other."""
    training = Simulated(own_ms=10.0, cpu_ms=40.0, cores=8, workers=2)
    training.step_ms = lambda workers: 20.0
    training.run(120)
    assert training.workers == 2
    assert [each.kind for _, each in training.decisions] == ["grow", "back"]


def test_another_phase_is_met_at_once():
    """Small images: the step is four times as short, and the work nearly as long."""
    training = Simulated(own_ms=100.0, cpu_ms=150.0, cores=16, workers=16).run(60)
    training.phase, training.own_ms, training.cpu_ms = "b", 25.0, 120.0
    changed = training.clock_s
    training.run(5)
    assert training.step_ms(training.workers) <= 1.05 * training.best_ms()
    assert all(when - changed < 5 for when, _ in training.decisions if when > changed)


def test_the_next_phase_is_prepared():
    training = Simulated(own_ms=100.0, cpu_ms=150.0, cores=16, workers=4).run(30)
    decision = training.controller.prepare("b", 0.25, 0.8)
    assert decision is not None
    assert decision.kind == "prepare"
    assert decision.after == 6  # 120 ms over 25 ms, and a tenth more
    assert training.controller.prepare("a", 1.0, 1.0) is None
    assert Controller(WorkerLimits(cores=4)).prepare("a", 1.0, 1.0) is None, "it saw no window"


def test_known_phase_is_prepared_with_its_setting():
    training = Simulated(own_ms=25.0, cpu_ms=120.0, cores=16, workers=6, phase="b").run(5)
    training.phase, training.own_ms, training.cpu_ms = "a", 100.0, 150.0
    training.run(30)
    assert training.workers == 2
    decision = training.controller.prepare("b", 1.0, 1.0)
    assert decision is not None
    assert decision.after == 6


def test_changed_workload_is_measured_again():
    """Findings only hold for their workload: here files move to a slow disk."""
    training = Simulated(own_ms=20.0, cpu_ms=18.0, cores=8, workers=4).run(60)
    few = training.workers
    training.cpu_ms = 90.0
    training.run(60)
    assert few <= 2
    assert training.step_ms(training.workers) <= 1.05 * training.best_ms()


def test_workers_are_not_released_without_measurements():
    training = Simulated(own_ms=100.0, cpu_ms=0.0, cores=4, workers=4)
    assert training.run(60).workers == 4
