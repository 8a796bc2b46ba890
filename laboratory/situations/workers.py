"""Bottlenecks of workers: too few, too many, restarted too often."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

import feedline
import images
from samples import Computed, Repeated, folder, usual
from situation import CORES, Outcome, burn, paced, situation, train


@situation("too-few-workers", "torch")
def one_worker(fixed: bool) -> Outcome:
    """One worker, steps of 20 ms; fix: one per core."""
    data = Computed(2400 if fixed else 1200, 1.5)
    return train(DataLoader(data, 32, num_workers=CORES if fixed else 1), paced(20))


@situation("too-few-workers", "torch")
def no_workers(fixed: bool) -> Outcome:
    """No workers; fix: one per core."""
    data = Repeated(folder(images.photos(), usual(112)), 1600 if fixed else 800)
    return train(DataLoader(data, 32, num_workers=CORES if fixed else 0), paced(60))


@situation("too-few-workers", "feedline")
def one_worker_of_feedline(fixed: bool) -> Outcome:
    """One worker, steps of 15 ms; fix: one per core."""
    loader = feedline.DataLoader(Computed(6000, 1.5), 24, seed=0, num_workers=CORES if fixed else 1)
    return train(loader, paced(15), at_most=250 if fixed else 150)


@situation("too-few-workers", "torch", predicts=False)
def generator(fixed: bool) -> Outcome:
    """A generator in the training thread."""

    def batches() -> Any:
        data = Computed(32, 1.0)
        for _ in range(80):
            yield [data[k] for k in range(32)]

    return train(_Batches(batches), paced(30))


class _Batches:
    def __init__(self, make: Any) -> None:
        self._make = make

    def __iter__(self) -> Any:
        return self._make()


@situation("too-many-workers", "torch")
def eight_workers_a_core(fixed: bool) -> Outcome:
    """Eight workers per core begin each epoch at once; fix: one."""
    workers = CORES if fixed else 8 * CORES
    data = Computed(24 * 32, 2.0)
    loader = DataLoader(data, 24, num_workers=workers, persistent_workers=True)
    return train(loader, paced(32), epochs=4)


class _Shards(IterableDataset):
    """A stream of shards, each read by one worker."""

    def __init__(self, shards: int, length: int) -> None:
        self.shards, self.length = shards, length

    def __iter__(self) -> Any:
        info = get_worker_info()
        for _ in range(info.id, self.shards, info.num_workers):
            for number in range(self.length // self.shards):
                burn(1.5)
                yield torch.zeros((3, 64, 64), dtype=torch.uint8), number % 10


@situation("uneven-workers", "torch", needs=lambda: CORES > 1)
def one_shard(fixed: bool) -> Outcome:
    """A stream of one shard; fix: a shard per worker."""
    data = _Shards(CORES if fixed else 1, 16 * CORES * 60)
    return train(DataLoader(data, 16, num_workers=CORES), paced(5))


def _opened(worker: int) -> None:
    time.sleep(0.25)


@situation("epoch-starts", "torch")
def short_epochs(fixed: bool) -> Outcome:
    """Epochs of 8 batches over persistent workers; fix: feedline.DataLoader(seed=0)."""
    data, options = Computed(8 * 16, 3.0), {"num_workers": CORES, "persistent_workers": True}
    loader: Any = DataLoader(data, 16, **options)
    if fixed:
        loader = feedline.DataLoader(data, 16, seed=0, **options)
    return train(loader, paced(30), epochs=15)


@situation("epoch-starts", "feedline")
def short_epochs_without_a_seed(fixed: bool) -> Outcome:
    """The same epochs over feedline's kept workers; fix: seed=0."""
    loader = feedline.DataLoader(
        Computed(8 * 16, 3.0),
        16,
        shuffle=True,
        seed=0 if fixed else None,
        num_workers=CORES,
        persistent_workers=True,
    )
    return train(loader, paced(30), epochs=15)


class _ComputedOrder(Sampler[int]):
    """A random order, after some time of computing in each epoch."""

    def __init__(self, length: int, ms: float) -> None:
        self.length, self.ms = length, ms

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        burn(self.ms)
        return iter(torch.randperm(self.length).tolist())


@situation("epoch-starts", "torch")
def slow_sampler(fixed: bool) -> Outcome:
    """A sampler that computes for 0.5 s before each epoch; fix: it does not."""
    data, sampler = Computed(20 * 16, 0.5), _ComputedOrder(20 * 16, 0.0 if fixed else 500.0)
    loader = DataLoader(data, 16, sampler=sampler, num_workers=CORES, persistent_workers=True)
    return train(loader, paced(30), epochs=6)


@situation("workers-restarted", "torch")
def workers_of_an_epoch(fixed: bool) -> Outcome:
    """New workers each epoch that open an archive for 0.25 s; fix: persistent_workers."""
    loader = DataLoader(
        Computed(16 * 20, 1.0),
        16,
        num_workers=CORES,
        persistent_workers=fixed,
        worker_init_fn=_opened,
    )
    return train(loader, paced(20), epochs=9)


@situation("workers-restarted", "feedline")
def workers_of_an_epoch_of_feedline(fixed: bool) -> Outcome:
    """The same dataset; fix: persistent_workers."""
    loader = feedline.DataLoader(
        Computed(16 * 20, 1.0),
        16,
        num_workers=CORES,
        persistent_workers=fixed,
        worker_init_fn=_opened,
    )
    return train(loader, paced(20), epochs=9)


class _Dying(Computed):
    """Some samples kill their worker, once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1600, 1.0)
        self.folder = folder

    def __getitem__(self, number: int) -> Any:
        if number % 400 == 200:
            mark = self.folder / f"dead-{number}"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


@situation("workers-restarted", "feedline", predicts=False)
def dying_workers(fixed: bool) -> Outcome:
    """Workers killed as by the out-of-memory killer."""
    import tempfile

    with tempfile.TemporaryDirectory() as marks:
        loader = feedline.DataLoader(_Dying(Path(marks)), 16, num_workers=CORES)
        return train(loader, paced(20))


@situation("loader-rebuilt", "torch")
def loader_of_an_epoch(fixed: bool) -> Outcome:
    """A new DataLoader each epoch; fix: one, with persistent workers."""

    def built(epoch: int = 0) -> DataLoader:
        return DataLoader(
            Computed(16 * 20, 1.0),
            16,
            num_workers=CORES,
            persistent_workers=True,
            worker_init_fn=_opened,
        )

    return train(built() if fixed else built, paced(20), epochs=9)


@situation("loader-rebuilt", "torch", predicts=False)
def loader_of_a_size(fixed: bool) -> Outcome:
    """A new DataLoader for each image size."""

    def built(epoch: int) -> DataLoader:
        return DataLoader(
            Computed(16 * 20, 1.0, (3, 64 + 16 * epoch, 64 + 16 * epoch)),
            16,
            num_workers=CORES,
            worker_init_fn=_opened,
        )

    return train(built, paced(20), epochs=6)
