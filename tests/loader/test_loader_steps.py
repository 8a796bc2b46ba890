"""Leaving out the first batches of an epoch, for any order that a loader has."""

import pytest
import torch
from torch.utils.data import DistributedSampler

from feedline import DataLoader
from feedline.errors import UsageError
from sets import Counting
from slow import slow

ORDERS = [
    {"shuffle": True},
    {"shuffle": True, "generator": 5},
    {"shuffle": True, "seed": 3},
    *slow(
        {"shuffle": True, "in_order": False},
        {"sampler": range(19, -1, -1)},
        {"schedule": "ownx3"},
    ),
]


def made(order):
    torch.manual_seed(0)
    options = {"num_workers": 1, **order}
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(options["generator"])
    return DataLoader(list(range(20)), 3, **options)


def rows(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture(scope="module", params=ORDERS, ids=str)
def order(request):
    return dict(request.param)


@pytest.fixture(scope="module")
def epochs(order):
    with made(order) as loader:
        return [rows(loader) for _ in range(3)]


@pytest.mark.parametrize(("read", "step"), [(0, 2), (0, 4), (2, 2), (2, 4)])
def test_the_rest_of_an_epoch_follows_and_then_the_next(order, epochs, read, step):
    """Also through a state that holds the step, and from a state within the epoch."""
    with made(order) as loader:
        batches = iter(loader)
        for _ in range(read):
            next(batches)
        state = loader.state_dict()
    with made(order) as loader:
        loader.load_state_dict(state)
        loader.set_step(step)
        again = loader.state_dict()
        assert rows(loader) == epochs[0][step:]
    with made(order) as loader:
        loader.load_state_dict(again)
        if read:
            with pytest.raises(UsageError, match=r"step 1: .*step [24] of epoch 0"):
                loader.set_step(1)
        assert rows(loader) == epochs[0][step:]
        if not read:
            assert rows(loader) == epochs[1]
            loader.set_step(99)
            assert rows(loader) == []


def test_step_after_state_between_epochs_belongs_to_next_epoch(order, epochs):
    with made(order) as loader:
        batches = iter(loader)
        for _ in epochs[0]:
            next(batches)
        last = loader.state_dict()
        assert next(batches, None) is None
        between = loader.state_dict()
    if not order.get("generator"):  # which stands elsewhere once the last batch was handed out
        with made(order) as loader:
            loader.load_state_dict(last)
            loader.set_step(0)
            assert len(rows(loader)) == len(epochs[1])
    with made(order) as loader:
        loader.load_state_dict(between)
        loader.set_step(3)
        torch.manual_seed(99)
        assert rows(loader) == epochs[1][3:]


def test_epoch_can_be_set_after_step(order):
    with made(order) as loader:
        loader.set_step(3)
        loader.set_epoch(2)
        assert len(rows(loader)) == 4
        assert loader.epoch == 3
        assert len(rows(loader)) == 7


@pytest.mark.parametrize("after_iter", [False, True])
def test_sampler_epoch_can_be_set_after_step(after_iter):
    sampler = DistributedSampler(range(20), 1, 0)
    loader = DataLoader(list(range(20)), 3, sampler=sampler)
    sampler.set_epoch(2)
    wanted = rows(loader)
    sampler.set_epoch(0)
    loader.set_step(3)
    batches = iter(loader) if after_iter else loader
    sampler.set_epoch(2)
    assert rows(batches) == wanted[3:]


def test_the_last_step_that_is_set_counts_and_draws_nothing_before_the_epoch_begins():
    torch.manual_seed(0)
    loader = DataLoader(list(range(20)), 3, shuffle=True)
    loader.set_step(5)
    loader.set_step(1)
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(0).get_state())
    found = rows(loader)
    torch.manual_seed(0)
    assert found == rows(DataLoader(list(range(20)), 3, shuffle=True))[1:]


def test_running_iteration_is_independent(order, epochs):
    with made(order) as loader:
        earlier = iter(loader)
        first = rows([next(earlier), next(earlier)])
        loader.set_step(3)
        if "generator" not in order:  # from which the earlier pass draws once more at its end
            assert rows(loader) == epochs[1][3:]
        assert first + rows(earlier) == epochs[0]


def test_iteration_without_batches_starts_at_step(order, epochs):
    with made(order) as loader:
        begun = iter(loader)
        loader.set_step(3)
        assert rows(begun) == epochs[0][3:]
        assert rows(loader) == epochs[1]


@pytest.mark.parametrize("step", [-1, 1.5, "2", True])
def test_invalid_step_is_rejected(step):
    with pytest.raises(UsageError, match="whole number of at least 0"):
        made({}).set_step(step)


def test_iterable_dataset_cannot_skip_batches():
    with pytest.raises(UsageError, match="skip its first samples in its __iter__"):
        DataLoader(Counting(9), 2).set_step(1)


def test_iteration_overtaken_before_its_first_batch_is_recorded():
    with DataLoader(list(range(1000)), 1, seed=1) as loader:
        first, second = iter(loader), iter(loader)
        for _ in range(100):  # quick steps: not all are reported
            next(second)
        assert len(list(first)) == 1000
        assert loader.run.passes[-1].batches >= 999
