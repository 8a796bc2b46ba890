"""Loaders whose settings are tried: endless batches, restored afterwards, and their rates."""

from __future__ import annotations

import multiprocessing
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from feedline import DataLoader
from feedline.throughput.what_if import what_if
from feedline.throughput.windows import StepWindow
from feedline.timing.stage_page import StageTimings
from feedline.tuning.loaders import TunableFeedlineLoader, TunableTorchLoader
from feedline.tuning.search import LoaderSetting, LoaderTrial
from feedline.tuning.tune import StepBenchmark
from processes import newcomers, own_family
from row_sources import Rows
from sets import Slow


def test_workers_continue_after_end_of_schedule():
    with DataLoader(Rows(64), 8, schedule="16x1", seed=0, num_workers=1) as loader:
        expected = [labels.tolist() for _, labels in loader]
        loader.set_epoch(0)
        own = TunableFeedlineLoader(loader)
        own.begin(own.phases[0])
        assert [own.next()[1].tolist() for _ in range(len(expected))] == expected
        assert loader._runtime.stream.engine.in_flight > 0
        own.next()
        own.close()
        assert [labels.tolist() for _, labels in loader] == expected
        assert loader._runtime.stream.engine.in_flight == 0


def test_settings_of_workers_that_end_with_each_epoch_stay():
    """Unplanned epochs of a user-defined dataset have new workers, which are configured again."""
    with DataLoader(list(range(40)), 8, num_workers=2) as loader:
        own = TunableFeedlineLoader(loader)
        own.change(LoaderSetting(workers=1, prefetch=6))
        asked = []
        for _ in range(3 * len(loader)):
            own.next()
            asked.append(loader._runtime.stream.engine.feed.settings)
        own.close()
        assert loader.num_workers == 2
    assert {(each.workers, each.prefetch_factor) for each in asked} == {(1, 6)}


def test_live_settings_are_restored():
    with DataLoader(Rows(64), 8, image_size=16, num_workers=2, prefetch=6, seed=0) as loader:
        before = loader._runtime.stream.engine.feed.settings
        own = TunableFeedlineLoader(loader)
        assert own.start == LoaderSetting(workers=2, prefetch=3, task_ms=50.0)
        assert own.search_space.prefetch == (6,)
        own.change(LoaderSetting(workers=1, prefetch=6, task_ms=12.5))
        own.next()
        own.close()
        assert loader._runtime.stream.engine.feed.settings == before
        assert (loader.prefetch, loader.task_ms) == (6, None)
        assert loader.epoch == 0


class Stream(IterableDataset[torch.Tensor]):
    """Yields the worker id, or -1 in the main process."""

    def __iter__(self):
        info = get_worker_info()
        yield from [torch.tensor([-1 if info is None else info.id])] * 64


class Named(TorchDataLoader[Any]):
    built = 0

    def __iter__(self):
        type(self).built += 1
        return super().__iter__()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot wait here")
def test_workers_ignore_ctrl_c_and_this_process_does_not():
    before = own_family()
    tried = TunableTorchLoader(TorchDataLoader(Slow(4000, 0.0), 8, num_workers=2))
    tried.change(LoaderSetting(workers=2, prefetch=2))
    for worker in newcomers(before):
        worker.send_signal(signal.SIGINT)
    for _ in range(40):
        tried.next()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    tried.close()
    assert not newcomers(before)


def test_subclass_and_its_workers_are_preserved():
    loader = Named(Slow(4000, 0.0), 8, num_workers=1, persistent_workers=True)
    own = iter(loader)
    first = next(own)
    Named.built = 0
    tried = TunableTorchLoader(loader)
    tried.change(LoaderSetting(workers=2, prefetch=3, pin=False))
    assert tried.next().shape == (8, 100)
    assert Named.built == 1
    assert tried.start_s is not None
    tried.close()
    assert first[:, 0].tolist() == [*range(8)]
    assert next(own)[:, 0].tolist() == [*range(8, 16)]
    del own
    loader._iterator = None


def test_epochs_are_consecutive_and_the_same_setting_restarts_nothing():
    tried = TunableTorchLoader(TorchDataLoader(Slow(40, 0.0), 10, num_workers=1))
    assert tried.batch_size == 10
    tried.next()
    mine = set(multiprocessing.active_children())
    assert tried.change(tried.start) == 0
    seen = [int(tried.next()[0, 0]) for _ in range(8)]
    assert seen == [10, 20, 30, 0, 10, 20, 30, 0]
    assert set(multiprocessing.active_children()) <= mine
    tried.close()


