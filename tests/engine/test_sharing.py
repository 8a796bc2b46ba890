"""Memory, locks and queues that a dataset shares with the training process."""

import gc
import multiprocessing
import os
import signal
import threading
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from feedline.errors import UsageError
from feedline.loader import DataLoader
from processes import descriptors, eventually
from slow import slow

METHODS = ["forkserver", *slow("spawn", "fork")]


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request):
    """Each of torch's sharing strategies."""
    usual = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(usual)


class Cached(Dataset[Any]):
    """Counts how often samples are made, in shared memory; a sample is the shared epoch."""

    def __init__(self, kill_at=-1):
        self.made = torch.zeros(24).share_memory_()
        self.epoch = torch.zeros(1).share_memory_()
        self.killed = torch.zeros(1).share_memory_()
        self.kill_at = kill_at

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == self.kill_at and not self.killed:
            self.killed.fill_(1)
            os.kill(os.getpid(), signal.SIGKILL)
        self.made[index] += 1
        return int(self.epoch)


class Everything(Dataset[Any]):
    """Each sample is noted in all that multiprocessing has for it."""

    def __init__(self, method, memory, noted):
        context = multiprocessing.get_context(method)
        self.value = context.Value("i", 0)
        self.array = context.Array("d", 8)
        self.tensor = torch.from_numpy(np.ctypeslib.as_array(context.Array("d", 8).get_obj()))
        self.event = context.Event()
        self.lock = context.Lock()
        self.received, self._sent = context.Pipe(duplex=False)
        self.queue = context.Queue()
        self.memory = memory
        self.noted = noted

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with self.value.get_lock():
            self.value.value += 1
        self.array[index] += 1
        self.tensor[index] += 1
        self.event.set()
        with self.lock:
            self._sent.send(index)
        self.queue.put(index)
        self.memory.buf[index] = index
        self.noted[index] = os.getpid()
        parent = multiprocessing.parent_process()
        assert parent is not None
        assert (parent.pid, parent.is_alive()) == (os.getppid(), True)
        assert multiprocessing.current_process().name != "MainProcess"
        return index


@pytest.mark.parametrize("method", METHODS)
def test_a_replacement_of_a_worker_shares_the_same_memory(method, strategy):
    data = Cached(kill_at=9)
    with DataLoader(data, 4, num_workers=1, start_method=method, persistent_workers=True) as loader:
        assert len(list(loader)) == 6
        assert len(loader.worker_deaths) == 1
        data.epoch.fill_(1)
        assert torch.cat(list(loader)).unique().tolist() == [1]
    assert min(data.made.tolist()) == 2


@pytest.mark.parametrize("method", ["forkserver", "fork", *slow("spawn")])
def test_multiprocessing_objects_that_are_in_use_are_shared(method):
    context = multiprocessing.get_context(method)
    memory = SharedMemory(create=True, size=8)
    try:
        with context.Manager() as manager:
            data = Everything(method, memory, manager.dict({0: os.getpid()}))
            data.queue.put(data.noted[0])  # its thread starts, and a connection to the manager
            assert data.queue.get(timeout=60) == os.getpid()
            # Workers that end with their epoch may not have sent all that they put into the queue.
            options = {"start_method": method, "persistent_workers": True}
            with DataLoader(data, 4, num_workers=2, **options) as loader:
                for _ in range(2):
                    assert torch.cat(list(loader)).tolist() == list(range(8))
                    sent = [data.received.recv() for _ in range(8)]
                    queued = [data.queue.get(timeout=60) for _ in range(8)]
                    assert sorted(sent) == sorted(queued) == list(range(8))
            assert data.value.value == 16
            assert data.array[:] == data.tensor.tolist() == [2] * 8
            assert data.event.is_set()
            assert bytes(memory.buf[:8]) == bytes(range(8))
            assert set(data.noted) == set(range(8))
            assert os.getpid() not in data.noted.values()
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize("kept", [{"seed": 0, "persistent_workers": True}, {"schedule": "ownx3@4"}])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_shared_epoch_is_in_all_batches_of_the_epoch(method, kept):
    data = Cached()
    with DataLoader(data, 4, num_workers=2, start_method=method, shuffle=True, **kept) as loader:
        for epoch in range(3):
            data.epoch.fill_(epoch)
            assert torch.cat(list(loader)).unique().tolist() == [epoch]
    assert data.made.tolist() == [3] * 24


@pytest.mark.parametrize("method", ["forkserver", *slow("spawn")])
def test_sharing_leaves_no_descriptor_and_no_thread(method):
    data = Cached()
    list(DataLoader(data, 4, num_workers=1, start_method=method))
    gc.collect()
    opened, threads = descriptors(), threading.active_count()
    for _ in range(2):
        list(DataLoader(data, 4, num_workers=2, start_method=method))
    gc.collect()
    assert eventually(lambda: len(descriptors()) <= len(opened))
    assert threading.active_count() <= threads


class Listed(Dataset[Any]):
    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors)

    def __getitem__(self, index):
        self.tensors[index] += 1
        return self.tensors[index]


def test_hundreds_of_shared_tensors_stay_shared():
    data = Listed([torch.tensor(index).share_memory_() for index in range(300)])
    with DataLoader(data, 50, num_workers=2, start_method="forkserver") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(1, 301))
    assert torch.stack(data.tensors).tolist() == list(range(1, 301))


@pytest.mark.parametrize("method", ["forkserver", *slow("spawn")])
def test_more_tensors_than_there_are_descriptors_for_are_copied_with_a_warning(method):
    data = Listed([torch.tensor(index) for index in range(300)])
    with (
        DataLoader(data, 50, num_workers=2, start_method=method) as loader,
        pytest.warns(UserWarning, match="shared with worker processes"),
    ):
        assert torch.cat(list(loader)).tolist() == list(range(1, 301))


def test_lock_of_another_start_method_is_named():
    data = Listed([])
    data.lock = multiprocessing.get_context("fork").Lock()
    with pytest.raises(UsageError, match=r"^dataset\.lock .*fork context"):
        iter(DataLoader(data, num_workers=1, start_method="forkserver"))
