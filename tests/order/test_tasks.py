from hypothesis import given
from hypothesis import strategies as st

from feedline.order.batch_spec import MAX_ROWS_PER_TASK, divide_rows, rows_per_task


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
