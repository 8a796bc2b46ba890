from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import batch_equals, every_rank, global_rows, orders
from torch.utils.data import BatchSampler, DistributedSampler

from feedline.errors import UsageError
from feedline.order.sample_order import Order, epoch_order
from feedline.order.schedule import Phase, Schedule

EPOCHS = 4


@given(orders(), st.integers(0, EPOCHS))
def test_over_all_ranks_an_epoch_holds_each_sample_exactly_once(order: Order, epoch: int) -> None:
    ranks = every_rank(order)
    steps = range(order.steps(epoch))
    rows = [int(row) for step in steps for row in global_rows(ranks, epoch, step)]
    held = order.length
    if order.drop_last:
        held -= order.length % order.global_batch_size(order.schedule.phase_at(epoch))
    assert len(rows) == held
    assert rows == epoch_order(order.length, order.seed, epoch, order.sample_order)[:held].tolist()


@given(orders(worlds=9), st.integers(0, EPOCHS))
def test_padding_is_counted_on_the_ranks_that_receive_it(order: Order, epoch: int) -> None:
    for step in range(order.steps(epoch)):
        full = order.global_batch_size(order.schedule.phase_at(epoch))
        real = min(full, order.length - step * full)
        for rank in every_rank(order):
            batch = rank.batch(epoch, step)
            places = range(rank.rank, batch.rows * order.world_size, order.world_size)
            assert batch.padding == sum(place >= real for place in places)


@given(orders(worlds=9), st.integers(0, EPOCHS))
def test_unshuffled_ranks_match_distributed_sampler(order: Order, epoch: int) -> None:
    for rank in every_rank(replace(order, sample_order="sequential")):
        sampler = DistributedSampler(
            range(order.length),  # type: ignore[arg-type]
            num_replicas=order.world_size,
            rank=rank.rank,
            shuffle=False,
            drop_last=order.drop_last,
        )
        rows = order.global_batch_size(order.schedule.phase_at(epoch)) // order.world_size
        expected = list(BatchSampler(sampler, rows, order.drop_last))
        steps = range(rank.steps(epoch))
        assert [rank.batch(epoch, step).samples.tolist() for step in steps] == expected


@given(orders(), st.integers(0, EPOCHS))
def test_at_every_step_all_ranks_have_equal_rows_of_one_size(order: Order, epoch: int) -> None:
    phase = order.schedule.phase_at(epoch)
    ranks = every_rank(order)
    assert len({rank.steps(epoch) for rank in ranks}) == 1
    seeds = set[int]()  # of rows: a sample's pixels do not depend on its batch
    for step in range(order.steps(epoch)):
        batches = [rank.batch(epoch, step) for rank in ranks]
        assert len({batch.rows for batch in batches}) == 1
        assert {batch.image_size for batch in batches} == {phase.image_size}
        seeds |= {batch.seed for batch in batches}
        assert len(seeds) == 1
        full = phase.batch_size or order.batch_size
        if step < order.steps(epoch) - 1 or order.drop_last:
            assert batches[0].rows == full
        assert 1 <= batches[0].rows <= full


@given(orders(), st.integers(0, EPOCHS), st.randoms(use_true_random=False))
def test_a_batch_depends_on_nothing_but_its_place(order: Order, epoch: int, random: object) -> None:
    steps = list(range(order.steps(epoch)))
    first = [order.batch(epoch, step) for step in steps]
    random.shuffle(steps)  # type: ignore[attr-defined]
    for step in steps:
        epoch_order.cache_clear()
        order.batch(epoch + 1, 0)
        again = replace(order).batch(epoch, step)
        assert batch_equals(again, first[step])


@given(orders(), st.integers(0, EPOCHS))
def test_order_of_epoch_is_independent_of_earlier_phases(order: Order, epoch: int) -> None:
    phase = order.schedule.phase_at(epoch)
    alone = replace(order, schedule=Schedule((phase,)))
    assert all(
        batch_equals(order.batch(epoch, step), alone.batch(epoch, step))
        for step in range(order.steps(epoch))
    )


@given(
    st.integers(1, 200), st.sampled_from([(1, 24), (2, 12), (3, 8), (4, 6), (24, 1)]), st.booleans()
)
def test_the_world_size_does_not_change_a_global_batch(
    length: int, world_and_batch: tuple[int, int], drop_last: bool
) -> None:
    world_size, batch_size = world_and_batch
    length += 24 * drop_last
    one = Order(length=length, schedule=Schedule.parse("8x1"), batch_size=24, drop_last=drop_last)
    many = every_rank(replace(one, world_size=world_size, batch_size=batch_size))
    assert one.steps(3) == many[0].steps(3)
    for step in range(one.steps(3)):
        assert np.array_equal(global_rows(many, 3, step), one.batch(3, step).samples)
        assert many[-1].batch(3, step).seed == one.batch(3, step).seed


@given(orders())
def test_total_steps_is_the_sum_over_the_schedules_epochs(order: Order) -> None:
    assert order.total_steps == sum(order.steps(epoch) for epoch in range(order.schedule.epochs))


@given(orders(), st.integers(0, EPOCHS), st.integers(0, 3))
def test_a_step_that_an_epoch_does_not_have_is_an_index_error(
    order: Order, epoch: int, beyond: int
) -> None:
    steps = order.steps(epoch)
    with pytest.raises(IndexError, match=f"epoch {epoch} has {steps} steps, got step {steps}"):
        order.batch(epoch, steps)
    with pytest.raises(IndexError, match=f"epoch {epoch} has {steps} steps"):
        order.batch(epoch, steps + beyond)
    with pytest.raises(IndexError, match="got step -1"):
        order.batch(epoch, -1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length", 0),
        ("length", -3),
        ("length", 2.0),
        ("length", True),
        ("batch_size", 0),
        ("batch_size", "8"),
        ("batch_size", None),
        ("world_size", 0),
        ("world_size", 1.0),
        ("rank", -1),
        ("rank", 2),
        ("rank", 0.5),
        ("rank", "0"),
        ("rank", None),
        ("seed", 1.5),
        ("seed", "7"),
        ("seed", None),
        ("seed", True),
    ],
)
def test_value_out_of_range_is_named(name: str, value: object) -> None:
    good = {"length": 10, "schedule": Schedule.parse("8x1"), "batch_size": 2, "world_size": 2}
    with pytest.raises(UsageError, match=f"{name} must be .*got {value!r}"):
        Order(**{**good, name: value})  # type: ignore[arg-type]


def test_dropping_every_batch_of_any_phase_is_rejected_with_numbers() -> None:
    schedule = Schedule(
        (Phase(image_size=8, epochs=1), Phase(image_size=9, epochs=1, batch_size=6))
    )
    with pytest.raises(UsageError, match=r"drop_last=True.* 12 .* 10 samples"):
        Order(length=10, schedule=schedule, batch_size=2, world_size=2, drop_last=True)


@pytest.mark.parametrize("seed", [-1, 0, 2**64, 2**200])
def test_any_integer_is_a_seed(seed: int) -> None:
    order = Order(length=10, schedule=Schedule.parse("8x1"), batch_size=10, seed=seed)
    assert sorted(order.batch(0, 0).samples.tolist()) == list(range(10))


def test_unknown_sample_order_is_rejected() -> None:
    with pytest.raises(
        UsageError, match="order must be one of shuffled, sequential, window:N, got 'random'"
    ):
        Order(length=3, schedule=Schedule.parse("8x1"), batch_size=1, sample_order="random")
