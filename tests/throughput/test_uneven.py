"""Batches that come unevenly, against trainings that are simulated from step to step."""

import pytest

from feedline.throughput.controller import Controller
from feedline.throughput.step_model import MemoryBudget, WorkerLimits
from feedline.throughput.windows import StepWindow
from slow import slow
from throughput.phases import a_window
from throughput.simulated import Stepped, now_and_then, varied

SPIKES = now_and_then(100.0, 1 / 20, 10.0)  # 145 ms on average
VARIED = varied(100.0)


def decisions(training, what):
    return [each for _, each in training.decisions if each.what == what]


def of_whole_batches(work, own_ms, workers=1, seed=0):
    return Stepped(own_ms=own_ms, work=work, for_each=2, cores=16, workers=workers, seed=seed)


@pytest.mark.parametrize("seed", [*range(3), *slow(*range(3, 20))])
@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize(("work", "own_ms"), [(SPIKES, 45.0), (VARIED, 30.0)])
def test_steps_do_not_wait_for_uneven_whole_batches(work, own_ms, workers, seed):
    """With the fewest workers that are enough, and no more batches ahead, they do."""
    usual = of_whole_batches(work, own_ms, workers=4, seed=seed)
    assert usual.step_ms(4000) > 1.15 * own_ms
    training = of_whole_batches(work, own_ms, workers, seed)
    training.run(200)
    assert training.step_ms(4000) < 1.07 * own_ms
    assert 2 * 4 < training.prefetch <= 2 * 16


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 8))])
@pytest.mark.parametrize(
    "work",
    [SPIKES, VARIED, now_and_then(100.0, 0.01, 30.0), now_and_then(100.0, 0.0, 1.0)],
    ids=["spikes", "varied", "stalls", "even"],
)
def test_controller_settles_in_a_steady_hour(work, seed):
    training = of_whole_batches(work, 45.0, workers=4, seed=seed)
    training.run(3600)
    assert len([each for each in decisions(training, "prefetch") if each.kind == "even"]) <= 1
    assert len([when for when, _ in training.decisions if when > 1200]) <= 3
    assert len(training.decisions) <= 12
    back = [(each.what, each.before) for _, each in training.decisions if each.kind == "back"]
    assert len(back) == len(set(back))
    assert training.workers <= 16
    assert training.prefetch <= 32


@pytest.mark.parametrize("seed", [*range(2), *slow(*range(2, 8))])
def test_smaller_tasks_divide_uneven_rows_among_many_workers(seed):
    def training(task_ms):
        more = {"cores": 16, "workers": 16, "seed": seed, "task_ms": task_ms}
        return Stepped(own_ms=25.0, work=varied(320.0, rows=64), **more)

    adapted = training(50.0)
    adapted.run(60)
    assert [each.kind for each in decisions(adapted, "task_ms")] == ["even"]
    assert adapted.task_ms == 12.5
    assert adapted.step_ms(400) < 0.85 * training(50.0).step_ms(400)
    assert not decisions(adapted, "prefetch")  # memory for batches of rows is fixed


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_useless_change_is_undone_and_not_repeated(noise):
    """Steps that wait for something in their own process."""
    training = Stepped(
        own_ms=40.0,
        copy_ms=15.0,
        work=lambda chances: [chances.uniform(1 - noise, 1 + noise) * 80.0],
        for_each=2,
        cores=8,
        workers=4,
    )
    training.run(1800)
    for what, value in (("prefetch", (8, 16)), ("workers", (4, 6))):
        tried = decisions(training, what)
        assert [each.kind for each in tried[:2]] == ["even", "back"]
        assert (tried[0].before, tried[0].after) == value
        assert (tried[1].after, tried[1].before) == value
    assert "did not make steps faster: 55 ms before, 55 ms now" in tried[1].reason
    assert len(training.decisions) == 4
    assert training.prefetch == 8


@pytest.mark.parametrize("seed", range(3))
def test_useless_task_size_is_undone(seed):
    """Rows take equal time, with two workers: waits have another cause."""
    training = Stepped(
        own_ms=400.0,
        copy_ms=60.0,
        work=now_and_then(400.0, 0.0, 1.0, rows=64),
        cores=2,
        workers=2,
        seed=seed,
    )
    training.run(600)
    assert [each.kind for each in decisions(training, "task_ms")] == ["even", "back"]
    assert training.task_ms == 50.0
    assert len(training.decisions) == 2


