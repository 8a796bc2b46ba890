"""The samplers that a loader with a seed shows, in the hands of frameworks."""

import warnings

import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from feedline import DataLoader
from feedline.errors import UsageError
from feedline.integrations.transformers import Stepwise


class Repeating:
    """Around a batch sampler, as timm's loader of endless epochs has one."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return iter(self.sampler)


def made(**options):
    return DataLoader(list(range(9)), 2, **{"shuffle": True, "seed": 1, **options})


def epoch(loader):
    return [batch.tolist() for batch in loader]


def test_epoch_can_be_set_on_wrapped_batch_sampler():
    loader = made()
    expected = [epoch(loader) for _ in range(3)]
    loader = made()
    loader.__dict__["batch_sampler"] = Repeating(loader.batch_sampler)
    for number in (2, 0, 1):
        loader.sampler.set_epoch(number)
        assert epoch(loader) == expected[number]


def test_epoch_drawn_twice_by_another_loader_warns():
    first = made()
    other = DataLoader(list(range(9)), batch_sampler=first.batch_sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        once = epoch(other)
    with pytest.warns(RuntimeWarning, match="Call set_epoch"):
        assert epoch(other) == once
    first.set_epoch(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert epoch(other) != once


@pytest.mark.parametrize("world_size", [1, 2])
def test_share_of_rank_is_shown_like_in_torch_sampler(world_size, monkeypatch):
    loader = made(drop_last=False)
    # A launcher may set the ranks after the loader was built.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    assert loader.sampler.epoch == 0
    loader.sampler.set_epoch(3)
    epoch(loader)
    theirs = DistributedSampler(list(range(9)), world_size, 0)
    for name in ("num_replicas", "rank", "num_samples", "total_size"):
        assert getattr(loader.sampler, name) == getattr(theirs, name), name
    assert loader.sampler.epoch == 3


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_incomplete_batch_is_left_to_batch_sampler(world_size, drop_last):
    kept = []
    for rank in range(world_size):
        loader = made(drop_last=drop_last, rank=rank, world_size=world_size)
        keys = list(loader.sampler)
        assert list(BatchSampler(keys, 2, drop_last)) == epoch(loader)
        theirs = DistributedSampler(
            list(range(9)),
            world_size,
            0,
            drop_last=drop_last,
        )
        assert len(loader.sampler) == len(keys) == len(theirs)
        kept += keys
    assert len(set(kept)) == (8 if drop_last and world_size == 2 else 9)


def test_batch_size_that_is_set_on_a_planned_order_is_rejected():
    loader = made()
    with pytest.raises(UsageError, match=r"batch_size to 4: .*ownx1@32"):
        loader.batch_sampler.batch_size = 4
    loader.batch_sampler.batch_size = 2
    free = DataLoader(list(range(9)), 2)
    assert isinstance(free.batch_sampler, BatchSampler)
    free.batch_sampler.batch_size = 4
    assert epoch(free) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("schedule", ["ownx1@4,ownx2@2", "ownx1@2,ownx2@4"])
def test_stepwise_batches_follow_a_schedule_of_batch_sizes(schedule):
    with made(schedule=schedule) as whole, made(schedule=schedule) as inner:
        steps = Stepwise(inner)
        for number in range(3):
            steps.set_epoch(number)
            assert len(steps) == whole.steps_in(number)
            assert epoch(steps) == epoch(whole)
