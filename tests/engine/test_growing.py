"""Workers that come later have as much to do as those that were there from the beginning."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from feedline.loader import DataLoader
from sets import Made


@pytest.mark.parametrize("counts", [[4], [2, 1, 4]])
def test_workers_that_are_added_in_mid_epoch_are_all_at_work(counts: list[int]) -> None:
    barrier = multiprocessing.get_context("fork").Barrier(4)
    data = Made(24, Together(barrier, first=4))
    options: dict[str, Any] = {"prefetch_factor": 1, "start_method": "fork"}
    with DataLoader(data, None, num_workers=1, **options) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        for workers in counts:
            loader.num_workers = workers
        assert [*seen, *batches] == list(range(24))


class Together:
    """From the first on, no sample is made before four workers are each at one."""

    def __init__(self, barrier: Any, first: int) -> None:
        self.barrier, self.first = barrier, first

    def __call__(self, index: int) -> int:
        if index >= self.first:
            self.barrier.wait(60)  # which only bounds a failure
        return index
