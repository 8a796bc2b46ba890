"""Measured rates as the starting point of predictions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from feedline.throughput.phase_rates import PoolRate, pool_rate
from feedline.throughput.step_window import StepWindow
from throughput.phases import point, rates


def seen(window: dict[str, Any], **options: Any) -> PoolRate:
    usual: dict[str, Any] = {
        "phase": None,
        "steps": 10,
        "seconds": 0.4,
        "wait_s": 0.3,
        "tasks_s": 0.8,
        "on_core": 0.5,
        "queued": 0.25,
        "workers": 2,
    }
    given: dict[str, Any] = {
        "error": 0.02,
        "cores": 4,
        "compute_s": 0.009,
        "step_cpu_s": 0.001,
        "hand_cpu_s": 0.002,
    }
    return pool_rate(StepWindow(**(usual | window)), **(given | options))


def test_waiting_for_a_core_is_not_work_and_rest_is_split() -> None:
    found = seen({})
    load = found.load
    assert (found.step_ms, found.error) == (pytest.approx(40), 0.02)
    assert (load.workers, load.cores) == (2, 4.0)
    # 80 ms of a batch, of which 20 are spent in wait for a core: two thirds of the rest on one.
    assert load.work_cpu_ms == pytest.approx(40)
    assert load.work_blocked_ms == pytest.approx(20)
    assert (load.compute_ms, load.step_cpu_ms) == (pytest.approx(9), pytest.approx(1))
    assert load.hand_ms == load.hand_cpu_ms == pytest.approx(2)


def test_step_time_is_bounded_by_observation_and_cores() -> None:
    assert seen({}, compute_s=0.5).load.compute_ms == pytest.approx(10)
    assert seen({}, compute_s=None).load.compute_ms == pytest.approx(10)
    assert seen({}, step_cpu_s=1.0).load.step_cpu_ms == pytest.approx(36)
    assert seen({"wait_s": 0.001}, hand_cpu_s=1.0).load.hand_ms == pytest.approx(0.1)


def test_ready_batches_make_wait_a_hand_over() -> None:
    ready = seen({"tasks_s": 0.2, "wait_s": 0.05}, compute_s=0.035).load
    assert ready.hand_ms == pytest.approx(5)
    assert ready.hand_cpu_ms == pytest.approx(2)
    assert ready.step_ms == pytest.approx(40)


def test_occasional_late_batches_are_not_hand_over() -> None:
    # Workers are at work a quarter of the time, and steps wait for more than half of theirs.
    uneven = seen({"tasks_s": 0.2, "wait_s": 0.25}, compute_s=0.015).load
    assert uneven.hand_ms == pytest.approx(2)
    assert uneven.late_ms == pytest.approx(40 - 15 - 2)
    assert uneven.step_ms == pytest.approx(40)
    assert uneven.limit == "workers"


def test_waits_of_few_steps_are_due_to_late_batches() -> None:
    few = {"tasks_s": 0.2, "wait_s": 0.06}
    some = seen(few, compute_s=0.034, usual_wait_s=0.0, hand_cpu_s=0.0005).load
    assert (some.hand_ms, some.late_ms) == (pytest.approx(0.5), pytest.approx(5.5))
    each = seen(few, compute_s=0.034, usual_wait_s=0.006, hand_cpu_s=0.0005).load
    assert (each.hand_ms, each.late_ms) == (pytest.approx(6), 0)


def test_workers_that_other_programs_keep_from_their_cores_have_no_batches_ready() -> None:
    late = {"tasks_s": 0.75, "queued": 0.8, "wait_s": 0.3}
    load = seen(late).load
    assert load.produce_ms < 0.6 * 40  # little work, but busy nearly all the time
    assert load.hand_ms == pytest.approx(2)
    assert load.consume_ms == pytest.approx(11)
    assert load.limit == "workers"


def test_equally_busy_worker_counts_reveal_nothing_about_sharing() -> None:
    waits: dict[str, Any] = {"work_cpu_ms": 1.0, "work_blocked_ms": 9.0}
    busy = point(workers=1, compute_ms=10.0, **waits)
    # One worker is at work all the time; so are two of which each has half of it to do.
    assert rates(224, busy, point(workers=2, compute_ms=10.0, **waits)).shared is None
    assert rates(224, busy).shared is None
    assert rates(224, point(work_cpu_ms=0.0)).shared is None


def test_no_figure_is_infinite() -> None:
    still = PoolRate(load=point(compute_ms=0.0, work_cpu_ms=0.0).load, step_ms=0.0)
    assert math.isfinite(rates(224, still).per_s(0.0))
    assert still.lanes == 0.0
    assert rates(224, still, point(workers=4)).nearest(4).load.workers == 4
