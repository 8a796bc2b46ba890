"""Iterators of a loader, used as public code uses torch's: by its private names, by profilers."""

import gc
import logging
import os
import pickle
import queue
import threading
from typing import Any

import psutil
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset, get_worker_info

from feedline import DataLoader
from feedline.errors import ClosedError
from processes import descriptors, eventually, gone, newcomers, own_family
from row_sources import Rows
from sets import Counting, Made, Repeated


def number(index):
    return torch.tensor(index)


def of_rows(**options):
    return DataLoader(Rows(40), 4, image_size=4, num_workers=2, **options)


def of_dataset(**options):
    return DataLoader(Made(40, number), 4, num_workers=2, **options)


def of_iterable(**options):
    return DataLoader(Counting(40), 4, num_workers=2, **options)


ENGINES = [of_rows, of_dataset, of_iterable]


def processes(batches):
    found = [psutil.Process(worker.pid) for worker in batches._workers]
    assert len(found) == 2
    return found


@pytest.mark.parametrize("build", ENGINES)
@pytest.mark.parametrize("batches_read", [0, 2, 10])
def test_shutdown_ends_the_workers_and_the_next_iterator_has_new_ones(build, batches_read):
    with build(persistent_workers=True) as loader:
        batches = iter(loader)
        for _ in range(batches_read):
            next(batches)
        workers = processes(batches)
        batches._shutdown_workers()
        assert eventually(lambda: gone(workers))
        assert not any(worker.is_alive() for worker in batches._workers)
        batches._shutdown_workers()
        with pytest.raises((ClosedError, StopIteration)):
            next(batches)
        assert len(list(loader)) == (20 if build is of_iterable else 10)


def test_workers_terminated_by_caller_are_not_reported_as_lost(caplog):
    before, opened = own_family(), []
    with caplog.at_level(logging.WARNING, "feedline"):
        for _ in range(2):  # the first may open permanent files, such as a pipe to a forked process
            loader = of_dataset()
            batches = iter(loader)
            next(batches)
            workers = list(batches._workers)
            for worker in workers:
                assert worker.is_alive()
                worker.terminate()
            batches._shutdown_workers()
            for worker in workers:
                worker.join(30)
                assert not worker.is_alive()
                worker.terminate()  # of a process that has ended
                worker.kill()
            assert loader.worker_deaths == []
            del batches, loader
            gc.collect()
            assert eventually(lambda: not newcomers(before))
            opened.append(len(descriptors()))
        assert eventually(lambda: len(descriptors()) <= opened[0])
    assert caplog.messages == []


class Infinite(DataLoader[Any]):
    """One iterator for all epochs, created with the loader."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self):
        self.iterator._shutdown_workers()
        self.iterator = self._get_iterator()


class Scaled(Made):
    factor = 1

    def __getitem__(self, index):
        return torch.tensor(index * self.factor)


@pytest.mark.parametrize("workers", [0, 1])
def test_iterator_after_shutdown_sees_changes_of_dataset(workers):
    data = Scaled(8, number)
    loader = Infinite(data, 4, shuffle=True, num_workers=workers)
    for _ in range(2):
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(8))
    data.factor = 10
    loader.reset()
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(0, 80, 10))
    loader.close()


def worker_and_pid(index):
    info = get_worker_info()
    assert info is not None
    return torch.tensor([info.id, os.getpid()])


def test_workers_are_listed_by_id_including_idle_ones():
    loader = DataLoader(Made(1, worker_and_pid), 1, num_workers=2)
    batches = iter(loader)
    seen = torch.cat(list(batches)).tolist()
    workers = batches._workers
    assert len(workers) == 2
    assert all(workers[worker_id].pid == pid for worker_id, pid in seen)


def test_shutdown_of_an_earlier_iterator_keeps_workers_of_a_later_one():
    with of_dataset() as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)
        workers = processes(second)
        first._shutdown_workers()
        assert len(list(second)) == 9
        del first
        third = iter(loader)
        next(third)
        second._shutdown_workers()  # that one has ended
        assert len(list(third)) == 9
        assert eventually(lambda: gone(workers))


class Kept(DataLoader[Any]):
    """Keeps its iterator as torch's `__iter__` does."""

    def __iter__(self):
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_can_be_reset_for_another_pass(workers):
    with Kept(list(range(8)), 2, num_workers=workers) as loader:
        one = iter(loader)
        assert next(one).tolist() == [0, 1]
        assert one._num_yielded == 1
        for _ in range(2):
            another = iter(loader)
            assert another is one
            assert torch.cat(list(another)).tolist() == list(range(8))
        loader._iterator = None


