from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import batch_equals, every_rank, global_rows, orders
from torch.utils.data import BatchSampler, DistributedSampler

from feedline.errors import UsageError
from feedline.order.batch_spec import MAX_ROWS_PER_TASK, divide_rows, rows_per_task
from feedline.order.sample_order import Order, epoch_order
from feedline.order.schedule import Phase, Schedule

EPOCHS = 4
ALONE = Schedule.parse("8x1")


@given(orders(worlds=9), st.integers(0, EPOCHS))
def test_all_ranks_share_out_an_epoch_in_steps_of_equal_rows(order, epoch):
    """Each sample comes once; a rank that receives padding counts it."""
    phase = order.schedule.phase_at(epoch)
    size, full = phase.batch_size or order.batch_size, order.global_batch_size(phase)
    ranks = every_rank(order)
    assert {rank.steps(epoch) for rank in ranks} == {order.steps(epoch)}
    alone = Order(length=order.length, schedule=ALONE, batch_size=1, seed=order.seed)
    rows = []
    for step in range(order.steps(epoch)):
        rows += global_rows(ranks, epoch, step).tolist()
        real = min(full, order.length - step * full)
        for rank in ranks:
            batch = rank.batch(epoch, step)
            assert batch.rows == -(-real // order.world_size) <= size
            assert batch.image_size == phase.image_size
            # A sample's pixels do not depend on its batch, nor on the number of ranks.
            assert batch.seed == alone.batch(epoch, 0).seed
            places = range(rank.rank, batch.rows * order.world_size, order.world_size)
            assert batch.padding == sum(place >= real for place in places)
    held = order.length - (order.length % full if order.drop_last else 0)
    assert rows == epoch_order(order.length, order.seed, epoch, order.sample_order)[:held].tolist()


@given(orders(worlds=9), st.integers(0, EPOCHS))
def test_unshuffled_ranks_match_distributed_sampler(order, epoch):
    for rank in every_rank(replace(order, sample_order="sequential")):
        sampler = DistributedSampler(
            range(order.length),
            num_replicas=order.world_size,
            rank=rank.rank,
            shuffle=False,
            drop_last=order.drop_last,
        )
        rows = order.global_batch_size(order.schedule.phase_at(epoch)) // order.world_size
        expected = list(BatchSampler(sampler, rows, order.drop_last))
        steps = range(rank.steps(epoch))
        assert [rank.batch(epoch, step).samples.tolist() for step in steps] == expected


@given(orders(), st.integers(0, EPOCHS), st.randoms(use_true_random=False))
def test_a_batch_depends_on_nothing_but_its_place(order, epoch, random):
    steps = list(range(order.steps(epoch)))
    first = [order.batch(epoch, step) for step in steps]
    alone = replace(order, schedule=Schedule((order.schedule.phase_at(epoch),)))
    random.shuffle(steps)
    for step in steps:
        epoch_order.cache_clear()
        order.batch(epoch + 1, 0)
        assert batch_equals(replace(order).batch(epoch, step), first[step])
        assert batch_equals(alone.batch(epoch, step), first[step])  # without earlier phases
    assert order.total_steps == sum(order.steps(epoch) for epoch in range(order.schedule.epochs))
    for step in (-1, len(steps), len(steps) + 3):
        text = f"epoch {epoch} has {len(steps)} steps, got step {step}"
        with pytest.raises(IndexError, match=text):
            order.batch(epoch, step)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("length", value) for value in (0, 2.0, True)),
        *(("batch_size", value) for value in (0, None)),
        *(("world_size", value) for value in (0, "1")),
        *(("rank", value) for value in (-1, 2, 0.5, None)),
        *(("seed", value) for value in (1.5, "7", True)),
    ],
)
def test_value_out_of_range_is_named(name, value):
    good = {"length": 10, "schedule": Schedule.parse("8x1"), "batch_size": 2, "world_size": 2}
    with pytest.raises(UsageError, match=f"{name} must be .*got {value!r}"):
        Order(**{**good, name: value})


def test_dropping_every_batch_of_any_phase_is_rejected_with_numbers():
    schedule = Schedule(
        (Phase(image_size=8, epochs=1), Phase(image_size=9, epochs=1, batch_size=6))
    )
    with pytest.raises(UsageError, match=r"drop_last=True.* 12 .* 10 samples"):
        Order(length=10, schedule=schedule, batch_size=2, world_size=2, drop_last=True)


@given(st.integers(0, 3000), st.integers(1, 64))
def test_tasks_are_few_and_equal_and_cover_every_row_once_in_order(rows, limit):
    tasks = divide_rows(rows, limit)
    counts = [count for _, count in tasks]
    assert [row for start, count in tasks for row in range(start, start + count)] == [*range(rows)]
    assert len(tasks) == -(-rows // limit)
    assert all(1 <= count <= limit for count in counts)
    assert max(counts, default=0) - min(counts, default=0) <= 1


def test_slow_rows_make_small_tasks_and_quick_rows_large_ones():
    assert rows_per_task(256, 2, row_ns=1e9) == 1
    assert rows_per_task(256, 2, row_ns=1e6) == 50
    assert rows_per_task(256, 2, row_ns=1e3) == 128


@given(st.integers(1, 5000), st.integers(0, 512), st.floats(0, 1e12), st.integers(1, 8))
def test_batches_queued_together_hold_a_task_for_every_worker(batch, workers, row_ns, batches):
    size = rows_per_task(batch, workers, row_ns, batches)
    assert 1 <= size <= min(batch, MAX_ROWS_PER_TASK)
    assert batches * len(divide_rows(batch, size)) >= min(batch, workers) // 2


def test_fast_batches_stay_whole_while_tasks_remain():
    assert rows_per_task(64, 2, row_ns=1e3, batches=3) == 64
    assert rows_per_task(64, 3, row_ns=1e3, batches=3) == 48
    assert rows_per_task(64, 8, row_ns=1e3, batches=3) == 21
    assert rows_per_task(64, 2, row_ns=1e3, batches=1) == 32
    assert rows_per_task(64, 1, row_ns=1e3) == rows_per_task(64, 0, row_ns=1e3) == 64
