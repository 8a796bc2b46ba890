"""Orders by weight: drawn as often as the weights say, and shared out among ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import every_rank, global_rows

from feedline.errors import UsageError
from feedline.order.sample_order import WEIGHTED, WEIGHTED_ONCE, Order, Weights, epoch_order
from feedline.order.schedule import Schedule


def plan(weights, **fields):
    base = Order(
        length=len(weights),
        schedule=Schedule.parse("8x2"),
        batch_size=3,
        sample_order=WEIGHTED,
        weights=Weights(weights),
    )
    return replace(base, **fields)


def test_samples_come_as_often_as_their_weights_say():
    values = np.tile([0.0, 1.0, 2.0, 5.0], 5000)
    counts = np.bincount(epoch_order(20_000, 3, 0, WEIGHTED, Weights(values)) % 4, minlength=4)
    for count, share in zip(counts, [0, 1 / 8, 2 / 8, 5 / 8], strict=True):
        assert abs(count - 20_000 * share) <= 5 * np.sqrt(20_000 * share * (1 - share))


def test_orders_never_change():
    weights = Weights(values := np.arange(1.0, 11.0))
    values[:] = 1  # the weights are copied
    assert epoch_order(10, 0, 0, WEIGHTED, weights).tolist() == [6, 6, 3, 6, 4, 6, 9, 7, 3, 8]
    once = [8, 7, 9, 2, 4, 3, 5, 6, 1, 0]
    assert epoch_order(10, 0, 0, WEIGHTED_ONCE, weights).tolist() == once


@pytest.mark.parametrize(
    "values", [[1e308, 1e308, 1e-308], [5e-324] * 3, [1e-320, 1.0, 1e308], [0, 0, 1e-300]]
)
def test_weights_of_any_magnitude_can_be_drawn_by(values):
    drawn = epoch_order(3, 0, 0, WEIGHTED, Weights(values)).tolist()
    assert all(values[sample] > 0 for sample in drawn)
    if all(values):
        assert sorted(epoch_order(3, 0, 0, WEIGHTED_ONCE, Weights(values))) == [0, 1, 2]


@given(
    st.lists(st.floats(0.5, 2), min_size=6, max_size=40),
    st.integers(1, 4),
    st.sampled_from([WEIGHTED, WEIGHTED_ONCE]),
)
def test_ranks_together_have_the_epoch_of_one(values, world, order):
    one = plan(values, batch_size=12, sample_order=order)
    ranks = every_rank(plan(values, batch_size=12 // world, world_size=world, sample_order=order))
    for epoch in range(2):
        for step in range(one.steps(epoch)):
            assert (
                global_rows(ranks, epoch, step).tolist() == one.batch(epoch, step).samples.tolist()
            )
            batches = [rank.batch(epoch, step) for rank in ranks]
            assert {batch.seed for batch in batches} == {one.batch(epoch, step).seed}
            places = sorted(
                batch.first_position + row * batch.stride
                for batch in batches
                for row in range(batch.rows)
            )
            if order == WEIGHTED:  # a sample may come twice, its place does not
                assert places == list(range(places[0], places[0] + len(places)))
                assert places[0] == one.batch(epoch, step).first_position
            else:
                assert {batch.stride for batch in batches} == {0}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([1, -1], r"weights\[1\]=-1"),
        ([1, float("nan")], r"weights\[1\]=nan"),
        ([float("inf"), 1], r"weights\[0\]=inf"),
        ([0, 0], "2 weights of 0"),
        ([[1, 1]], r"shape \(1, 2\)"),
        ([[1], [1, 2]], "sequence of numbers"),
        ("ab", "str"),
        (3, "int"),
        ([1j], "complex"),
    ],
)
def test_invalid_weights_are_rejected(values, named):
    with pytest.raises(UsageError, match=named):
        Weights(values)


def test_weights_that_do_not_fit_a_plan_are_rejected():
    with pytest.raises(UsageError, match="3 weights for 4 samples"):
        plan([1, 2, 3], length=4)
    with pytest.raises(UsageError, match="only 2 have a weight above 0"):
        plan([1, 0, 3], sample_order=WEIGHTED_ONCE)
    with pytest.raises(UsageError, match="order"):
        plan([1, 2, 3], sample_order="shuffled")
    with pytest.raises(UsageError, match="order"):
        replace(plan([1, 2, 3]), weights=None)
