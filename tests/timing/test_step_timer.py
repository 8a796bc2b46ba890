"""Steps: sums that any number of readers can difference."""

from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.steps import StepTimer, StepTimes

ms = st.integers(0, 10_000).map(float)
steps = st.lists(st.tuples(ms, ms, ms), max_size=30)


@given(steps, st.lists(st.integers(0, 30), max_size=5))
def test_readers_that_read_at_any_time_each_see_the_steps_since_their_own_last_reading(
    steps, readings
):
    timing = StepTimer()
    read = {at: timing.totals() for at in readings if at == 0}
    for k, (wait, copy, compute) in enumerate(steps, 1):
        timing.add(wait, copy, compute)
        read |= {at: timing.totals() for at in readings if at == k}
    for at, earlier in read.items():
        since = timing.totals() - earlier
        rest = steps[at:]
        assert since == StepTimes(
            steps=len(rest),
            wait_ms=sum(step[0] for step in rest),
            copy_ms=sum(step[1] for step in rest),
            compute_ms=sum(step[2] for step in rest),
        )
        mean = since.mean()
        assert mean.steps == len(rest)


def test_a_mean_of_steps_is_their_sum_over_their_number():
    mean = StepTimes(steps=4, wait_ms=2.0, copy_ms=4.0, compute_ms=10.0).mean()
    assert (mean.wait_ms, mean.copy_ms, mean.compute_ms, mean.step_ms) == (0.5, 1.0, 2.5, 4.0)
    assert StepTimes().mean().step_ms == 0.0
