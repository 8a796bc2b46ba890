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

    def together(index: int) -> int:
        """From sample 4 on, wait until four workers are each making one."""
        if index >= 4:
            barrier.wait(60)  # which only bounds a failure
        return index

    options: dict[str, Any] = {"prefetch_factor": 1, "start_method": "fork"}
    with DataLoader(Made(24, together), None, num_workers=1, **options) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        for workers in counts:
            loader.num_workers = workers
        assert [*seen, *batches] == list(range(24))
