"""Settings changed while a loader runs take effect, and batches stay identical."""

import copy
import multiprocessing
import os
import pickle
import random

import numpy as np
import pytest
import torch

from feedline.engine.buffers import WholeBatchBuffers
from feedline.engine.defaults import LiveSettings
from feedline.engine.tasks import BatchTasks
from feedline.errors import UsageError
from feedline.loader import DataLoader
from loader_reading import planned_epoch, read
from row_sources import Rows
from sets import Counting, Made
from slow import slow


def rows(workers, **options):
    """A loader of rows, with memory for four batches ahead."""
    options = {"schedule": "8x1@5,6x1@7", "seed": 5, "prefetch": 4, **options}
    return DataLoader(Rows(61), 4, num_workers=workers, **options)


def numbers(index):
    return torch.full((index % 7 + 1,), index)


def whole(workers, **options):
    """A loader of whole batches of unlike size."""
    options = {"seed": 5, "shuffle": True, "collate_fn": torch.cat, **options}
    loader = DataLoader(Made(61, numbers), 3, num_workers=min(workers, 2), **options)
    if workers > 2:  # torch warns of more workers than cores
        loader.num_workers = workers
    return loader


def change(loader, chance):
    backend = loader._runtime.stream.engine
    changes = [("num_workers", [1, 2, 3])] if loader.num_workers else []
    if isinstance(loader.dataset, Rows):
        changes += [("prefetch", [None, 1, 2, 4]), ("task_ms", [None, 1e-6, 0.01, 5, 10**400])]
    else:
        changes += [("prefetch_factor", [None, 1, 2, 5]), ("max_in_flight", [None, 1, 3, 20])]
    name, values = chance.choice(changes)
    if name == "max_in_flight":
        backend.apply(prefetch=chance.choice(values))
    else:
        setattr(loader, name, chance.choice(values))


def read_and_change(loader, chance):
    """An epoch, with changes between its batches and at its ends."""
    change(loader, chance)
    for batch in loader:
        yield batch
        for _ in range(chance.choice([0, 0, 1, 2])):
            change(loader, chance)
    change(loader, chance)


@pytest.mark.parametrize("workers", [0, 1, 2, *slow(4)])
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_equal_for_any_setting_at_any_moment(workers, seed):
    chance = random.Random(seed)
    with rows(workers) as loader:
        for epoch in range(2):
            expected = planned_epoch(loader, epoch)
            assert read(read_and_change(loader, chance)) == expected
        assert not loader.worker_deaths


@pytest.mark.parametrize(
    ("workers", "seed", "start"),
    [
        *((workers, seed, None) for workers in (1, 2) for seed in range(2)),
        *slow((4, 0, None), (4, 1, None), (1, 0, "spawn")),
    ],
)
def test_whole_batches_are_equal_for_any_setting_at_any_moment(workers, seed, start):
    chance = random.Random(seed)
    with whole(0) as still, whole(workers, start_method=start) as loader:
        for _ in range(2):
            expected = [batch.tolist() for batch in still]
            assert [batch.tolist() for batch in read_and_change(loader, chance)] == expected
        assert not loader.worker_deaths


def test_memory_of_whole_batches_grows_only_if_more_are_requested():
    slots = WholeBatchBuffers(0)
    tasks = BatchTasks(slots, max_user_batches=2)
    for settings, max_in_flight, memory in (
        (LiveSettings(workers=2), 6, 6),  # two for each, and those that may be held
        (LiveSettings(workers=3, prefetch_factor=3), 11, 11),
        (LiveSettings(workers=1, prefetch_factor=3), 5, 11),
    ):
        assert (tasks.resize(settings), slots.num_slots) == (max_in_flight, memory)


def test_settings_survive_other_workers():
    def settings(loader):
        return loader._runtime.stream.engine.feed.settings

    options = {"schedule": None, "seed": None, "image_size": 4}
    with rows(1, worker_init_fn=abs, **options) as loader:
        assert len(list(loader)) == 16
        assert not loader.worker_pids  # they ended with the epoch
        loader.prefetch, loader.task_ms = 2, 5
        batches = iter(loader)
        next(batches)
        assert settings(loader) == LiveSettings(workers=1, prefetch=2, task_ns=5_000_000)
    with whole(1, seed=None) as loader:
        assert len(list(loader)) == 21
        assert not loader.worker_pids
        loader.prefetch_factor = 5
        batches = iter(loader)
        next(batches)
        assert settings(loader) == LiveSettings(workers=1, prefetch_factor=5)


def test_copy_inherits_settings():
    with rows(1, task_ms=20) as loader:
        assert loader.task_ms == pickle.loads(pickle.dumps(loader)).task_ms == 20
        loader.prefetch, loader.task_ms = np.int64(2), np.float32(0.5)
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert (copy.prefetch, copy.task_ms) == (2, 0.5)
            assert read(copy) == planned_epoch(loader, 0)
        assert "2 batches (prefetch), in tasks of 0.5 ms (task_ms)" in loader.explain()
    with whole(1) as loader:
        loader.prefetch_factor = 3
        assert pickle.loads(pickle.dumps(loader)).prefetch_factor == 3


def test_an_iterable_dataset_follows_at_the_next_iteration():
    with DataLoader(Counting(9), 3, num_workers=1) as loader:
        assert len(list(loader)) == 3
        loader.prefetch_factor = 3
        assert len(list(loader)) == 3
        with pytest.raises(UsageError, match=r"prefetch 2 has no effect.*torch's engine"):
            loader.prefetch = 2


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"schedule": "ownx9"}])
def test_workers_can_be_removed_and_added_between_iterations(options):
    made = Made(12, lambda index: torch.tensor([index, os.getpid()]))
    with DataLoader(made, 3, num_workers=2, shuffle=False, **options) as loader:
        for count in (2, 0, 1, 0):
            loader.num_workers = count
            batches = torch.cat(list(loader))
            assert batches[:, 0].tolist() == list(range(12))
            pids = {int(pid) for pid in batches[:, 1]}
            assert (os.getpid() in pids, len(pids) <= max(count, 1)) == (count == 0, True)
        batches = iter(loader)
        next(batches)
        loader.num_workers = 2
        assert len(list(batches)) == 3
        loader.num_workers = 0
        with copy.copy(loader) as other:
            assert torch.cat(list(other))[:, 0].tolist() == list(range(12))


@pytest.mark.parametrize("counts", [[4], [2, 1, 4]])
def test_workers_that_are_added_in_mid_epoch_are_all_at_work(counts):
    barrier = multiprocessing.get_context("fork").Barrier(4)
    data = Made(24, Together(barrier, first=4))
    options = {"prefetch_factor": 1, "start_method": "fork"}
    with DataLoader(data, None, num_workers=1, **options) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        for workers in counts:
            loader.num_workers = workers
        assert [*seen, *batches] == list(range(24))


class Together:
    """From the first on, no sample is made before four workers are each at one."""

    def __init__(self, barrier, first):
        self.barrier, self.first = barrier, first

    def __call__(self, index):
        if index >= self.first:
            self.barrier.wait(60)  # which only bounds a failure
        return index
