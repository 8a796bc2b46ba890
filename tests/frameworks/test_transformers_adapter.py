"""Stepwise: batches by epoch and step, in loaders rebuilt from its parts."""

from itertools import chain
from typing import Any

import pytest
import torch.utils.data

from feedline import DataLoader
from feedline.integrations.transformers import Stepwise

STEPS = 4


class Numbers:
    """Samples are their indices, and the samples made so far are recorded."""

    def __init__(self):
        self.made = []

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, index):
        self.made.append(index)
        return index


def inner():
    return DataLoader(Numbers(), 8, shuffle=True, seed=1)


class Skipping(list[Any]):
    """A batch sampler without the first places, as skip_first_batches makes one."""

    def __init__(self, inner, first):
        super().__init__(list(inner)[first:])


def rows(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture(scope="module")
def epochs():
    loader = inner()
    return [rows(loader) for _ in range(6)]


def test_epochs_may_come_in_any_order_and_be_left_early(epochs):
    loader = Stepwise(inner())
    assert len(loader) == STEPS
    assert [rows(loader) for _ in range(2)] == epochs[:2]
    for number in (5, 1, 1):
        loader.set_epoch(number)
        batches = iter(loader)
        assert [next(batches).tolist(), next(batches).tolist()] == epochs[number][:2]
    loader.set_epoch(4)
    assert rows(loader) == epochs[4]


@pytest.mark.parametrize("first", [1, 3])
def test_loader_rebuilt_from_parts_gives_remaining_batches(first, epochs):
    loader = Stepwise(made := inner())
    loader.set_epoch(2)
    rest = torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=Skipping(loader.batch_sampler, first),
        collate_fn=loader.collate_fn,
    )
    assert rows(rest) == epochs[2][first:]
    assert made.dataset.made == list(chain(*epochs[2][first:])), "none is made that was skipped"
    loader.set_epoch(3)
    assert rows(loader) == epochs[3]


def test_restored_loader_begins_with_its_epoch(epochs):
    first, other = inner(), inner()
    first.set_epoch(3)
    next(iter(first))
    other.load_state_dict(first.state_dict())
    assert rows(Stepwise(other)) == epochs[3]
