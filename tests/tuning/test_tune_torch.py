"""Tuning torch's own DataLoader, of which a copy is built for each trial."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from feedline.errors import UsageError
from feedline.tuning.loaders import TunableTorchLoader
from feedline.tuning.search import LoaderSetting
from feedline.tuning.tune import tune
from processes import newcomers, own_family


class Far(Dataset[torch.Tensor]):
    """Samples of a server: each is waited for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor([number])


class Stream(IterableDataset[torch.Tensor]):
    """Yields the worker id, or -1 in the main process."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        yield from [torch.tensor([-1 if info is None else info.id])] * 64


class Named(DataLoader[Any]):
    """A subclass that must be preserved."""

    built = 0

    def __iter__(self) -> Any:
        type(self).built += 1
        return super().__iter__()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot wait here")
def test_workers_ignore_ctrl_c_and_this_process_does_not() -> None:
    before = own_family()
    tried = TunableTorchLoader(DataLoader(Far(0.0), 8, num_workers=2))
    tried.change(LoaderSetting(workers=2, prefetch=2))
    for worker in newcomers(before):
        worker.send_signal(signal.SIGINT)
    for _ in range(40):
        tried.next()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    tried.close()
    assert not newcomers(before)


@pytest.mark.usefixtures("quick_trials")
def test_sufficient_workers_are_found_and_loader_is_restored() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Far(0.005), 8, shuffle=True, num_workers=1, generator=generator)
    states = torch.get_rng_state(), generator.get_state()
    before = own_family()
    found = tune(loader, step_ms=15, budget_s=120)
    (phase,) = found.phases
    assert phase.best is not None
    # 40 ms of waiting for a batch, and a step of 15 ms: three workers; one is too few anywhere.
    assert 1 < phase.best.workers == found.num_workers
    assert all(trial.start_s is not None for trial in phase.trials)
    assert found.loader == "torch"
    assert "persistent_workers=True, pin_memory=False" in found.snippet
    assert "persistent_workers=True starts them once" in str(found)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 2, False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(generator.get_state(), states[1])
    assert not newcomers(before)


def test_subclass_and_its_workers_are_preserved() -> None:
    loader = Named(Far(0.0), 8, num_workers=1, persistent_workers=True)
    own = iter(loader)
    first = next(own)
    Named.built = 0
    tried = TunableTorchLoader(loader)
    tried.change(LoaderSetting(workers=2, prefetch=3, pin=False))
    assert tried.next().shape == (8, 1)
    assert Named.built == 1
    assert tried.start_s is not None
    tried.close()
    assert torch.equal(first, torch.arange(8).reshape(8, 1))
    assert torch.equal(next(own), torch.arange(8, 16).reshape(8, 1))
    del own
    loader._iterator = None


def test_same_setting_restarts_nothing() -> None:
    tried = TunableTorchLoader(DataLoader(Far(0.0), 8, num_workers=2))
    tried.next()
    mine = set(multiprocessing.active_children())
    assert tried.change(tried.start) == 0
    tried.next()
    assert set(multiprocessing.active_children()) <= mine
    tried.close()


def test_epochs_are_consecutive_and_work_is_measured() -> None:
    tried = TunableTorchLoader(DataLoader(Far(1e-5), 1000, num_workers=1))
    assert tried.batch_size == 1000
    seen = [int(tried.next()[0, 0]) for _ in range(9)]
    assert seen == [0, 1000, 2000, 3000, 0, 1000, 2000, 3000, 0]
    assert tried.stage_timings().tasks >= 9
    assert tried.stage_timings().tasks_ms > 0
    tried.close()


def test_a_stream_can_be_tuned() -> None:
    tried = TunableTorchLoader(DataLoader(Stream(), 8, num_workers=1))
    tried.change(LoaderSetting(workers=2, prefetch=2, pin=False))
    assert {int(tried.next()[0, 0]) for _ in range(8)} == {0, 1}
    tried.close()


def test_empty_loader_raises() -> None:
    empty: Any = []
    with pytest.raises(UsageError, match="no batch"):
        tune(DataLoader(empty, 2, sampler=[], num_workers=1), step_ms=1)


class Broken(Far):
    def __getitem__(self, number: int) -> torch.Tensor:
        raise ArithmeticError("this sample cannot be made")


def test_a_dataset_that_raises_is_the_error_and_leaves_no_worker() -> None:
    before = own_family()
    with pytest.raises(ArithmeticError, match="this sample cannot be made"):
        tune(DataLoader(Broken(0.0), 8, num_workers=2), step_ms=1)
    assert not newcomers(before)
