from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import batch_equals, every_rank, global_rows, plans
from torch.utils.data import BatchSampler, DistributedSampler

from feedline.errors import UsageError
from feedline.order.planned_order import Order, epoch_order
from feedline.order.schedule import Phase, Schedule

EPOCHS = 4


@given(plans(), st.integers(0, EPOCHS))
def test_over_all_ranks_an_epoch_holds_each_sample_exactly_once(plan: Order, epoch: int) -> None:
    ranks = every_rank(plan)
    steps = range(plan.steps(epoch))
    rows = [int(row) for step in steps for row in global_rows(ranks, epoch, step)]
    held = plan.length
    if plan.drop_last:
        held -= plan.length % plan.global_batch(epoch)
    assert len(rows) == held
    assert rows == epoch_order(plan.length, plan.seed, epoch, plan.order)[:held].tolist()


@given(plans(), st.integers(0, EPOCHS))
def test_padding_counts_exactly_the_rows_that_stand_for_a_sample_again(
    plan: Order, epoch: int
) -> None:
    ranks = every_rank(plan)
    batches = [rank.batch(epoch, step) for step in range(plan.steps(epoch)) for rank in ranks]
    seen = Counter(int(sample) for batch in batches for sample in batch.samples)
    assert sum(batch.padding for batch in batches) == sum(seen.values()) - len(seen)
    assert sum(batch.padding for batch in batches) < plan.world_size
    assert all(0 <= batch.padding <= 1 for batch in batches)
    if plan.drop_last:
        assert not any(batch.padding for batch in batches)


@given(plans(worlds=9), st.integers(0, EPOCHS))
def test_padding_is_counted_on_the_ranks_whose_rows_it_is(plan: Order, epoch: int) -> None:
    for step in range(plan.steps(epoch)):
        full = plan.global_batch(epoch)
        real = min(full, plan.length - step * full)
        for rank in every_rank(plan):
            batch = rank.batch(epoch, step)
            places = range(rank.rank, batch.rows * plan.world_size, plan.world_size)
            assert batch.padding == sum(place >= real for place in places)


@given(plans(worlds=9), st.integers(0, EPOCHS))
def test_without_shuffling_each_rank_gets_what_distributed_sampler_gives_it(
    plan: Order, epoch: int
) -> None:
    for rank in every_rank(replace(plan, order="sequential")):
        sampler = DistributedSampler(
            range(plan.length),  # type: ignore[arg-type]
            num_replicas=plan.world_size,
            rank=rank.rank,
            shuffle=False,
            drop_last=plan.drop_last,
        )
        rows = plan.global_batch(epoch) // plan.world_size
        expected = list(BatchSampler(sampler, rows, plan.drop_last))
        steps = range(rank.steps(epoch))
        assert [rank.batch(epoch, step).samples.tolist() for step in steps] == expected


@given(plans(), st.integers(0, EPOCHS))
def test_at_every_step_all_ranks_have_equal_rows_of_one_size(plan: Order, epoch: int) -> None:
    phase = plan.schedule.phase_at(epoch)
    ranks = every_rank(plan)
    assert len({rank.steps(epoch) for rank in ranks}) == 1
    for step in range(plan.steps(epoch)):
        batches = [rank.batch(epoch, step) for rank in ranks]
        assert len({batch.rows for batch in batches}) == 1
        assert {batch.image_size for batch in batches} == {phase.size}
        assert len({batch.seed for batch in batches}) == 1
        full = phase.batch_size or plan.batch_size
        if step < plan.steps(epoch) - 1 or plan.drop_last:
            assert batches[0].rows == full
        assert 1 <= batches[0].rows <= full


@given(plans(), st.integers(0, EPOCHS), st.randoms(use_true_random=False))
def test_a_batch_depends_on_nothing_but_its_place(plan: Order, epoch: int, random: object) -> None:
    steps = list(range(plan.steps(epoch)))
    first = [plan.batch(epoch, step) for step in steps]
    random.shuffle(steps)  # type: ignore[attr-defined]
    for step in steps:
        epoch_order.cache_clear()
        plan.batch(epoch + 1, 0)
        again = replace(plan).batch(epoch, step)
        assert batch_equals(again, first[step])


@given(plans(), st.integers(0, EPOCHS))
def test_what_the_phases_before_were_does_not_change_an_epochs_order(
    plan: Order, epoch: int
) -> None:
    phase = plan.schedule.phase_at(epoch)
    alone = replace(plan, schedule=Schedule((phase,)))
    assert all(
        batch_equals(plan.batch(epoch, step), alone.batch(epoch, step))
        for step in range(plan.steps(epoch))
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


def test_seeds_and_orders_differ_between_epochs_and_between_seeds() -> None:
    plan = Order(length=64, schedule=Schedule.parse("8x1"), batch_size=64)
    batches = [replace(plan, seed=seed).batch(epoch, 0) for seed in range(5) for epoch in range(5)]
    assert len({batch.seed for batch in batches}) == 25
    assert len({batch.samples.tobytes() for batch in batches}) == 25


@given(plans())
def test_total_steps_is_the_sum_over_the_schedules_epochs(plan: Order) -> None:
    assert plan.total_steps == sum(plan.steps(epoch) for epoch in range(plan.schedule.epochs))


@given(plans(), st.integers(0, EPOCHS), st.integers(0, 3))
def test_a_step_that_an_epoch_does_not_have_is_an_index_error(
    plan: Order, epoch: int, beyond: int
) -> None:
    steps = plan.steps(epoch)
    with pytest.raises(IndexError, match=f"epoch {epoch} has {steps} steps"):
        plan.batch(epoch, steps + beyond + plan.drop_last)
    with pytest.raises(IndexError, match="got step -1"):
        plan.batch(epoch, -1)


def test_the_tail_that_drop_last_drops_is_no_step() -> None:
    plan = Order(length=10, schedule=Schedule.parse("8x1"), batch_size=4, drop_last=True)
    assert plan.steps(0) == 2
    with pytest.raises(IndexError, match="epoch 0 has 2 steps, got step 2"):
        plan.batch(0, 2)


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
def test_a_value_out_of_range_is_named_and_shown(name: str, value: object) -> None:
    good = {"length": 10, "schedule": Schedule.parse("8x1"), "batch_size": 2, "world_size": 2}
    with pytest.raises(UsageError, match=f"{name} must be .*got {value!r}"):
        Order(**{**good, name: value})  # type: ignore[arg-type]


def test_dropping_every_batch_of_any_phase_is_refused_with_the_numbers() -> None:
    schedule = Schedule((Phase(size=8, epochs=1), Phase(size=9, epochs=1, batch_size=6)))
    with pytest.raises(UsageError, match=r"drop_last=True.* 12 .* 10 samples"):
        Order(length=10, schedule=schedule, batch_size=2, world_size=2, drop_last=True)


@pytest.mark.parametrize("seed", [-1, 0, 2**64, 2**200])
def test_any_whole_number_will_do_as_a_seed(seed: int) -> None:
    plan = Order(length=10, schedule=Schedule.parse("8x1"), batch_size=10, seed=seed)
    assert sorted(plan.batch(0, 0).samples.tolist()) == list(range(10))


def test_an_order_that_has_no_name_is_refused() -> None:
    with pytest.raises(
        UsageError, match="order must be one of shuffled, sequential, window:N, got 'random'"
    ):
        Order(length=3, schedule=Schedule.parse("8x1"), batch_size=1, order="random")
