"""Throughput history of a run: each batch in one point, and few points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.passes import ThroughputRecorder
from feedline.timing.run import Pass
from feedline.timing.run_file import limit_passes

added = st.lists(
    st.tuples(st.floats(0.001, 100.0), st.integers(1, 9), st.integers(0, 99), st.floats(0.0, 5.0)),
    max_size=300,
)


@given(added)
def test_every_batch_is_in_one_point(steps):
    course, now_s = ThroughputRecorder(), 0.0
    course.begin(0.0)
    for seconds, batches, samples, wait_ms in steps:
        now_s += seconds
        course.add(now_s, batches, samples, wait_ms, 64)
    course.end(now_s + 1.0)
    points = course.points()
    assert sum(point.batches for point in points) == sum(step[1] for step in steps)
    assert sum(point.samples or 0 for point in points) == sum(step[2] for step in steps)
    assert sum(point.wait_ms for point in points) == pytest.approx(sum(s[3] for s in steps))
    ends = [point.begun_s + point.seconds for point in points]
    assert all(end <= after.begun_s + 1e-6 for end, after in zip(ends, points[1:], strict=False))


def test_time_between_epochs_is_in_no_point():
    course = ThroughputRecorder()
    course.begin(0.0)
    course.add(1.0, 1, 8, 0.0, 64)
    course.end(2.0)
    course.begin(100.0)
    course.add(101.0, 1, 8, 0.0, 64)
    course.add(102.0, 1, 8, 0.0, 64)
    course.end()
    course.begin(200.0)
    assert [(point.begun_s, point.seconds, point.batches) for point in course.points()] == [
        (0.0, 2.0, 1),
        (100.0, 2.0, 2),
    ]


def test_a_batch_that_lay_ready_counts_for_the_time_of_its_step():
    course = ThroughputRecorder()
    for begun in (0.0, 100.0):
        course.begin(begun)
        for step in range(4):
            course.add(begun + 0.01 + 5 * step, 1, 64, 0.0, 32)
        course.end(begun + 20.01)
    rates = [point.samples / point.seconds for point in course.points() if point.samples]
    assert len(rates) == 8
    assert rates == pytest.approx([64 / 5] * 8, rel=0.01)
    # A pass that is left in its first step has no rate.
    course = ThroughputRecorder()
    course.begin(0.0)
    course.add(0.01, 1, 64, 0.0, 32)
    course.end()
    assert course.points() == []


def test_samples_that_cannot_be_counted_make_a_point_without_a_number():
    course = ThroughputRecorder()
    course.begin(0.0)
    course.add(0.1, 1, 8, 0.0, 64)
    course.add(0.2, 1, None, 0.0, None)
    course.end(0.24)
    (point,) = course.points()
    assert (point.samples, point.batches, point.image_size) == (None, 2, None)


def test_batches_that_are_known_late_shorten_no_point():
    course = ThroughputRecorder()
    course.begin(0.0)
    course.add(1.0, 4, 32, 0.0, 64)
    course.begin(5.0)  # of another pass, within this one
    course.add(5.1, 1, 8, 0.0, 64)
    course.add(1.2, 2, 16, 0.0, 64)
    course.add(9.0, 1, 8, 0.0, 64)
    course.end(9.5)
    points = course.points()
    assert sum(point.batches for point in points) == 8
    assert all(point.seconds > 0 for point in points)
    begun = [point.begun_s for point in points]
    assert begun == sorted(begun)


def test_ten_thousand_passes_are_summed_up_by_loader_and_size():
    passes = []
    for epoch in range(10_000):
        passes.append(Pass(loader=epoch % 2, epoch=epoch, image_size=64 + epoch % 2, batches=1))
        passes = limit_passes(passes)
        assert len(passes) <= 200
    assert sum(entry.batches for entry in passes) == 10_000
    assert [(entry.loader, entry.image_size) for entry in passes[:2]] == [(0, 64), (1, 65)]
    assert passes[-1].epoch == 9999
