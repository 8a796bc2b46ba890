"""Events become lanes in which each moment is busy, or idle for a reason."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from runs import drawn, sample_timeline

from feedline.profile.page import describe_lane, lane_shapes
from feedline.profile.terminal import TimelinesView
from feedline.profile.timeline import timeline_of, worst_step

LANES = ("worker 0", "worker 1", "step", "odd")


def spans(timeline, lane):
    (found,) = [each.spans for each in timeline.lanes if each.name == lane]
    return [(each.begun_ms, each.ended_ms, each.stage, each.cause) for each in found]


def test_step_waiting_for_worker_names_worker_state():
    timeline = drawn(
        ("step", "compute", 0, 10),
        ("step", "wait", 10, 20),
        ("worker 0", "make", 0, 20),
        ("worker 1", "make", 0, 8),
        ("worker 1", "make", 15, 20),
    )
    assert spans(timeline, "step") == [(0, 10, "compute", ""), (10, 20, "idle", "making")]
    assert spans(timeline, "worker 0") == [(0, 20, "make", "")]
    assert spans(timeline, "worker 1") == [
        (0, 8, "make", ""),
        (8, 10, "idle", "behind"),
        (10, 15, "idle", "others"),
        (15, 20, "make", ""),
    ]
    assert (timeline.steps, timeline.wait_ms, timeline.length_ms) == (1, 10, 20)
    assert timeline.begun_s == 3.0


def test_wait_without_busy_worker_differs_from_unobserved_wait():
    idle = drawn(
        ("step", "compute", 0, 10),
        ("step", "wait", 10, 20),
        ("worker 0", "make", 0, 9),
        ("worker 0", "make", 19, 20),
    )
    assert (10, 19, "idle", "nobody") in spans(idle, "step")
    unseen = drawn(("step", "compute", 0, 10), ("step", "wait", 10, 20), ("worker 0", "make", 0, 9))
    assert (10, 20, "idle", "unknown") in spans(unseen, "step")
    assert spans(unseen, "worker 0")[-1] == (9, 20, "unknown", "")
    alone = drawn(("step", "compute", 0, 10), ("step", "wait", 10, 20))
    assert spans(alone, "step")[-1] == (10, 20, "idle", "unknown")
    # A worker is unknown before its first recorded task.

    timeline = drawn(("step", "compute", 0, 100), ("worker 0", "make", 60, 100))
    assert spans(timeline, "worker 0") == [(0, 60, "unknown", ""), (60, 100, "make", "")]
    (lane,) = [each for each in timeline.lanes if each.name == "worker 0"]
    assert lane.shares == pytest.approx({"blank": 0.6, "make": 0.4})
    # The time between epochs is not waiting.
    timeline = drawn(
        ("step", "compute", 0, 10), ("step", "compute", 30, 40), ("worker 0", "make", 0, 40)
    )
    assert spans(timeline, "step")[1] == (10, 30, "idle", "between")


def test_workers_are_in_the_order_of_their_numbers_above_the_step():
    events = [(f"worker {k}", "make", 0.0, 9.0) for k in (10, 2, 0)]
    timeline = drawn(("step", "compute", 0, 9), *events)
    names = [lane.name for lane in timeline.lanes]
    assert names == ["worker 0", "worker 2", "worker 10", "step"]


def test_events_of_another_clock_are_skipped_and_counted():
    timeline = drawn(
        ("step", "compute", 0, 10),
        ("worker 0", "make", 1e9, 1e9 + 5),
        ("worker 1", "make", -1e9, -1e9 + 5),
        ("worker 2", "make", 8, 3),
        ("worker 3", "make", 12, 14),  # after the steps, and by the same clock
    )
    assert timeline.left_out == 3
    assert spans(timeline, "worker 0") == spans(timeline, "worker 2") == []
    assert timeline.length_ms == 10


def test_worst_step_is_drawn_with_preceding_ones():
    steps = []
    for k in range(10):
        wait = 50 if k == 6 else 1
        at = 20.0 * k + (50 if k > 6 else 0)
        steps += [("step", "compute", at, at + 10), ("step", "wait", at + 10, at + 10 + wait)]
    timeline = worst_step(sample_timeline(*steps, ("worker 0", "make", 0, 300)))
    assert timeline is not None
    assert timeline.title == "the longest wait of a step, 50.0 ms"
    assert timeline.begun_s == 3.0 + 0.080
    assert timeline.wait_ms == 52
    assert timeline.length_ms == 200 - 80


@pytest.mark.parametrize(
    "events",
    [
        (),
        (("worker 0", "make", 0, 5),),
        (("step", "compute", 5, 5),),
        (("step", "compute", 9, 2),),
    ],
)
def test_without_steps_there_is_nothing_to_draw(events):
    assert timeline_of(sample_timeline(*events), "steps") is None
    assert worst_step(sample_timeline(*events)) is None


def assert_covered(timeline):
    for lane in timeline.lanes:
        if not lane.spans:
            continue
        assert lane.spans[0].begun_ms == pytest.approx(0, abs=0.002)
        assert lane.spans[-1].ended_ms == pytest.approx(timeline.length_ms, abs=0.002)
        for one, two in pairwise(lane.spans):
            assert two.begun_ms == pytest.approx(one.ended_ms, abs=0.002)
        assert sum(lane.shares.values()) == pytest.approx(1)
        assert all(_says_why(span) for span in lane.spans)


def _says_why(span):
    return (span.stage == "idle") == (span.cause != "")


times = st.floats(-50, 150).map(lambda ms: round(ms, 2))
stages = st.sampled_from(("make", "wait", "compute"))


@given(st.lists(st.tuples(st.sampled_from(LANES), stages, times, times), max_size=40))
def test_each_lane_is_covered_once_for_any_events(events):
    for timeline in (
        timeline_of(sample_timeline(*events), "steps"),
        worst_step(sample_timeline(*events)),
    ):
        if timeline is not None:
            assert_covered(timeline)
            console = Console(width=40, color_system=None)
            with console.capture() as captured:
                console.print(TimelinesView([timeline]))
            for line in captured.get().splitlines():
                if line[:11].rstrip() in LANES:  # a heading may go on with "steps"
                    assert len(line) == 40 or line.endswith("not recorded")
            for lane in timeline.lanes:
                for shape in lane_shapes(lane, timeline.length_ms):
                    assert -0.1 <= shape.x <= shape.x + shape.width <= 100.1
                assert describe_lane(lane)
