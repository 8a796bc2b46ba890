"""Batches equal those of torch's DataLoader for the same dataset and arguments."""

from __future__ import annotations

import collections
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data._utils import collate as torch_collate

from comparisons import anew, same_as_torch
from feedline.loader import DataLoader
from processes import eventually
from sets import Made, as_it_is, plain, worker_of, worker_of_batch
from slow import slow


def assert_same(dataset, epochs=1, **options):
    """Batches that torch and feedline have in common, and the draw that follows them."""
    return same_as_torch(lambda: dataset, epochs=epochs, **options)


class Pair(NamedTuple):
    a: Any
    b: Any


class Word(str):
    """A string of another class."""


NUMBERS = "bBhilefd?"
SAMPLES = {
    "nested": lambda i: {
        "a": [torch.tensor(i), (i, f"s{i}")],
        "n": Pair(float(i), b"x"),
        "d": {"x": np.float32(i), "y": np.arange(3) + i},
    },
    "ordered": lambda i: collections.OrderedDict(b=i, a=torch.ones(2)),
    "default": lambda i: collections.defaultdict(int, {"a": i}),
    "channels_last": lambda i: (
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)[0] + i
    ),
    "transposed": lambda i: torch.arange(12.0).view(3, 4).t() + i,
    "expanded": lambda i: torch.tensor([float(i)]).expand(5),
    "empty": lambda i: torch.empty(0, 3),
    "scalar": lambda i: torch.tensor(i),
    "bfloat16": lambda i: torch.ones(3, dtype=torch.bfloat16) * i,
    "float8": lambda i: torch.ones(3).mul(i).to(torch.float8_e4m3fn),
    "complex": lambda i: torch.ones(3, dtype=torch.complex64) * 1j * i,
    "bools": lambda i: (i % 2 == 0, torch.tensor([i % 3 == 0])),
    "arrays": lambda i: [np.array([i], kind) for kind in NUMBERS],
    "numpy numbers": lambda i: [np.dtype(kind).type(i) for kind in NUMBERS],
    "numpy 0-d": lambda i: np.array(float(i)),
    "empty lists": lambda i: [],
    "numbers": lambda i: (i, float(i), 2**40 + i),
    "words": lambda i: Word(f"w{i}"),
}


SENT = ("nested", "default", "channels_last", "expanded", "bfloat16", "arrays", "words")


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 0) for name in SAMPLES),
        *((name, 2) for name in SENT),
        *slow(*((name, 2) for name in SAMPLES if name not in SENT)),
    ],
)
def test_default_collate_results(name, workers):
    ours = assert_same(Made(11, SAMPLES[name]), batch_size=4, shuffle=True, num_workers=workers)
    assert len(ours) == 4


def twice(index):
    tensor = torch.arange(4.0) + index
    return tensor, tensor.view(2, 2), tensor[1:]


def boxes(index):
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    return tv_tensors.BoundingBoxes([[0, 1, 2, index]], format="XYXY", canvas_size=(9, 9))


BYTE_ORDERS = ["<i4", [("a", ">f4"), ("b", "<i2")]]
if pickle.DEFAULT_PROTOCOL < 5:  # from Python 3.14 on, torch's workers keep another byte order
    BYTE_ORDERS += [">i4", ">f8", ">U3", ">M8[s]"]
COLLATED = {
    "none": (lambda i: (None, i), as_it_is),
    "bytes": (lambda i: (b"ab" * i, bytearray(b"x" * i)), as_it_is),
    "sparse": (lambda i: (torch.eye(3) * i).to_sparse(), as_it_is),
    "shared": (twice, as_it_is),
    "boxes": (boxes, as_it_is),
    "leaves": (lambda i: torch.ones(3).mul(i).requires_grad_(), as_it_is),
    "varying": (lambda i: torch.arange(1.0 + i * i * 50), torch.cat),
    "stacked arrays": (lambda i: np.full((300, 4), i, "f4"), np.stack),
    "byte orders": (lambda i: [np.full(3 + 99 * i, i, kind) for kind in BYTE_ORDERS], as_it_is),
    "closure": (lambda i: i, lambda samples: {"total": sum(samples)}),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", COLLATED)
def test_user_collate_results(name, workers):
    make, collate = COLLATED[name]
    assert_same(Made(11, make), batch_size=4, collate_fn=collate, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_without_batches(workers):
    data = Made(9, lambda i: (i, np.arange(3) + i, "x", {"k": torch.ones(2) * i}))
    for options in ({}, {"shuffle": True}, {"collate_fn": lambda sample: {"it": sample}}):
        ours = assert_same(data, batch_size=None, num_workers=workers, **options)
        assert len(ours) == 10


DATA = Made(23, lambda i: i)
ORDERS = {
    "drop last": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "generator": {"shuffle": True, "generator": anew(lambda: torch.Generator().manual_seed(3))},
    "replacement": {"sampler": RandomSampler(DATA, replacement=True, num_samples=30)},
    "weighted": {"sampler": WeightedRandomSampler(torch.arange(1, 24).float(), 40)},
    "subset": {"sampler": SubsetRandomSampler(range(3, 20)), "batch_size": 2},
    "batches": {"batch_sampler": BatchSampler(RandomSampler(DATA), 5, True)},
    "lists": {"batch_sampler": [[1, 2], (3, 4), [5]]},
    "tensor": {"sampler": torch.arange(7), "batch_size": 3},
    "array": {"sampler": np.arange(7), "batch_size": 3},
    "persistent": {"shuffle": True, "batch_size": 4, "persistent_workers": True},
    "persistent by generator": {
        "batch_size": 4,
        "shuffle": True,
        "generator": anew(lambda: torch.Generator().manual_seed(5)),
        "persistent_workers": True,
    },
}


PERSISTENT = ("persistent", "persistent by generator")
IN_WORKERS = ("generator", "batches", *PERSISTENT)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 2 if name in IN_WORKERS else 0) for name in ORDERS),
        *slow(
            *((name, 0 if name in IN_WORKERS else 2) for name in ORDERS if name not in PERSISTENT)
        ),
    ],
)
def test_the_order_over_epochs(name, workers):
    assert_same(DATA, 3, num_workers=workers, **ORDERS[name])


