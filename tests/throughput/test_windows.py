"""Rates and errors of steps, and the work of the workers meanwhile."""

import math
import time
from dataclasses import replace

import pytest

from feedline.throughput.windows import RateMeter, StepWindow, error_of
from feedline.timing.stage_page import StageTimings


def test_warm_up_is_not_counted():
    meter = RateMeter(0.0, warmup=2, least=3)
    assert [meter.add(5) for _ in range(5)] == [True, True, True, True, False]
    assert (meter.count, meter.steps) == (15, 3)
    assert meter.per_s == pytest.approx(meter.count / meter.seconds)


def test_counting_lasts_for_the_time_asked_or_to_the_deadline():
    meter = RateMeter(0.01)
    while meter.add():
        pass
    assert meter.seconds >= 0.01
    assert meter.count == meter.steps
    meter = RateMeter(math.inf, least=100, until=time.monotonic())
    assert not meter.add(4)
    assert (meter.count, meter.steps) == (4, 1)


def test_the_error_is_of_all_steps():
    assert error_of([1.0] * 7) == 1.0
    assert error_of([2.0] * 100) == 0.0
    assert error_of([1.0] * 9 + [20.0]) > 0.5  # also of the last
    steps = [float(1 + k % 2) for k in range(800)]
    assert error_of(steps) == 0.0  # differences that even out between neighbours are ignored


def test_error_of_a_rate_is_that_of_its_time():
    assert error_of([0.0] * 50) == 1.0
    assert error_of([10.0, 20.0] * 40, [1.0, 2.0] * 40) == 0.0
    wild = error_of([100.0] * 40 + [900.0] * 40, [1.0] * 80)
    assert wild == pytest.approx(2.365 * 400 * (8 / 7) ** 0.5 / 8**0.5 / 500)


BEFORE = StageTimings(
    tasks=8, tasks_ms=800, timed=1, timed_ms=100, timed_cpu_ms=20, timed_queued_ms=10
)


def window(before, after):
    steps = StepWindow(phase=None, steps=8, seconds=1, wait_s=0, workers=2)
    return steps.with_tasks(before, after)


def test_timed_tasks_give_cpu_share():
    after = replace(
        BEFORE, tasks=12, tasks_ms=1200, timed=3, timed_ms=300, timed_cpu_ms=180, timed_queued_ms=30
    )
    seen = window(BEFORE, after)
    assert (seen.tasks, seen.tasks_s) == (4, 0.4)
    assert (seen.on_core, seen.queued) == (0.8, 0.1)


def test_without_timed_tasks_earlier_ones_give_cpu_share_or_it_is_one():
    seen = window(BEFORE, replace(BEFORE, tasks=12, tasks_ms=1200))
    assert (seen.tasks, seen.tasks_s) == (4, 0.4)
    assert (seen.on_core, seen.queued) == (0.2, 0.1)
    assert seen.blocked_share == pytest.approx(1 - 0.2 / 0.9)
    seen = window(StageTimings(), StageTimings(tasks=2, tasks_ms=200))
    assert (seen.on_core, seen.queued, seen.blocked_share) == (None, None, 0.0)
