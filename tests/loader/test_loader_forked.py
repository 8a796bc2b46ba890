"""A loader inherited by a forked process continues there with its own workers."""

import multiprocessing
from itertools import chain

import pytest
import torch
from torch.utils.data import TensorDataset

from feedline import DataLoader
from feedline.errors import UsageError
from row_sources import Rows
from sets import Counting
from slow import slow

# Python 3.12 and later warn of forking with threads: torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


KINDS = {
    "no workers": {},
    "workers": {"num_workers": 1},
    "lasting workers": {"num_workers": 1, "persistent_workers": True},
    "seed": {"num_workers": 1, "seed": 1, "shuffle": True},
    "tensors": {"dataset": TensorDataset(torch.arange(8))},
    "stream": {"dataset": Counting(8)},
    "lasting stream": {"dataset": Counting(8), "num_workers": 1, "persistent_workers": True},
    "native": {"dataset": Rows(8), "image_size": 8, "num_workers": 2, "seed": 1},
}


def rows(batch):
    return (batch if isinstance(batch, torch.Tensor) else batch[-1]).tolist()


def child(loader, begun, says):
    said = [[rows(batch) for batch in loader] for _ in range(2)]
    try:
        said.append(rows(next(begun)))
    except UsageError as error:
        said.append(str(error))
    says.send(said)
    loader.close()


@pytest.mark.parametrize("used", [True, *slow(False)])
@pytest.mark.parametrize("kind", KINDS)
def test_both_processes_continue_after_fork(kind, used):
    with DataLoader(**{"dataset": list(range(8)), "batch_size": 3, **KINDS[kind]}) as loader:
        if used:
            list(loader)
        begun = iter(loader)
        first = rows(next(begun))
        hears, says = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=child, args=(loader, begun, says)
        )
        process.start()
        says.close()
        *epochs, refused = hears.recv()
        process.join()
        assert process.exitcode == 0
        for epoch in epochs:
            assert sorted(chain(*epoch)) == list(range(8))
        assert "belongs to another process" in refused
        assert sorted(chain(first, *map(rows, begun))) == list(range(8))
        assert epochs[0] == [rows(batch) for batch in loader]
        assert not loader.worker_deaths