def test_new_workload_is_tried_again():
    training = Stepped(
        own_ms=40.0, copy_ms=15.0, work=now_and_then(80.0, 0.0, 1.0), for_each=2, cores=8, workers=4
    )
    training.run(120)
    assert training.prefetch == 8
    training.own_ms, training.copy_ms, training.work = 80.0, 0.0, now_and_then(160.0, 0.05, 10.0)
    training.run(120)
    assert training.prefetch == 16
    assert [each.kind for each in decisions(training, "prefetch")] == ["even", "back", "even"]


def first_change(limits, **changes):
    controller = Controller(limits)
    for _ in range(20):
        if decision := controller.observe(a_window(**changes)):
            return decision
    return None


ROWS = {"prefetch": 0, "task_ms": 50.0}


def budget(free, worker_bytes=0, batch_bytes=0):
    return MemoryBudget(
        free=free, workers=4, ahead=0, worker_bytes=worker_bytes, batch_bytes=batch_bytes
    )


@pytest.mark.parametrize(
    ("limits", "changes", "what", "value"),
    [
        ({"for_each": 2}, {}, "prefetch", 32),
        ({"for_each": 2, "memory": budget(6, batch_bytes=1)}, {}, "prefetch", 14),
        ({"for_each": 2, "memory": budget(0, batch_bytes=1)}, {}, "workers", 6),
        ({"for_each": 2, "memory": budget(4, worker_bytes=1)}, {}, "prefetch", 16),
        ({"for_each": 2}, {"prefetch": 32}, "workers", 6),
        ({}, {}, "workers", 6),
        ({"memory": budget(0, worker_bytes=1)}, {}, None, None),
        ({}, ROWS, "task_ms", 12.5),
        ({}, ROWS | {"task_ms": 7.0}, "task_ms", 2.0),
        ({}, ROWS | {"tasks": 400}, "workers", 6),  # of 10 ms: as long as they can be
        ({"for_each": 2}, {"wait_s": 0.05}, None, None),
        # Nearly always busy, if only waiting for cores: nothing to even out.
        ({"for_each": 2}, {"tasks_s": 7.5, "queued": 0.4, "on_core": 0.6}, "workers", 5),
    ],
)
def test_order_of_trials(limits, changes, what, value):
    decision = first_change(WorkerLimits(cores=16, **limits), **changes)
    assert (None, None) if decision is None else (decision.what, decision.after) == (what, value)
    assert (decision is None) == (what is None)


def test_nothing_is_tried_for_a_moment():
    controller = Controller(WorkerLimits(cores=16, for_each=2))
    for _ in range(100):
        assert not controller.observe(a_window(wait_s=0.5, tasks_s=5.4))
        for _ in range(30):
            assert not controller.observe(a_window(wait_s=0.01, tasks_s=5.4))


def test_change_by_user_is_not_evaluated():
    controller = Controller(WorkerLimits(cores=16, for_each=2))
    tried = None
    while tried is None:
        tried = controller.observe(a_window(error=0.5))
    assert (tried.what, tried.after) == ("prefetch", 32)
    assert controller.observe(a_window(prefetch=32, error=0.5)) is None
    for _ in range(20):
        decision = controller.observe(a_window(prefetch=12, seconds=9.0, wait_s=0.0, error=0.5))
        assert decision is None or decision.kind != "back"


def test_windows_are_joined():
    one = a_window(seconds=1.0, steps=10, error=0.3, on_core=0.5, queued=None, wait_s=0.4)
    other = a_window(seconds=3.0, steps=30, error=0.4, on_core=None, queued=0.1, wait_s=0.0)
    both = StepWindow.joined([one, other])
    assert (both.steps, both.seconds, both.wait_s, both.tasks_s) == (40, 4.0, 0.4, 8.0)
    assert (both.on_core, both.queued) == (0.5, 0.1)
    assert both.error == pytest.approx((0.3**2 + 1.2**2) ** 0.5 / 4)
    assert StepWindow.joined([one]) == one
