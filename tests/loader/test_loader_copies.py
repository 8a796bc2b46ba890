"""Copied and unpickled loaders: independent, with the same arguments."""

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, default_collate

from feedline.loader import DataLoader
from row_sources import Rows
from sets import Counting
from slow import slow


def through_pickle(loader):
    return pickle.loads(pickle.dumps(loader))


COPIES = [copy.copy, copy.deepcopy, through_pickle]


class Named(DataLoader[Any]):
    def __init__(self, name, **options):
        self.name = name
        super().__init__(list(range(12)), 4, **options)
        self.names = [name]

    def named(self):
        return [(self.name, batch.tolist()) for batch in self]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_has_attributes_that_were_set_later(copied):
    loader = DataLoader(list(range(8)), 4, num_workers=1)
    loader.collate_fn = doubled
    loader.in_order, loader.start_method, loader.timeout = False, "spawn", 50
    other = copied(loader)
    assert (other.in_order, other.start_method, other.timeout) == (False, "spawn", 50)
    other.start_method = None  # spawned workers would import torch
    assert [batch.tolist() for batch in other] == [[0, 2, 4, 6], [8, 10, 12, 14]]


def doubled(samples):
    return 2 * default_collate(samples)


def numbered(images, labels, *, batch):
    return images + batch.step, labels


LOADERS = {
    "in this process": lambda: DataLoader(list(range(10)), 3, shuffle=True, seed=4),
    "workers": lambda: DataLoader(
        list(range(10)), 3, drop_last=True, num_workers=2, collate_fn=doubled
    ),
    "sampler": lambda: DataLoader(
        list(range(10)), sampler=RandomSampler(range(5)), generator=torch.Generator()
    ),
    "no batches": lambda: DataLoader(list(range(10)), None, start_method="fork", num_workers=1),
    "iterable": lambda: DataLoader(Counting(10), 4, num_workers=1),
    "windows": lambda: DataLoader(list(range(600)), 90, shuffle="window:256", seed=5),
    "transform": lambda: DataLoader(
        Rows(10), 3, image_size=4, device="cpu", batch_transform=numbered
    ),
    "rows": lambda: DataLoader(Rows(10), 3, schedule="8x1,4x2", num_workers=2, prefetch=2),
}


def epoch(loader):
    torch.manual_seed(1)
    if loader.generator is not None:
        loader.generator.manual_seed(2)
    return [str(batch) for batch in loader]


@pytest.mark.parametrize("copied", [through_pickle, *slow(copy.copy, copy.deepcopy)])
@pytest.mark.parametrize("name", LOADERS)
def test_copy_gives_same_batches_and_is_independent(name, copied):
    if name == "sampler" and copied is not copy.copy and torch.__version__.startswith("2.2."):
        pytest.skip("torch 2.2 copies no generators")
    with LOADERS[name]() as loader:
        expected = [epoch(loader), epoch(loader)]
        with copied(loader) as other:
            assert type(other) is DataLoader
            assert other.epoch == 0
            assert [epoch(other), epoch(other)] == expected
            assert not {*other.worker_pids} & {*loader.worker_pids}
        assert len(epoch(loader)) == len(expected[1])  # closing one leaves the other


@pytest.mark.parametrize("copied", COPIES)
def test_copy_of_a_subclass_keeps_class_and_attributes(copied):
    with Named("n", seed=1, shuffle=True, num_workers=1) as loader:
        loader.note = {"added": loader.name}
        loader.num_workers = 2
        expected = loader.named()
        with copied(loader) as other:
            assert type(other) is Named
            assert (other.name, other.names, other.note) == ("n", ["n"], {"added": "n"})
            assert (other.names is loader.names) == (copied is copy.copy)
            assert other.num_workers == 2
            assert other.named() == expected
            with copied(other) as third:  # a copy is as good as its original
                assert third.named() == expected
                assert third.note == other.note


def test_a_closed_loader_can_be_copied():
    loader = DataLoader(list(range(10)), 5)
    loader.close()
    assert len(list(copy.copy(loader))) == 2


def tell(loader, results):
    with loader:
        results.put([batch[1].tolist() for batch in loader])


@pytest.mark.slow
@pytest.mark.parametrize("prepared", [True, *slow(False)])
def test_a_loader_may_be_an_argument_of_a_spawned_process(prepared):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with DataLoader(Rows(10), 5, shuffle=False, image_size=8, num_workers=1) as loader:
        if prepared:
            accelerate = pytest.importorskip("accelerate")
            from feedline.integrations.accelerate import prepare

            assert prepare(accelerate.Accelerator(cpu=True), loader) is loader
            next(iter(loader))
        process = context.Process(target=tell, args=(loader, results))
        process.start()
        assert results.get(timeout=60) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        process.join()
    results.close()