def test_a_stream_can_be_tuned():
    tried = TunableTorchLoader(TorchDataLoader(Stream(), 8, num_workers=1))
    tried.change(LoaderSetting(workers=2, prefetch=2, pin=False))
    assert {int(tried.next()[0, 0]) for _ in range(8)} == {0, 1}
    tried.close()


class Lazy(Dataset[int]):
    """Opens its file when the first sample is read."""

    def __init__(self):
        self.file = None

    def __len__(self):
        return 32

    def __getitem__(self, number):
        self.file = self.file or object()
        return number


@pytest.mark.parametrize("library", ["feedline", "torch"])
def test_without_workers_the_same_batches_come_from_copies_of_the_datasets(library):
    data = Subset(Lazy(), range(24))
    kinds = (DataLoader, TunableFeedlineLoader), (TorchDataLoader, TunableTorchLoader)
    kind, tunable = kinds[library == "torch"]
    loader = kind(data, 8, num_workers=1)
    tried, before = tunable(loader), torch.get_rng_state()
    assert tried.search_space.in_process
    assert tried.change(replace(tried.start, workers=0)) == 0
    assert tried.all_started
    assert [tried.next().tolist() for _ in range(4)] == [
        [*range(8)], [*range(8, 16)], [*range(16, 24)], [*range(8)],
    ]  # fmt: skip
    tried.change(tried.start)
    assert len(tried.next()) == 8
    tried.close()
    assert loader.num_workers == 1
    assert data.dataset.file is None
    assert torch.equal(torch.get_rng_state(), before)
    if library == "feedline":
        assert [batch.tolist()[0] for batch in loader] == [0, 8, 16]
        loader.close()


def test_without_workers_images_have_the_size_of_the_phase():
    with DataLoader(Rows(64), 8, schedule="8x1,16x1@4", seed=0, num_workers=1) as loader:
        tried = TunableFeedlineLoader(loader)
        tried.begin(tried.phases[1])
        tried.change(replace(tried.start, workers=0))
        assert tried.next()[0].shape == (4, 3, 16, 16)
        tried.close()
        assert next(iter(loader))[0].shape == (8, 3, 8, 8)


def test_torch_workers_note_their_work():
    tried = TunableTorchLoader(TorchDataLoader(Slow(4000, 0.003), 8, num_workers=1))
    while (timings := tried.stage_timings()).tasks < 8:
        tried.next()
    tried.close()
    steps = timings.tasks
    window = StepWindow(phase=None, steps=steps, seconds=1.0, wait_s=0.5, workers=1)
    window = window.with_tasks(StageTimings(), timings)
    trial = LoaderTrial(setting=tried.start, window=window)
    benchmark = StepBenchmark(tried, print)
    found = benchmark.rates([trial])
    assert found is not None
    assert (found.size, found.rows) == (None, 8)
    assert found.now.load.blocked_share > 0.5
    assert found.now.load.work_ms > 0
    assert timings.tasks_ms >= 8 * 3 * timings.tasks
    silent = replace(trial, window=replace(window, tasks_s=0.0))
    assert benchmark.rates([silent]) is None


def test_images_are_counted_and_waits_are_distinguished_from_work():
    with DataLoader(Slow(4000, 0.003), 8, num_workers=1) as loader:
        tried = TunableFeedlineLoader(loader)
        benchmark = StepBenchmark(tried, lambda batch: time.sleep(0.004))
        settings = [replace(tried.start, workers=workers) for workers in (3, 1)]
        trials = [benchmark.trial(setting, min_s=0.5, max_s=1.0) for setting in settings]
        found = benchmark.rates(trials)
        tried.close()
    assert found is not None
    assert (found.size, found.rows) == (None, 8)
    assert [point.load.workers for point in found.points] == [3, 1]
    assert found.now.load.blocked_share > 0.5
    # Samples that sleep do not wait for each other.
    assert found.shared is not None
    assert found.shared < 0.2
    (one,) = what_if([found], "workers=1").phases
    assert one.bottleneck == "workers"
