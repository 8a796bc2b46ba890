"""Schedules forecast, from numbers that are made up."""

from __future__ import annotations

import json

import pytest

from feedline.errors import UsageError
from feedline.throughput.phase_rates import rates_at
from feedline.throughput.schedule_estimate import forecast
from throughput.phases import point, rates

# A step's time goes with the pixels; an image of 112 px takes half of the work.
SMALL = rates(112, point(compute_ms=10.0, work_cpu_ms=60.0))
LARGE = rates(224, point(compute_ms=40.0, work_cpu_ms=120.0))


def test_each_phase_lists_requirements() -> None:
    found = forecast([SMALL, LARGE], "112x10,224x10", images=32_000, workers=2)
    small, large = found.phases
    assert small.free == pytest.approx(3200)
    assert (small.needed, small.needed_cores, small.limit) == (6, 6, "workers")
    assert (large.needed, large.limit) == (3, "workers")
    lines = [line.split() for line in str(found).splitlines()]
    assert ["112", "px", "10", "1067", "3200", "2", "6"] in [line[:7] for line in lines]


def test_sufficient_workers_are_reported() -> None:
    found = forecast([LARGE], "224x1", workers=4, images=3200)
    assert "4.0 s" in str(found)
    assert found.phases[0].limit == "step"
    assert forecast([LARGE], "224x1", workers=4).seconds is None
    assert found.fixed_px is None


def test_hours_are_given_for_phases_and_for_fixed_largest_size() -> None:
    found = forecast([SMALL, LARGE], "112x10,224x10", images=32_000, workers=2)
    # 30 ms and 60 ms for a batch of 32.
    assert found.seconds == pytest.approx(10 * 1000 * 0.03 + 10 * 1000 * 0.06)
    assert found.fixed_s == pytest.approx(20 * 1000 * 0.06)
    text = " ".join(str(found).split())
    for fact in ("total 20 15 min", "all at 224 px 20 20 min"):
        assert fact in text
    json.dumps(found.as_dict(), allow_nan=False)


def test_intermediate_size_is_interpolated_by_pixels_and_reported() -> None:
    middle = rates_at([SMALL, LARGE], 160)
    share = (160**2 - 112**2) / (224**2 - 112**2)
    assert middle.now.load.compute_ms == pytest.approx(10 + share * 30)
    assert middle.now.load.work_ms == pytest.approx(60 + share * 60)
    assert "between 112 and 224 px" in middle.basis
    assert middle.basis in " ".join(str(forecast([SMALL, LARGE], "112x1,160x1,224x1")).split())


def test_extrapolated_size_is_marked_as_not_measured() -> None:
    beyond = rates_at([SMALL], 224)
    assert beyond.now.load.compute_ms == pytest.approx(40)
    assert beyond.now.load.work_ms == pytest.approx(60)
    assert "not measured" in beyond.basis
    assert "not measured" in str(forecast([SMALL], "112x1,224x1"))
    assert forecast([SMALL], "224x1").as_dict()["phases"][0]["basis"] == beyond.basis
    assert rates_at([SMALL], 112).basis == ""


def test_a_phase_of_another_batch_size_is_scaled() -> None:
    larger = rates_at([SMALL], 112, 64)
    assert larger.rows == 64
    assert larger.per_s(larger.now.step_ms) == pytest.approx(SMALL.per_s(SMALL.now.step_ms))
    assert "batches of 32" in larger.basis
    assert rates_at([SMALL], 112, 32) is SMALL


def test_without_workers_a_step_waits_for_each_batch() -> None:
    alone = rates(224, point(workers=0, work_cpu_ms=10.0))
    (phase,) = forecast([alone], "224x1").phases
    assert (phase.limit, phase.needed, phase.workers) == ("workers", 1, 0)
    assert phase.then.then == pytest.approx(1600)


def test_zero_step_time_gives_finite_figures() -> None:
    json.dumps(forecast([rates(8, point(compute_ms=0.0))], "8x1").as_dict(), allow_nan=False)


def test_unpredictable_schedule_is_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing was measured"):
        forecast([], "112x1")
    with pytest.raises(UsageError, match="sizes"):
        forecast([SMALL], "ownx1")
    with pytest.raises(UsageError, match="112 px"):
        forecast([rates(None)], "112x1")
    for images in (0, 1.5, "32"):
        with pytest.raises(UsageError, match="at least 1"):
            forecast([SMALL], "112x1", images=images)  # type: ignore[arg-type]
    for workers in (0, -1, 2.5):
        with pytest.raises(UsageError, match="workers must be"):
            forecast([SMALL], "112x1", workers=workers)  # type: ignore[arg-type]


def test_no_number_of_workers_is_promised_for_uneven_batches() -> None:
    uneven = rates(224, point(compute_ms=20.0, work_cpu_ms=25.0, late_ms=10.0))
    found = forecast([uneven], "224x1", workers=2)
    assert (found.phases[0].needed, found.phases[0].limit) == (None, "workers")
    assert found.as_dict()["phases"][0]["batches_come_unevenly"]
    assert "unevenly" in str(found)
    assert not forecast([LARGE], "224x1").as_dict()["phases"][0]["batches_come_unevenly"]
