"""Phases with something changed, from numbers that are made up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import UsageError
from feedline.throughput.changes import Changes
from feedline.throughput.phase_rates import PoolRate, Rates, pool_rate
from feedline.throughput.step_model import StepLoad
from feedline.throughput.what_if import PhasePrediction, what_if
from throughput.phases import load, point, rates
from tuning.uneven import Uneven

MS = st.floats(0.01, 1000.0)
LOADS = st.builds(
    StepLoad,
    workers=st.integers(1, 64),
    cores=st.integers(1, 64).map(float),
    compute_ms=MS,
    step_cpu_ms=st.floats(0.0, 10.0),
    hand_ms=st.floats(0.0, 10.0),
    hand_cpu_ms=st.floats(0.0, 10.0),
    work_cpu_ms=MS,
    work_blocked_ms=st.floats(0.0, 1000.0),
    beside_cpu_ms=st.floats(0.0, 10.0),
    late_ms=st.floats(0.0, 100.0),
)
PHASES = st.builds(
    lambda load, stretch: rates(224, PoolRate(load=load, step_ms=load.step_ms * stretch)),
    LOADS,
    st.floats(0.8, 1.5),
)


def then(phase: Rates, changes: str) -> PhasePrediction:
    (found,) = what_if([phase], changes).phases
    return found


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-6)


def test_computing_workers_scale_up_to_cores() -> None:
    phase = rates()
    assert then(phase, "workers=2").now == near(1600)
    assert (then(phase, "workers=1").then, then(phase, "workers=1").limit) == (near(800), "workers")
    four = then(phase, "workers=4")
    assert four.then == near(3200)
    assert four.limit == "step"
    slow = rates(224, point(compute_ms=1.0))
    assert then(slow, "workers=4").limit == "cores"
    assert then(slow, "workers=64").then == then(slow, "workers=4").then == near(3200)
    assert then(slow, "workers=8,cores=8").then == near(6400)


def test_faster_step_helps_only_if_it_is_the_limit() -> None:
    bound = rates(224, point(compute_ms=40.0))
    assert then(bound, "gpu=2").then == near(1600)
    assert then(bound, "gpu=0.5").then == near(400)
    assert then(bound, "gpu=4").then == near(1600)
    assert then(rates(), "gpu=2").factor == near(1.0)
    assert then(rates(), "gpu=2").limit == "workers"


def test_nothing_measured_is_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing was measured"):
        what_if([], "workers=2")


def test_waiting_workers_have_a_lower_and_an_upper_estimate() -> None:
    phase = rates(224, point(work_cpu_ms=4.0, work_blocked_ms=36.0))
    found = then(phase, "workers=4")
    assert (found.low, found.then, found.high) == (near(1600), near(3200), near(3200))
    assert "at once" in found.notes[0]
    assert "1600 to 3200" in str(what_if([phase], "workers=4"))
    assert then(phase, "workers=2").notes == ()


def test_waits_of_several_worker_counts_predict_gain_of_more() -> None:
    waits: dict[str, Any] = {"compute_ms": 1.0, "work_cpu_ms": 4.0}
    one = point(workers=1, work_blocked_ms=36.0, **waits)
    alone = rates(224, point(work_blocked_ms=36.0, **waits), one)
    assert alone.shared == 0.0
    assert then(alone, "workers=4").factor == near(2.0)
    serial = rates(224, point(work_blocked_ms=76.0, **waits), one)
    assert serial.shared is not None
    assert 0.9 < serial.shared <= 1.0
    assert then(serial, "workers=4").factor < 1.2
    assert then(serial, "workers=4").notes == ()


def test_measured_number_of_workers_keeps_its_rate() -> None:
    one = PoolRate(load=load(workers=1), step_ms=47.0)
    phase = rates(224, point(), one)
    assert then(phase, "workers=1").then == near(32_000 / 47)
    # From the nearest one: it is slower than the model, and so are its neighbours.
    assert then(rates(224, one, point(workers=64)), "workers=2").then == near(64_000 / 47)


def test_stretch_is_uncertain_if_steps_no_longer_wait() -> None:
    found = then(rates(224, point(stretch=1.2)), "workers=8")
    assert (found.low, found.high) == (near(3200 / 1.2), near(3200))
    assert found.then == near(3200 / math.sqrt(1.2))


def test_step_on_core_may_not_be_shortened_by_gpu() -> None:
    found = then(rates(224, point(compute_ms=100.0, step_cpu_ms=100.0)), "gpu=4")
    assert found.low == pytest.approx(320, rel=0.001)
    assert found.then > 1200
    assert "CPU" in found.notes[0]


UNEVEN = {"compute_ms": 20.0, "work_cpu_ms": 25.0, "late_ms": 10.0}


def test_steps_that_wait_for_uneven_batches_are_not_bound_by_the_step() -> None:
    phase = rates(224, point(**UNEVEN))
    for changes in ("workers=1", "workers=4", "gpu=2", "cores=8"):
        found = then(phase, changes)
        assert found.limit == "workers"
        assert found.low < found.high
        assert "unevenly" in found.notes[0]
    # As if all of the waiting went, and as if a quicker step waited for as much longer.
    assert then(phase, "workers=4").high == near(32_000 / 20)
    assert then(phase, "gpu=2").low == near(32_000 / 30)
    assert then(phase, "cores=4").notes == ()


@pytest.mark.parametrize(
    "training", [Uneven(20, 20, 10, 20), Uneven(40, 10, 8, 60), Uneven(20, 20, 10, 30)], ids=str
)
def test_simulated_uneven_training_lies_within_the_estimates(training: Uneven) -> None:
    window = training.window(2, 2)
    seen = pool_rate(
        window, error=0.0, cores=64, compute_s=None, step_cpu_s=0.0, hand_cpu_s=0.0, usual_wait_s=0
    )
    phase = rates(None, seen)
    for changes, measured_ms in (
        ("workers=3", training.step_ms(3, 2)),
        ("workers=8", training.step_ms(8, 2)),
        ("gpu=2", replace(training, own_ms=training.own_ms / 2).step_ms(2, 2)),
        ("gpu=0.5", replace(training, own_ms=training.own_ms * 2).step_ms(2, 2)),
    ):
        found = then(phase, changes)
        measured = 32_000 / measured_ms
        assert found.low * 0.99 <= measured <= found.high * 1.01, changes


def test_measurement_error_widens_prediction() -> None:
    phase = rates(224, replace(point(), error=0.1))
    found = then(phase, "workers=1")
    assert (found.low, found.high) == (near(800 / 1.1), near(880))
    assert then(phase, "gpu=1").low == then(phase, "gpu=1").high


def test_table_and_json_agree() -> None:
    found = what_if([rates(112), rates()], "workers=4,cores=8")
    text = str(found)
    assert "what if workers=4, cores=8 (images/s)" in text
    assert "112 px" in text
    assert "bottleneck" in text
    said = found.as_dict()
    assert said["changes"] == {"workers": 4, "cores": 8, "gpu": None}
    assert [phase["size"] for phase in said["phases"]] == [112, 224]
    assert said["phases"][0]["factor"] == near(2.0)
    unknown = what_if([rates(None, rows=None)], "workers=4")
    assert "steps/s" in str(unknown)
    assert "all batches" in str(unknown)


@given(PHASES, st.integers(1, 64))
def test_more_workers_are_never_slower(phase: Rates, workers: int) -> None:
    few, more = (then(phase, f"workers={crew}") for crew in (workers, workers + 1))
    assert more.then >= few.then * (1 - 1e-9)


@given(PHASES, st.integers(1, 64))
def test_more_cores_are_never_slower(phase: Rates, cores: int) -> None:
    few, more = (then(phase, f"cores={each}") for each in (cores, cores + 1))
    assert more.then >= few.then * (1 - 1e-9)


@given(PHASES)
def test_change_to_same_value_changes_nothing(phase: Rates) -> None:
    now = phase.now.load
    for changes in (
        Changes(gpu=1.0),
        Changes(workers=now.workers),
        Changes(cores=round(now.cores)),
        Changes(workers=now.workers, gpu=1.0),
    ):
        (found,) = what_if([phase], changes).phases
        assert found.then == near(found.now)
        assert found.low == near(found.high)


@given(PHASES, st.floats(0.01, 1000.0), st.integers(1, 512), st.integers(1, 4096))
def test_estimate_lies_in_its_interval_for_any_change(
    phase: Rates, gpu: float, workers: int, cores: int
) -> None:
    changes = Changes(gpu=gpu, workers=workers, cores=cores)
    (found,) = what_if([phase], changes).phases
    assert 0 < found.low <= found.then * (1 + 1e-9)
    assert found.then <= found.high * (1 + 1e-9) < math.inf
