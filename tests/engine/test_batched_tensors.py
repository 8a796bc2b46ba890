"""Tensors in memory: small batches are one indexing of each, and the same as torch's."""

import functools
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import collate_str_fn, default_collate_fn_map

import feedline
from comparisons import same_as_torch
from feedline.engine.tensor_dataset import MAX_BATCH_BYTES, batched_tensors

ROWS = 40


def images():
    return torch.arange(ROWS * 12, dtype=torch.uint8).view(ROWS, 3, 2, 2)


def pair():
    return TensorDataset(images(), torch.arange(ROWS) * 7)


def refused(dataset, collate_fn=default_collate, rows=7):
    found = batched_tensors(dataset, collate_fn, rows)
    assert (found.gather is None) == bool(found.reason)
    return found.reason


def assert_same(make, **given):
    same_as_torch(make, **{"batch_size": 7, "shuffle": True, **given})


KINDS = ["uint8", "int8", "int16", "int32", "int64", "bool", "complex64"]
KINDS += ["float16", "float32", "float64", "bfloat16"]
TABLE = torch.arange(ROWS * 3.0).view(ROWS, 3)
TAKEN = {
    "pair": pair,
    "kinds": lambda: TensorDataset(*[TABLE.to(getattr(torch, kind)) for kind in KINDS]),
    "single": lambda: TensorDataset(torch.arange(ROWS).bfloat16()),
    "columns": lambda: TensorDataset(TABLE[:, 1:], TABLE[:, 0], TABLE.T.contiguous().T),
    "list": lambda: Subset(Subset(pair(), list(range(5, 30))), [-1, 3, 7, 7]),
    "array": lambda: Subset(pair(), np.arange(3, 20)),
    "tensor": lambda: Subset(pair(), torch.arange(3, 20)),
    "range": lambda: Subset(pair(), range(3, 20, 2)),
    "shared": lambda: TensorDataset(images().share_memory_()),
}


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_match_torch_without_workers(kind, workers):
    data = TAKEN[kind]()
    assert_same(partial(copy, data), num_workers=workers)
    assert refused(data) == ""
    with feedline.DataLoader(data, num_workers=workers) as loader:
        next(iter(loader))
        assert not loader.worker_pids
        assert "tensor engine" in loader.explain()


class Mine(TensorDataset):
    pass


class Looks(Dataset[Any]):
    def __init__(self):
        self.tensors = (images(),)

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return self.tensors[0][index]


def negated():
    data = pair()
    data.__getitem__ = lambda index: -index
    return data


def many(data):
    data.__getitems__ = lambda keys: [torch.tensor(-key) for key in keys]
    return data


class Tuples(tuple[int, ...]):
    __slots__ = ()