@pytest.mark.parametrize("workers", [0, 2])
def test_distributed_epochs(workers):
    found = []
    for kind in (TorchDataLoader, DataLoader):
        sampler = DistributedSampler(DATA, num_replicas=3, rank=1, seed=4)
        loader = kind(DATA, 2, sampler=sampler, num_workers=workers)
        for epoch in (0, 1, 5, 2):
            sampler.set_epoch(epoch)
            found.append([plain(batch) for batch in loader])
    assert found[4:] == found[:4]


class Together(Made):
    def __getitems__(self, keys):
        return [f"{type(keys).__name__} {key!r}" for key in keys]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Made, Together])
def test_keys_of_any_kind(kind, workers):
    data = kind(9, repr)
    for keys in ([(1, 2), (3, "a"), (5,)], ["a", "b", "c"], [np.int64(1), 2, None]):
        for options in ({"sampler": keys, "batch_size": 2}, {"batch_sampler": [keys]}):
            assert_same(data, num_workers=workers, **options)


class Filled:
    """Yields one list, array or tensor, filled again and again."""

    def __init__(self, keys):
        self.keys = keys

    def __iter__(self):
        for index in range(20):
            self.keys[index % 4] = index
            if index % 4 == 3:
                yield self.keys


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "keys", [[0] * 4, np.zeros(4, int), torch.zeros(4, dtype=torch.int64)], ids=type
)
def test_a_batch_sampler_may_fill_the_same_array_again(keys, workers):
    options = {"num_workers": workers, "collate_fn": as_it_is}
    loader = DataLoader(DATA, batch_sampler=Filled(keys), **options)
    for _ in range(2):
        assert [int(key) for batch in loader for key in batch] == list(range(20))


def test_collate_functions_registered_by_users(monkeypatch):
    def words(batch, *, collate_fn_map=None):
        return " ".join(batch)

    def first(batch, *, collate_fn_map=None):
        return batch[0] * 2

    mine = {**torch_collate.default_collate_fn_map, Word: words, torch.Tensor: first}
    monkeypatch.setattr(torch_collate, "default_collate_fn_map", mine)
    data = Made(8, lambda i: (Word(i), torch.ones(3) * i))
    ours = assert_same(data, batch_size=4, num_workers=2)
    assert ours[0][1][0] == plain("0 1 2 3")


@pytest.mark.parametrize("method", ["fork", *slow("forkserver", "spawn")])
def test_batches_of_very_many_samples_and_of_very_many_bytes(method):
    # Their keys alone are larger than any message, a batch of them larger than any pipe.
    data = Subset(range(500_000), range(500_000))
    loader = DataLoader(data, 100_000, num_workers=1, start_method=method)
    assert [int(x) for batch in loader for x in batch[::25_000]] == list(range(0, 500_000, 25_000))
    sizes = [1, 300, 2, 1]  # one batch of 300 MB
    parts = [torch.full((size << 18,), float(size)) for size in sizes]
    loader = DataLoader(parts, None, num_workers=1, start_method=method)
    for size, batch in zip(sizes, loader, strict=True):
        assert batch.shape == (size << 18,)
        assert bool((batch == size).all())


def test_worker_info_in_dataset_and_collate_and_the_init_function(tmp_path):
    def init(worker):
        (tmp_path / str(worker)).touch(exist_ok=False)

    data = Made(40, worker_of)
    options = {"num_workers": 2, "worker_init_fn": init, "collate_fn": worker_of_batch}
    options["persistent_workers"] = True
    with DataLoader(data, 2, **options) as loader:
        for step, (id, samples) in enumerate(loader):
            assert samples == [[2 * step, id, 2], [2 * step + 1, id, 2]]
        assert eventually(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"])
    here = DataLoader(Made(2, lambda i: i), 2, collate_fn=worker_of_batch)
    assert list(here) == [[None, [0, 1]]]
