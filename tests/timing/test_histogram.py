"""Durations in bins: the loss of precision is bounded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.timing.run import Histogram

times = st.lists(st.floats(0.0, 1e6, allow_nan=False), min_size=1, max_size=200)


def made(values):
    histogram = Histogram()
    for ms in values:
        histogram.add(ms)
    return histogram


@given(times, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_five_percent_and_never_beyond_the_longest(values, q):
    found = made(values).quantile(q)
    true = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    assert found is not None
    assert found <= max(values)
    assert abs(found - true) <= 0.05 * true + 2.0**-10


@given(times)
def test_adding_many_equals_adding_one_by_one(values):
    one, many = made(values), Histogram()
    many.add_all(values)
    assert (many.count, many.longest_ms) == (one.count, one.longest_ms)
    assert many.total_ms == pytest.approx(one.total_ms)
    # At the very edge of a bin two ways of rounding may differ.
    assert many.quantile(0.5) == pytest.approx(one.quantile(0.5), rel=0.1, abs=2.0**-9)


@given(times, times)
def test_the_sum_of_two_is_the_histogram_of_both(first, second):
    both = made(first)
    both += made(second)
    all_at_once = made(first + second)
    assert both.bins == all_at_once.bins
    assert (both.count, both.longest_ms) == (all_at_once.count, all_at_once.longest_ms)
    assert both.total_ms == pytest.approx(all_at_once.total_ms)


def test_nothing_has_no_quantile_and_the_number_of_bins_is_bounded():
    empty = Histogram()
    empty.add_all([])
    assert empty.mean_ms is None
    assert empty.quantile(0.5) is None
    histogram = Histogram()
    histogram.add_all([10.0**k for k in range(-12, 60)] * 3)
    histogram.add(1e300)
    assert len(histogram.bins) <= 256
    assert all(0 <= k < 256 for k in histogram.bins)
    assert histogram.quantile(1.0) is not None