REFUSED = {
    "subclass": (lambda: Mine(images()), "Mine is not torch's TensorDataset"),
    "within": (lambda: Subset(Looks(), range(4)), "Looks is not torch's"),
    "method": (negated, "A method of TensorDataset was replaced"),
    "subset of many": (lambda: Subset(many(pair()), range(9)), "A method of TensorDataset"),
    "many of a subset": (lambda: many(Subset(pair(), range(9))), "A method of Subset"),
    "indices": (lambda: Subset(pair(), Tuples((1, 2))), "a class that may do anything"),
    "parameter": (lambda: TensorDataset(torch.nn.Parameter(TABLE)), "A Parameter is not a plain"),
    "gradient": (lambda: TensorDataset(TABLE.clone().requires_grad_()), "requires grad"),
    "strided": (
        lambda: TensorDataset(torch.arange(ROWS * 4).view(4, ROWS, 1).transpose(0, 1)),
        "not contiguous",
    ),
    "strided half": (lambda: TensorDataset(TABLE.bfloat16().T.contiguous().T), "not contiguous"),
    "conjugated": (
        lambda: TensorDataset(TABLE.to(torch.complex64).conj()),
        "not consist of plain numbers",
    ),
    "sparse": (lambda: TensorDataset(TABLE.to_sparse()), "not consist of plain numbers"),
    "meta": (lambda: TensorDataset(TABLE.to("meta")), "not consist of plain numbers"),
    "empty": (lambda: TensorDataset(torch.zeros(0, 3)), "is empty"),
    "large": (
        lambda: TensorDataset(torch.zeros(ROWS, MAX_BATCH_BYTES // 7 + 1, dtype=torch.uint8)),
        "1.0 MiB is too large",
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", REFUSED)
def test_other_datasets_use_sample_engine(kind):
    make, why = REFUSED[kind]
    assert why in refused(make())
    assert_same(make)


def test_largest_supported_batch_is_accepted_and_unknown_size_is_not():
    data = TensorDataset(torch.zeros(4, MAX_BATCH_BYTES // 4, dtype=torch.uint8))
    assert refused(data, rows=4) == ""
    assert "too large" in refused(data, rows=5)
    assert "is unknown" in refused(data, rows=0)
    wide = TensorDataset(torch.zeros(4, MAX_BATCH_BYTES // 64, 2), torch.zeros(4))
    assert refused(wide, rows=7) == ""
    assert "1.0 MiB is too large" in refused(wide, rows=8)
    assert "collate_fn" in refused(data, list)


def mapped(path):
    np.save(path / "rows.npy", np.arange(ROWS * 3.0).reshape(ROWS, 3))
    torch.save(torch.arange(ROWS * 3.0).view(ROWS, 3), path / "rows.pt")
    array = np.load(path / "rows.npy", mmap_mode="c")
    whole = torch.from_numpy(np.asarray(array))
    plain_file = torch.from_file(str(path / "rows"), True, ROWS * 3, dtype=torch.float32)
    return {
        "numpy": whole,
        "rows of it": whole[3:],
        "torch": torch.load(str(path / "rows.pt"), mmap=True),
        "file": plain_file.view(ROWS, 3),
    }


def test_mapped_tensors_large_batches_and_a_worker_init_fn_use_workers(tmp_path):
    for name, tensor in mapped(tmp_path).items():
        assert "mapped from a file" in refused(TensorDataset(images()[: len(tensor)], tensor)), name
        changed = TensorDataset(tensor.clone())
        assert refused(changed) == ""
        changed.tensors[0].set_(tensor)
        assert "mapped from a file" in refused(changed), name
    data = TensorDataset(mapped(tmp_path)["numpy"])
    assert_same(lambda: data, num_workers=2)
    large = TensorDataset(torch.arange(9), torch.zeros(9, 1 << 20, dtype=torch.uint8))
    for dataset, init in ((data, None), (large, None), (pair(), print)):
        with feedline.DataLoader(dataset, 4, num_workers=1, worker_init_fn=init) as loader:
            batches = iter(loader)
            next(batches)
            assert loader.worker_pids


def test_tensor_engine_is_not_used_if_mapped_files_are_undetectable(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert "only be detected on Linux" in refused(pair())


def test_boolean_and_list_indices_are_passed_to_dataset():
    """A truth, or a list of one, adds a dimension to a tensor's row."""
    mask = torch.arange(20) % 3 == 0
    for indices in ([True, False], mask, torch.nonzero(mask), mask.to(torch.uint8), [[1], [2]]):
        data = Subset(pair(), indices)
        assert_same(partial(copy, data))


def test_keys_other_than_plain_integers_are_passed_to_dataset():
    for keys in (
        [slice(0, 2), slice(2, 4)],
        [torch.tensor([1, 2])],
        [torch.tensor([1]), torch.tensor([3])],
        [torch.tensor(True), torch.tensor(False)],
        [torch.tensor(3, dtype=torch.uint8)],
        [torch.tensor(3), np.int64(4), -1],
        [np.int16(3), np.uint8(4)],
        [np.bool_(True)],
        (1, 2),
        range(3),
        torch.arange(3),
        np.arange(3),
        {1, 2},
        [],
    ):
        assert_same(pair, batch_size=1, shuffle=False, batch_sampler=[keys])


def test_one_shot_keys_are_available_to_samples():
    for data in (pair(), Subset(pair(), range(ROWS)), Subset(pair(), np.arange(ROWS, dtype="i4"))):
        loader = feedline.DataLoader(data, batch_sampler=[iter([1, 2]), map(int, "34")])
        assert [batch[1].tolist() for batch in loader] == [[7, 14], [21, 28]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_belong_to_the_user_also_in_autograd(dtype):
    data = TensorDataset(torch.ones(ROWS, 2, dtype=dtype))
    weights = torch.ones(2, dtype=dtype, requires_grad=True)
    with torch.no_grad():
        (batch,) = next(iter(feedline.DataLoader(data, batch_size=4)))
    batch.mul_(weights)
    batch.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [4, 4]
    batch.detach().zero_()
    assert (data.tensors[0] == 1).all()


def test_missing_row_is_named_and_can_be_skipped():
    keys = [[0, 1], [2, ROWS + 5], [3, 4]]
    with pytest.raises(IndexError) as caught:
        list(feedline.DataLoader(pair(), batch_sampler=keys))
    assert f"index {ROWS + 5} of TensorDataset" in "\n".join(caught.value.__notes__)
    options = {"on_error": "skip", "num_workers": 2}
    with feedline.DataLoader(pair(), batch_sampler=keys, **options) as loader:
        assert [batch[1].tolist() for batch in loader] == [[0, 7], [14], [21, 28]]
        assert [name for name, _ in loader.skipped] == [str(ROWS + 5)]


@pytest.mark.parametrize("workers", [0, 2])
def test_current_tensors_are_used(workers):
    data = TensorDataset(torch.arange(ROWS))
    with feedline.DataLoader(data, batch_size=2, num_workers=workers) as loader:
        batches = iter(loader)
        assert next(batches)[0].tolist() == [0, 1]
        data.tensors = (torch.arange(ROWS) * 2, torch.arange(ROWS))
        assert [part.tolist() for part in next(batches)] == [[4, 6], [2, 3]]
        data.tensors[0][4:6] = -1
        assert next(batches)[0].tolist() == [-1, -1]
        data.tensors[1].resize_(ROWS * 100)  # memory that a batch was read from is not locked
        assert next(batches)[1].tolist() == [6, 7]
        data.tensors = (torch.zeros(ROWS, 3, dtype=torch.bfloat16),)
        next(batches)
        data.tensors[0].resize_(ROWS + 10, 3)


def test_overridden_method_of_torch_class_is_used(monkeypatch):
    batches = iter(feedline.DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=2))
    assert next(batches)[0].tolist() == [0, 1]
    # Wrapped like by a decorator, with the name of the wrapped function.
    other = functools.wraps(TensorDataset.__getitem__)(lambda self, index: -index)
    monkeypatch.setattr(TensorDataset, "__getitem__", other)
    assert next(batches).tolist() == [-2, -3]
    assert "A method of TensorDataset was replaced" in refused(pair())


def test_freed_memory_is_not_read():
    for tensor in (torch.ones(ROWS, 100), torch.ones(ROWS, 100)[:, 1:]):
        tensor.untyped_storage().resize_(0)
        assert "memory was freed" in refused(TensorDataset(tensor))


@pytest.mark.parametrize("kind", [torch.Tensor, tuple, object])
def test_registered_collate_function_is_used(kind, monkeypatch):
    function = collate_str_fn if kind is torch.Tensor else lambda batch, *, collate_fn_map: "mine"
    monkeypatch.setitem(default_collate_fn_map, kind, function)
    assert "collate_fn" in refused(pair())
    assert_same(pair)