@pytest.mark.parametrize("build", [of_rows, of_dataset])
def test_persistent_workers_keep_iterator_like_torch(build):
    with build() as loader:
        list(loader)
        assert loader._iterator is None
    with build(persistent_workers=True) as loader:
        assert loader._iterator is None
        list(loader)
        workers = processes(loader._iterator)
        loader._iterator._shutdown_workers()
        assert eventually(lambda: gone(workers))
        list(loader)
        workers = processes(loader._iterator)
        loader._iterator = None
        assert loader._iterator is None
        assert eventually(lambda: gone(workers))
        list(loader)
        assert pickle.loads(pickle.dumps(loader))._iterator is None


def test_private_next_data_returns_next_batch():
    with of_dataset() as loader:
        batches = iter(loader)
        assert batches._next_data().tolist() == [0, 1, 2, 3]
        assert (batches._num_yielded, batches._num_workers) == (1, 2)
        assert batches._dataset is loader.dataset
        assert batches._index_sampler is loader.batch_sampler


@pytest.mark.parametrize(
    "data", [Made(12, number), TensorDataset(torch.arange(12)), Counting(40)], ids=type
)
@pytest.mark.parametrize("workers", [0, 1])
def test_profiler_shows_time_of_next_like_torch(data, workers):
    def entries(loader):
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            for _ in loader:
                pass
        averages = recorded.key_averages()
        return [(each.key, each.count) for each in averages if "DataLoader" in each.key]

    expected = entries(TorchDataLoader(data, 4, num_workers=workers))
    assert len(expected) == 1
    with DataLoader(data, 4, num_workers=workers) as loader:
        assert entries(loader) == expected


needs_dynamo = pytest.mark.skipif(
    torch.__version__.startswith("2.2."), reason="torch 2.2 fails to trace past code of a loader"
)


@needs_dynamo
@pytest.mark.parametrize("workers", [0, 1])
def test_a_compiled_loop_and_a_compiled_step_read_every_batch(workers):
    torch._dynamo.reset()
    with DataLoader(Made(8, float), 4, num_workers=workers) as loader:

        @torch.compile(backend="eager")
        def total():
            return sum(batch.sum() for batch in loader)

        assert [float(total()) for _ in range(2)] == [28.0, 28.0]
        batches = iter(loader)

        @torch.compile(backend="eager")
        def step():
            return next(batches).sum() * 2

        assert [float(step()) for _ in range(2)] == [12.0, 44.0]
    torch._dynamo.reset()


class Prefetched(threading.Thread):
    """Batches that a thread reads ahead, also when they are not used any more."""

    def __init__(self, batches):
        super().__init__(daemon=True)
        self.batches, self.queue = batches, queue.Queue(2)
        self.start()

    def run(self):
        try:
            for batch in self.batches:
                self.queue.put(batch)
            self.queue.put(None)
        except BaseException as error:
            self.queue.put(error)

    def read(self, number=100):
        read = []
        while len(read) < number and (batch := self.queue.get(timeout=60)) is not None:
            if isinstance(batch, BaseException):
                raise batch
            read.append(batch)
        return read


@pytest.mark.parametrize("build", ENGINES)
def test_an_iteration_may_begin_while_a_thread_reads_the_one_before(build):
    with build() as loader:
        whole = len(list(loader))
        left = []
        for number in (0, 1, whole - 3, whole):
            batches = Prefetched(iter(loader))
            assert len(batches.read(number)) == number
            left.append((batches, number))
        assert len(Prefetched(iter(loader)).read()) == whole
        for batches, number in left:
            assert len(batches.read()) == whole - number
            batches.join(60)


def test_the_next_iteration_begins_after_the_batch_that_another_thread_waits_for():
    requested, answered, begun = threading.Event(), threading.Event(), threading.Event()

    def sample(index):
        requested.set()
        assert answered.wait(60)
        return index

    with DataLoader(Made(4, sample)) as loader:
        first = Prefetched(iter(loader))
        assert requested.wait(60)

        def begin():
            batches = iter(loader)
            begun.set()
            return list(batches)

        others = []
        thread = threading.Thread(target=lambda: others.extend(begin()))
        thread.start()
        assert not begun.wait(0.2)
        answered.set()
        thread.join(60)
        assert torch.cat(others).tolist() == torch.cat(first.read()).tolist() == [0, 1, 2, 3]
