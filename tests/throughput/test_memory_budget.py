"""Memory for workers and the batches that they make ahead."""

import itertools

import pytest

from feedline.throughput.step_model import MemoryBudget, WorkerLimits

MB = 1 << 20


def room(free, *, workers=2, ahead=2, batch=10 * MB):
    return MemoryBudget(
        free=free, workers=workers, ahead=ahead, worker_bytes=64 * MB, batch_bytes=batch
    )


@pytest.mark.parametrize("free", [0, 84 * MB, 1000 * MB])
def test_workers_and_prefetch_share_the_memory_limit(free):
    found = room(free)
    for workers, ahead in itertools.product(range(1, 30), (1, 2, 4, 8)):
        bytes_more = (workers - 2) * 64 * MB + (workers * ahead - 4) * 10 * MB
        assert (workers <= found.most_workers(ahead)) == (bytes_more <= free)


def test_current_memory_fits_any_free_amount_and_batches_of_rows_have_theirs():
    assert room(-5).most_workers(2) == 2
    assert WorkerLimits(cores=8, memory=room(-5), for_each=9).deepest(4, 0.0) == 4
    assert WorkerLimits(cores=8, memory=room(25 * MB), for_each=9).deepest(4, 0.0) == 6
    rows = room(128 * MB, ahead=0, batch=0)
    assert rows.most_workers(0) == 4
    assert WorkerLimits(cores=8, memory=rows, for_each=9).deepest(4, 0.0) == 36
