"""Bottlenecks in the training step."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import DataLoader

import feedline
from samples import Computed
from situation import CORES, Outcome, burn, paced, situation, train


@situation("compute-bound", "torch")
def long_steps(fixed: bool) -> Outcome:
    """Steps of 50 ms, batches of 8 ms."""
    return train(DataLoader(Computed(16 * 100, 0.5), 16, num_workers=CORES), paced(50))


@situation("compute-bound", "feedline")
def long_steps_of_feedline(fixed: bool) -> Outcome:
    """The same."""
    return train(feedline.DataLoader(Computed(16 * 100, 0.5), 16, num_workers=CORES), paced(50))


@situation("new-shape", "torch")
def tuned_for_each_size(fixed: bool) -> Outcome:
    """Slow first steps at each size; fix: shapes run before."""
    seen: dict[tuple[int, ...], int] = {}
    sizes = [32, 48, 64, 80]
    if fixed:
        seen = {(16, 3, size, size): 3 for size in sizes[1:]}

    def step(batch: Any) -> None:
        shape = tuple(batch[0].shape)
        seen[shape] = seen.get(shape, 0) + 1
        if seen[shape] <= 3:
            burn(230)
        time.sleep(0.02)

    def built(epoch: int) -> DataLoader:
        size = sizes[epoch]
        return DataLoader(Computed(16 * 60, 0.2, (3, size, size)), 16, num_workers=CORES)

    return train(built, step, epochs=len(sizes))


@situation("inconclusive", "torch", predicts=False)
def broken_off(fixed: bool) -> Outcome:
    """The loop stops after five batches."""
    return train(DataLoader(Computed(16 * 100, 1.0), 16), paced(5), at_most=5)


@situation("inconclusive", "torch", predicts=False)
def empty(fixed: bool) -> Outcome:
    """drop_last leaves no batch."""
    return train(DataLoader(Computed(10, 1.0), 16, drop_last=True), paced(5))


class _Raising(Computed):
    def __getitem__(self, number: int) -> Any:
        raise ValueError("planted")


@situation("inconclusive", "torch", predicts=False)
def raising(fixed: bool) -> Outcome:
    """The dataset raises an exception."""
    watched = feedline.watch(DataLoader(_Raising(100, 1.0), 16))
    try:
        for _ in watched:
            pass
    except ValueError:
        pass
    return Outcome(watched.run, 0.0, 0)
