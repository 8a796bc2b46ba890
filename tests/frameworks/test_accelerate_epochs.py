"""Epochs of feedline in Accelerate: the position, and skipped batches, like with torch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, Sampler, SequentialSampler

import feedline
from feedline import DataLoader
from feedline.errors import UsageError
from feedline.integrations.accelerate import prepare
from feedline.integrations.transformers import Stepwise
from packages import needs

pytestmark = [
    needs("accelerate"),
    pytest.mark.filterwarnings("ignore"),  # Accelerate's and torch's own
]
accelerate: Any


@pytest.fixture(scope="module", autouse=True)
def _accelerate():
    """Import Accelerate for these tests alone; see `needs`."""
    global accelerate
    import accelerate


NUMBERS = list(range(12))


@pytest.fixture(autouse=True)
def _no_loader_is_noted(_accelerate):
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.GradientState._reset_state()


def accelerator_of(steps=1, **config):
    return accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=steps,
        dataloader_config=accelerate.utils.DataLoaderConfiguration(**config),
    )


def rows(batches):
    return [batch.tolist() for batch in batches]


class Says(Sampler[Any]):
    """Batches of two, of a number that may be wrong."""

    def __init__(self, said):
        self.said = said

    def __iter__(self):
        yield from ([0, 1], [2, 3], [4, 5])

    def __len__(self):
        return self.said


class SaysNothing(Sampler[Any]):
    def __iter__(self):
        yield from ([0, 1], [2, 3], [4, 5])


class Turning(Sampler[int]):
    """A sampler with an epoch attribute of another name."""

    turn = 0

    def set_epoch(self, epoch):
        self.turn = epoch

    def __len__(self):
        return 12

    def __iter__(self):
        return iter([(k + self.turn) % 12 for k in range(12)])


# The end of an epoch


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {"batch_size": 2, "seed": 0, "shuffle": False},
        {"batch_size": 2, "num_workers": 1},
        {"batch_sampler": Says(3)},
        {"batch_sampler": Says(7)},
        {"batch_sampler": Says(1)},
        {"batch_sampler": SaysNothing()},
    ],
    ids=["plain", "seed", "worker", "right", "too many", "too few", "none"],
)
@pytest.mark.parametrize("look", [False, True])
def test_last_accumulation_steps_independently_of_other_queries(options, look):
    accelerator = accelerator_of(2)
    loader = prepare(accelerator, DataLoader(list(range(6)), **options))
    synchronised = []
    for step, _ in enumerate(loader):
        if look and step == 0:
            next(iter(loader))
        with accelerator.accumulate(torch.nn.Linear(1, 1)):
            synchronised.append(accelerator.sync_gradients)
    assert synchronised == [False, True, True]
    assert not accelerator.gradient_state.in_dataloader
    loader.close()


@pytest.mark.parametrize("schedule", [None, "ownx1@50,ownx1@64"])
def test_metrics_count_each_sample_once_at_any_batch_size(schedule):
    accelerator = accelerator_of()
    loader = prepare(accelerator, DataLoader(list(range(100)), 32, schedule=schedule))
    for _ in range(2):
        gathered = [accelerator.gather_for_metrics(batch) for batch in loader]
        assert sorted(torch.cat(gathered).tolist()) == list(range(100))


# Which epoch it is


@pytest.mark.parametrize("put", [lambda accelerator, loader: accelerator.prepare(loader), prepare])
def test_sampler_epoch_is_set_under_any_name(put):
    wanted = accelerator_of().prepare(TorchDataLoader(NUMBERS, 3, sampler=Turning()))
    found = put(accelerator_of(), DataLoader(NUMBERS, 3, sampler=Turning()))
    for _ in range(3):
        assert rows(found) == rows(wanted)


def test_dataset_with_set_epoch_is_rejected_with_feedline_order():
    class Dated(torch.utils.data.Dataset[int]):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return 100 * self.epoch + index

    with pytest.raises(UsageError, match="set_epoch"):
        prepare(accelerator_of(), DataLoader(Dated(), 2, seed=0))
    loader = prepare(accelerator_of(), DataLoader(Dated(), 2))
    assert [rows(loader) for _ in range(2)] == [[[0, 1], [2, 3]], [[100, 101], [102, 103]]]


# The first batches of an epoch


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("sampler", ["distributed", "turning", "shuffle"])
def test_remaining_epoch_of_wrapper_belongs_to_next_epoch(sampler, before):
    def found(kind, put):
        options = {
            "distributed": {"sampler": DistributedSampler(NUMBERS, 1, 0)},
            "turning": {"sampler": Turning()},
            "shuffle": {"shuffle": True},
        }[sampler]
        torch.manual_seed(7)
        accelerator = accelerator_of(use_seedable_sampler=True, data_seed=3)
        loader = put(accelerator, kind(NUMBERS, 3, **options))
        seen = [rows(loader) for _ in range(before)]
        rest = accelerator.skip_first_batches(loader, 1)
        return [*seen, len(rest), rows(rest), rows(loader)]

    wanted = found(TorchDataLoader, lambda accelerator, loader: accelerator.prepare(loader))
    assert found(DataLoader, prepare) == wanted


@pytest.mark.parametrize("options", [{}, {"seed": 0}])
def test_run_saved_at_last_batch_resumes_with_next_epoch(options, tmp_path):
    accelerator = accelerator_of()
    loader = prepare(accelerator, DataLoader(NUMBERS, 3, shuffle=True, **options))
    for step, _ in enumerate(loader):
        if step == 3:
            accelerator.save_state(str(tmp_path))
    accelerator.free_memory()
    again = prepare(accelerator, DataLoader(NUMBERS, 3, shuffle=True, **options))
    accelerator.load_state(str(tmp_path))
    # As in Accelerate's examples: whole epochs, and no batch of the next.
    first = rows(accelerator.skip_first_batches(again, 0))
    assert sorted(row for batch in first for row in batch) == NUMBERS
    assert len(rows(again)) == 4


def test_the_rest_of_a_wrapper_by_either_way_has_the_batches_that_are_left():
    accelerator = accelerator_of(split_batches=True)
    loader = prepare(accelerator, DataLoader(NUMBERS, 3, on_error="skip"))
    rest = accelerate.skip_first_batches(loader, 1)
    assert rows(rest) == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        rest = accelerator.skip_first_batches(loader, 1)
    assert rows(rest) == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


# What would be lost


@pytest.mark.parametrize("given", [{"schedule": "8x1,12x1"}, {"seed": 0}])
def test_schedule_with_sampler_is_not_ignored(given):
    def sized(index):
        return feedline.image_size(default=1)

    class Sized(torch.utils.data.Dataset[int]):
        def __len__(self):
            return 4

        __getitem__ = staticmethod(sized)

    loader = DataLoader(Sized(), 2, sampler=SequentialSampler(range(4)), **given)
    with pytest.raises(UsageError, match=rf"{next(iter(given))} and a sampler are set.*without"):
        prepare(accelerator_of(use_seedable_sampler=True), loader)
    if "schedule" in given:
        kept = prepare(accelerator_of(), loader)
        assert [rows(kept) for _ in range(2)] == [[[8, 8]] * 2, [[12, 12]] * 2]


def test_stepwise_batches_follow_feedline_order_on_all_ranks():
    with pytest.raises(UsageError, match="samplers define"):
        Stepwise(DataLoader(NUMBERS, 3))
    third = Stepwise(DataLoader(NUMBERS, 3, seed=0, rank=0, world_size=3))
    with pytest.raises(UsageError, match="over 3 ranks, but Accelerate runs 1"):
        accelerator_of().prepare(third)
    whole = accelerator_of().prepare(Stepwise(DataLoader(NUMBERS, 3, seed=0, shuffle=False)))
    assert rows(whole) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
