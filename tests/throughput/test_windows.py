"""Rates and errors of steps."""

from __future__ import annotations

import math
import time

import pytest

from feedline.throughput.windows import RateMeter, error_of, error_of_means


def test_warm_up_is_not_counted() -> None:
    meter = RateMeter(0.0, warmup=2, least=3)
    assert [meter.add(5) for _ in range(5)] == [True, True, True, True, False]
    assert (meter.count, meter.steps) == (15, 3)
    assert meter.per_s == pytest.approx(meter.count / meter.seconds)


def test_counting_lasts_for_the_time_asked() -> None:
    meter = RateMeter(0.01)
    while meter.add():
        pass
    assert meter.seconds >= 0.01
    assert meter.count == meter.steps


def test_counting_ends_at_the_deadline() -> None:
    meter = RateMeter(math.inf, least=100, until=time.monotonic())
    assert not meter.add(4)
    assert (meter.count, meter.steps) == (4, 1)


def test_the_error_is_of_all_steps() -> None:
    assert error_of([1.0] * 7) == 1.0
    assert error_of([2.0] * 100) == 0.0
    assert error_of([1.0] * 9 + [20.0]) > 0.5  # also of the last
    steps = [float(1 + k % 2) for k in range(800)]
    assert error_of(steps) == 0.0  # differences that even out between neighbours are ignored


def test_few_means_have_no_error() -> None:
    assert error_of_means([1.0] * 3) is None
    assert error_of_means([0.0] * 5) is None
    assert error_of_means([1.0, 1.0, 1.0, 2.0]) == pytest.approx(3.182 * 0.5 / 2 / 1.25)
