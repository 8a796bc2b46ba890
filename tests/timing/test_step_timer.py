"""Steps: sums whose differences are the steps between two readings."""

from feedline.timing.steps import StepTimer, StepTimes


def test_steps_since_a_reading_are_the_difference_of_sums_and_have_a_mean():
    timing = StepTimer()
    timing.add(1.0, None, 5.0)
    read = timing.totals()
    timing.add(2.0, 3.0, 5.0)
    timing.add(4.0, 0.0, 5.0)
    since = timing.totals() - read
    assert since == StepTimes(steps=2, wait_ms=6.0, copy_ms=3.0, compute_ms=10.0)
    assert read + since == timing.totals()
    mean = since.mean()
    assert (mean.wait_ms, mean.copy_ms, mean.compute_ms, mean.step_ms) == (3.0, 1.5, 5.0, 9.5)
    assert StepTimes().mean().step_ms == 0.0
