"""How fast steps are of late, and how much of their time they waited."""

from __future__ import annotations

import pytest

from feedline.trace.split import Totals
from feedline.train.pace import Pace


def test_nothing_is_said_before_two_steps() -> None:
    pace = Pace()
    assert (pace.images, pace.seconds, pace.images_per_s, pace.wait_share) == (0, 0.0, None, None)
    pace.add(5.0, 32, Totals(1, 100.0, 0.0, 0.0))
    assert (pace.images, pace.seconds, pace.images_per_s, pace.wait_share) == (0, 0.0, None, None)


def test_the_first_step_is_only_the_beginning() -> None:
    pace = Pace()
    pace.add(5.0, 32, Totals(1, 900.0, 0.0, 100.0))
    pace.add(6.0, 64, Totals(2, 1100.0, 50.0, 850.0))
    assert (pace.images, pace.seconds) == (32, 1.0)
    assert pace.images_per_s == pytest.approx(32)
    assert pace.wait_share == pytest.approx(0.25)  # 200 ms for workers, 50 for the copy, of 1 s


def test_what_is_long_past_does_not_count_as_of_late() -> None:
    pace, totals = Pace(), Totals()
    for second in range(100):
        slow = second < 50
        totals += Totals(1, 900.0 if slow else 0.0, 0.0, 100.0 if slow else 1000.0)
        pace.add(float(second), (second if slow else 50 + 10 * (second - 50)), totals)
    assert pace.images_per_s == pytest.approx(10)
    assert pace.wait_share == 0
    assert pace.seconds == 99
