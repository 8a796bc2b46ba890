"""Estimates: valid changes, phases with something changed, and schedules, from made-up numbers."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import UsageError
from feedline.throughput.step_model import StepLoad, bottleneck
from feedline.throughput.what_if import Changes, forecast, rates_at, what_if
from feedline.throughput.windows import PoolRate, StepWindow, error_of, pool_rate
from throughput.phases import a_window, load, point, rates
from throughput.simulated import WORK, Simulated, Stepped, periodic


def test_changes_have_names_in_any_order_with_spaces_and_values_in_range():
    found = Changes.parse(" gpu = 2.5 ,cores=16 , workers=8")
    assert found == Changes(workers=8, cores=16, gpu=2.5)
    assert str(found) == "workers=8, cores=16, gpu=2.5"
    with pytest.raises(UsageError, match="must be text"):
        Changes.parse(8)
    for change in ({"workers": True}, {"gpu": 0}, {"gpu": "2"}):
        with pytest.raises(UsageError, match=next(iter(change))):
            Changes(**change)


@given(
    workers=st.none() | st.integers(1, 512),
    cores=st.none() | st.integers(1, 4096),
    gpu=st.none() | st.integers(1, 100_000).map(lambda cents: cents / 100),
)
def test_text_form_round_trips(**given):
    changes = Changes(**given)
    if any(value is not None for value in given.values()):
        assert Changes.parse(str(changes)) == changes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "workers",
        "workers=0",
        "workers=513",
        "workers=2.5",
        "workers=" + "9" * 5000,
        "workers=2,workers=3",
        "workers=2,",
        "workers=2 cores=3",
        "cores=4097",
        "gpu=0.001",
        "gpu=nan",
        "gpu=1001",
        "disk=4",
    ],
)
def test_unparsable_change_is_usage_error_with_expected_form(text):
    with pytest.raises(UsageError, match=r"(?s)what-if.*workers=8,cores=16,gpu=2"):
        Changes.parse(text)


def seen(window, **options):
    usual = {"steps": 10, "seconds": 0.4, "wait_s": 0.3, "tasks_s": 0.8, "on_core": 0.5}
    usual |= {"queued": 0.25, "workers": 2, "error": 0.02, "wait_cpu_s": 0.002}
    given = {"cores": 4, "compute_s": 0.009, "step_cpu_s": 0.001}
    return pool_rate(a_window(**(usual | window)), **(given | options))


def test_waiting_for_a_core_is_not_work_and_rest_is_split():
    found = seen({})
    load = found.load
    assert (found.step_ms, found.error) == (pytest.approx(40), 0.02)
    assert (load.workers, load.cores) == (2, 4.0)
    # 80 ms of a batch, of which 20 are spent in wait for a core: two thirds of the rest on one.
    assert load.work_cpu_ms == pytest.approx(40)
    assert load.work_blocked_ms == pytest.approx(20)
    assert (load.compute_ms, load.step_cpu_ms) == (pytest.approx(9), pytest.approx(1))
    assert load.hand_ms == load.hand_cpu_ms == pytest.approx(2)


def test_step_time_is_bounded_by_observation_and_cores():
    assert seen({}, compute_s=0.5).load.compute_ms == pytest.approx(10)
    assert seen({}, compute_s=None).load.compute_ms == pytest.approx(10)
    assert seen({}, step_cpu_s=1.0).load.step_cpu_ms == pytest.approx(36)
    assert seen({"wait_s": 0.001, "wait_cpu_s": 1.0}).load.hand_ms == pytest.approx(0.1)


FEW_WAITS = {"tasks_s": 0.2, "wait_s": 0.06, "wait_cpu_s": 0.0005}


@pytest.mark.parametrize(
    ("window", "compute_s", "hand_ms", "late_ms"),
    [
        # Batches are ready: each wait is a hand-over.
        ({"tasks_s": 0.2, "wait_s": 0.05}, 0.035, 5, 0),
        # Workers are at work a quarter of the time, and steps wait for more than half of theirs.
        ({"tasks_s": 0.2, "wait_s": 0.25}, 0.015, 2, 40 - 15 - 2),
        # Few steps wait, or each does.
        (FEW_WAITS | {"usual_wait_s": 0.0}, 0.034, 0.5, 5.5),
        (FEW_WAITS | {"usual_wait_s": 0.006}, 0.034, 6, 0),
    ],
)
def test_waits_of_idle_workers_are_hand_overs_or_late_batches(window, compute_s, hand_ms, late_ms):
    load = seen(window, compute_s=compute_s).load
    assert (load.hand_ms, load.late_ms) == (pytest.approx(hand_ms), pytest.approx(late_ms))
    assert load.step_ms == pytest.approx(40)
    assert late_ms < 6 or bottleneck(load) == "workers"


def test_workers_that_other_programs_keep_from_their_cores_have_no_batches_ready():
    late = {"tasks_s": 0.75, "queued": 0.8, "wait_s": 0.3}
    load = seen(late).load
    assert load.produce_ms < 0.6 * 40  # little work, but busy nearly all the time
    assert load.hand_ms == pytest.approx(2)
    assert load.consume_ms == pytest.approx(11)
    assert bottleneck(load) == "workers"


def test_equally_busy_worker_counts_reveal_nothing_about_sharing():
    waits = {"work_cpu_ms": 1.0, "work_blocked_ms": 9.0}
    busy = point(workers=1, compute_ms=10.0, **waits)
    # One worker is at work all the time; so are two of which each has half of it to do.
    assert rates(224, busy, point(workers=2, compute_ms=10.0, **waits)).shared is None
    assert rates(224, busy).shared is None
    assert rates(224, point(work_cpu_ms=0.0)).shared is None
    # No figure is infinite.
    still = PoolRate(load=point(compute_ms=0.0, work_cpu_ms=0.0).load, step_ms=0.0, error=0.0)
    assert math.isfinite(rates(224, still).per_s(0.0))
    assert still.busy_workers == 0.0
    assert rates(224, still, point(workers=4)).nearest(4).load.workers == 4


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
    lambda load, stretch, error: rates(
        224, PoolRate(load=load, step_ms=load.step_ms * stretch, error=error)
    ),
    LOADS,
    st.floats(0.8, 1.5),
    st.floats(0.0, 1.0),
)


def then(phase, changes):
    (found,) = what_if([phase], changes).phases
    return found


def near(value):
    return pytest.approx(value, rel=1e-6)


def test_computing_workers_scale_up_to_cores():
    phase = rates()
    assert then(phase, "workers=2").now == near(1600)
    assert (then(phase, "workers=1").then, then(phase, "workers=1").bottleneck) == (
        near(800),
        "workers",
    )
    four = then(phase, "workers=4")
    assert four.then == near(3200)
    assert four.bottleneck == "compute"
    slow = rates(224, point(compute_ms=1.0))
    assert then(slow, "workers=4").bottleneck == "cores"
    assert then(slow, "workers=64").then == then(slow, "workers=4").then == near(3200)
    assert then(slow, "workers=8,cores=8").then == near(6400)


def test_faster_step_helps_only_if_it_is_the_limit():
    bound = rates(224, point(compute_ms=40.0))
    assert then(bound, "gpu=2").then == near(1600)
    assert then(bound, "gpu=0.5").then == near(400)
    assert then(bound, "gpu=4").then == near(1600)
    assert then(rates(), "gpu=2").factor == near(1.0)
    assert then(rates(), "gpu=2").bottleneck == "workers"


def off(changed, measured=0.05):
    """Factor of the error of a prediction that changes this share of the step time."""
    return 1 + math.hypot(measured, 0.2 * changed)


def test_waiting_workers_have_a_lower_and_an_upper_estimate():
    phase = rates(224, point(work_cpu_ms=4.0, work_blocked_ms=36.0))
    found = then(phase, "workers=4")
    assert (found.low, found.then, found.high) == (
        near(1600 / off(0.5)),
        near(3200),
        near(3200 * off(0.5)),
    )
    assert "at once" in found.notes[0]
    assert f"{found.low:.0f} to {found.high:.0f}" in str(what_if([phase], "workers=4"))
    assert then(phase, "workers=2").notes == ()


def test_waits_of_several_worker_counts_predict_gain_of_more():
    waits = {"compute_ms": 1.0, "work_cpu_ms": 4.0}
    one = point(workers=1, work_blocked_ms=36.0, **waits)
    alone = rates(224, point(work_blocked_ms=36.0, **waits), one)
    assert alone.shared == 0.0
    assert then(alone, "workers=4").factor == near(2.0)
    serial = rates(224, point(work_blocked_ms=76.0, **waits), one)
    assert serial.shared is not None
    assert 0.9 < serial.shared <= 1.0
    assert then(serial, "workers=4").factor < 1.2
    assert then(serial, "workers=4").notes == ()


def test_measured_number_of_workers_keeps_its_rate():
    one = PoolRate(load=load(workers=1), step_ms=47.0, error=0.0)
    phase = rates(224, point(), one)
    assert then(phase, "workers=1").then == near(32_000 / 47)
    # From the nearest one: it is slower than the model, and so are its neighbours.
    assert then(rates(224, one, point(workers=64)), "workers=2").then == near(64_000 / 47)


def test_step_on_core_may_not_be_shortened_by_gpu():
    found = then(rates(224, point(compute_ms=100.0, step_cpu_ms=100.0)), "gpu=4")
    assert found.low == pytest.approx(320 / off(1 - found.now / found.then), rel=0.001)
    assert found.then > 1200
    assert "CPU" in found.notes[0]


UNEVEN = {"compute_ms": 20.0, "work_cpu_ms": 25.0, "late_ms": 10.0}


def test_steps_that_wait_for_uneven_batches_are_not_bound_by_the_step():
    phase = rates(224, point(**UNEVEN))
    for changes in ("workers=1", "workers=4", "gpu=2", "cores=8"):
        found = then(phase, changes)
        assert found.bottleneck == "workers"
        assert found.low < found.high
        assert "unevenly" in found.notes[0]
    # As if all of the waiting went, and as if a quicker step waited for as much longer.
    more, faster = then(phase, "workers=4"), then(phase, "gpu=2")
    assert more.high == near(off(1 - more.now / more.then) * 32_000 / 20)
    assert faster.low == near(32_000 / 30 / off(1 - faster.now / faster.then))
    assert then(phase, "cores=4").notes == ()


@pytest.mark.parametrize(
    ("batches", "own_ms"), [((20, 20, 10), 20), ((40, 10, 8), 60), ((20, 20, 10), 30)]
)
def test_simulated_uneven_training_lies_within_the_estimates(batches, own_ms):
    def training(workers=2, gpu=1.0):
        made = {"work": periodic(*batches), "for_each": 2, "cores": 64, "window_s": 40.0}
        return Stepped(own_ms=own_ms / gpu, workers=workers, **made)

    window = replace(training().window(), error=0.0, usual_wait_s=0.0)
    phase = rates(None, pool_rate(window, cores=64))
    for name, value in (("workers", 3), ("workers", 8), ("gpu", 2), ("gpu", 0.5)):
        found = then(phase, f"{name}={value}")
        measured = 32_000 / training(**{name: value}).step_ms(2000)
        assert found.low <= measured <= found.high, (name, value)


@pytest.mark.parametrize("work", WORK, ids=str)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_other_numbers_of_workers_lie_within_the_estimates(work, workers):
    for seed in range(5):
        training = Simulated(workers=workers, seed=seed, noise=0.01, **work)
        windows = [training.window() for _ in range(16)]
        error = error_of([each.seconds for each in windows], [each.steps for each in windows])
        seen = pool_rate(
            replace(StepWindow.joined(windows), error=error),
            cores=training.cores,
            step_cpu_s=training.step_cpu_ms / 1e3,
        )
        for other in (1, 2, 3, 6, 16):
            found = then(rates(None, seen), f"workers={other}")
            measured = 32_000 / training.step_ms(other)
            assert other == workers or found.low <= measured <= found.high, other


def test_measurement_error_widens_prediction():
    phase = rates(224, replace(point(), error=0.1))
    found = then(phase, "workers=1")
    assert (found.low, found.high) == (near(800 / off(0.5, 0.1)), near(800 * off(0.5, 0.1)))
    assert then(phase, "gpu=1").low == then(phase, "gpu=1").high


def test_table_and_json_agree():
    found = what_if([rates(112), rates()], "workers=4,cores=8")
    text = str(found)
    assert "what if workers=4, cores=8 (images/s)" in text
    assert "112 px" in text
    assert "bottleneck" in text
    said = found.as_dict()
    assert said["changes"] == {"workers": 4, "cores": 8, "gpu": None}
    assert [phase["image_size"] for phase in said["phases"]] == [112, 224]
    assert said["phases"][0]["factor"] == near(2.0)
    unknown = what_if([rates(None, rows=None)], "workers=4")
    assert "steps/s" in str(unknown)
    assert "all batches" in str(unknown)


@given(PHASES, st.integers(1, 64))
def test_more_workers_and_more_cores_are_never_slower(phase, count):
    for name in ("workers", "cores"):
        few, more = (then(phase, f"{name}={each}") for each in (count, count + 1))
        assert more.then >= few.then * (1 - 1e-9)


@given(PHASES)
def test_change_to_same_value_changes_nothing(phase):
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
def test_estimate_lies_in_its_interval_for_any_change(phase, gpu, workers, cores):
    changes = Changes(gpu=gpu, workers=workers, cores=cores)
    (found,) = what_if([phase], changes).phases
    assert 0 < found.low <= found.then * (1 + 1e-9)
    assert found.then <= found.high * (1 + 1e-9) < math.inf


# A step's time goes with the pixels; an image of 112 px takes half of the work.
SMALL = rates(112, point(compute_ms=10.0, work_cpu_ms=60.0))
LARGE = rates(224, point(compute_ms=40.0, work_cpu_ms=120.0))


def test_each_phase_lists_requirements_and_time():
    found = forecast([SMALL, LARGE], "112x10,224x10", images=32_000, workers=2)
    small, large = found.phases
    assert small.compute_bound_rate == pytest.approx(3200)
    assert (small.num_workers_needed, small.cores_needed, small.bottleneck) == (6, 6, "workers")
    assert (large.num_workers_needed, large.bottleneck) == (3, "workers")
    # 30 ms and 60 ms for a batch of 32.
    assert found.seconds == pytest.approx(10 * 1000 * 0.03 + 10 * 1000 * 0.06)
    assert found.fixed_size_s == pytest.approx(20 * 1000 * 0.06)
    text = " ".join(str(found).split())
    for fact in ("112 px 10 1067 3200 2 6", "total 20 15 min", "all at 224 px 20 20 min"):
        assert fact in text
    json.dumps(found.as_dict(), allow_nan=False)


def test_sufficient_workers_are_reported_and_without_any_a_step_waits_for_each_batch():
    found = forecast([LARGE], "224x1", workers=4, images=3200)
    assert "4.0 s" in str(found)
    assert found.phases[0].bottleneck == "compute"
    assert forecast([LARGE], "224x1", workers=4).seconds is None
    assert found.fixed_size_px is None
    # Without workers a step waits for each batch.
    alone = rates(224, point(workers=0, work_cpu_ms=10.0))
    (phase,) = forecast([alone], "224x1").phases
    assert (phase.bottleneck, phase.num_workers_needed, phase.num_workers) == ("workers", 1, 0)
    assert phase.then == pytest.approx(1600)


def test_sizes_that_were_not_measured_are_interpolated_by_pixels_and_batch_sizes_scaled():
    middle = rates_at([SMALL, LARGE], 160)
    share = (160**2 - 112**2) / (224**2 - 112**2)
    assert middle.now.load.compute_ms == pytest.approx(10 + share * 30)
    assert middle.now.load.work_ms == pytest.approx(60 + share * 60)
    assert "between 112 and 224 px" in middle.basis
    beyond = rates_at([SMALL], 224)
    assert beyond.now.load.compute_ms == pytest.approx(40)
    assert beyond.now.load.work_ms == pytest.approx(60)
    assert "not measured" in beyond.basis
    found = forecast([SMALL], "224x1")
    assert found.phases[0].basis == beyond.basis
    assert "224 px: not measured" in str(found)
    assert rates_at([SMALL], 112).basis == ""
    larger = rates_at([SMALL], 112, 64)
    assert larger.rows == 64
    assert larger.per_s(larger.now.step_ms) == pytest.approx(SMALL.per_s(SMALL.now.step_ms))
    assert "batches of 32" in larger.basis
    assert rates_at([SMALL], 112, 32) is SMALL


@pytest.mark.parametrize(
    ("phase", "schedule", "options", "said"),
    [
        (SMALL, "ownx1", {}, "sizes"),
        (rates(None), "112x1", {}, "112 px"),
        (SMALL, "112x1", {"images": 0}, "at least 1"),
        (SMALL, "112x1", {"workers": 2.5}, "workers must be"),
    ],
)
def test_unpredictable_schedule_is_usage_error(phase, schedule, options, said):
    with pytest.raises(UsageError, match=said):
        forecast([phase], schedule, **options)


def test_no_number_of_workers_is_promised_for_uneven_batches():
    uneven = rates(224, point(**UNEVEN))
    found = forecast([uneven], "224x1", workers=2)
    assert (found.phases[0].num_workers_needed, found.phases[0].bottleneck) == (None, "workers")
    assert found.as_dict()["phases"][0]["is_uneven"]
    assert "unevenly" in str(found)
    assert not forecast([LARGE], "224x1").as_dict()["phases"][0]["is_uneven"]
