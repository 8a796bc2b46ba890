"""Bottleneck of a step and the workers that it needs: one definition for every verdict."""

import math
from dataclasses import replace

import pytest
from hypothesis import given

from feedline.profile.diagnose import diagnose
from feedline.throughput.controller import Controller
from feedline.throughput.step_model import (
    WorkerLimits,
    bottleneck,
    is_compute_bound,
    with_workers,
    workers_needed,
)
from feedline.throughput.what_if import what_if
from feedline.tuning.search import LoaderSetting, LoaderTrial, Search
from profiling.diagnosed_runs import a_run, one_pass
from throughput.phases import a_window, load, point, rates
from throughput.test_what_if import LOADS


def verdicts(wait_share):
    """Compute-bound or not: each place's verdict on steps of 50 ms with this share of data wait.

    Four workers are always busy and eight cores can be used.
    """
    wait_ms = 50 * wait_share
    own_ms, work_ms = 50 - wait_ms, 4 * 50.0
    run = a_run(one_pass(wait=wait_ms, compute=own_ms), work=work_ms)
    window = a_window(
        steps=40, wait_s=2.0 * wait_share, tasks_s=40 * work_ms / 1e3, tasks=40, prefetch=0
    )
    search = Search(
        WorkerLimits(cores=8), LoaderSetting(workers=4, prefetch=2), ceiling=1e3 / own_ms
    )
    search.add(LoaderTrial(setting=LoaderSetting(workers=4, prefetch=2), window=window))
    controller = Controller(WorkerLimits(cores=8))
    steps = rates(224, point(workers=4, compute_ms=own_ms, work_cpu_ms=work_ms, cores=8.0))
    (predicted,) = what_if([steps], "gpu=1").phases
    return {
        "report": diagnose(run).bound == "not input-bound",
        "adaptation": not any(controller.observe(window) for _ in range(8)),
        "tune": search.is_compute_bound,
        "what-if": predicted.bottleneck == "compute",
        "window": is_compute_bound(window.wait_share),
        "load": bottleneck(window.load()) == "compute",
    }


@pytest.mark.parametrize(
    ("wait_share", "compute_bound"), [(0.01, True), (0.04, True), (0.06, False)]
)
def test_every_place_gives_the_same_verdict(wait_share, compute_bound):
    found = verdicts(wait_share)
    assert found == dict.fromkeys(found, compute_bound)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"work_cpu_ms": 10.0}, "compute"),
        ({}, "workers"),
        ({"workers": 4, "work_cpu_ms": 80.0}, "cores"),
        ({"work_cpu_ms": 10.0, "hand_ms": 4.0}, "hand-over"),
        ({"work_cpu_ms": 10.0, "copy_ms": 4.0}, "copy"),
        ({"work_cpu_ms": 10.0, "late_ms": 4.0}, "workers"),
        ({"workers": 0}, "workers"),
        ({"compute_ms": 0.0, "work_cpu_ms": 0.0}, "compute"),
    ],
)
def test_part_that_bounds_the_step(given, part):
    assert bottleneck(load(**given)) == part


@given(LOADS)
def test_needed_workers_are_the_fewest_that_suffice(some):
    needed = workers_needed(some)
    if needed is None:
        assert some.work_ms > 512 * some.consume_ms
        return
    assert with_workers(some, needed).made_ms <= some.consume_ms * (1 + 1e-6)
    assert needed == 1 or with_workers(some, needed - 1).made_ms > some.consume_ms
    assert (workers_needed(some, 1.1) or math.inf) >= needed


def test_workers_that_wait_for_each_other_may_never_suffice():
    serial = replace(load(work_cpu_ms=1.0), work_blocked_ms=40.0)
    assert workers_needed(serial) == 5
    assert workers_needed(serial, shared=1.0) is None
