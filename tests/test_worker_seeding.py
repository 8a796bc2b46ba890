"""A `worker_init_fn` that only seeds does not make a loader slower."""

import argparse
import random
from functools import partial
from importlib import import_module
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, get_worker_info

from feedline import DataLoader
from packages import needs
from torchvision_folder import write_images

LIBRARIES = [
    ("timm", "timm.data.loader", "_worker_init", {"worker_seeding": "all"}),
    ("lightning", "lightning.fabric.utilities.seed", "pl_worker_init_function", {"rank": 0}),
    ("lightning_fabric", "lightning_fabric.utilities.seed", "pl_worker_init_function", {"rank": 0}),
    ("transformers", "transformers.trainer_utils", "seed_worker", {"num_workers": 1, "rank": 0}),
    ("mmengine", "mmengine.dataset.utils", "worker_init_fn", {"num_workers": 1, "rank": 0}),
]


ARGUMENTS = argparse.Namespace(seed=3)
STATE = {"seed": 3}
DATA = TensorDataset(torch.arange(8))


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def seed_from_arguments(worker_id, rank=0):
    random.seed(ARGUMENTS.seed + 100 * rank + worker_id)


def seed_from_info(worker_id):
    info = get_worker_info()
    if info is not None:
        np.random.seed((info.seed + info.id) % 2**32)


def seed_from_state(worker_id):
    np.random.seed(np.random.get_state()[1][0] + worker_id)


def seed_by_another_function(worker_id):
    seed_worker(worker_id)


def seeding_from(seed):
    def seed_it(worker_id):
        torch.manual_seed(seed + worker_id)

    return seed_it


def set_global(worker_id):
    global ARGUMENTS
    ARGUMENTS = argparse.Namespace(seed=worker_id)


def set_item(worker_id):
    STATE["seed"] = worker_id


def set_attribute(worker_id):
    ARGUMENTS.seed = worker_id


def call_method(worker_id):
    np.random.seed(STATE.setdefault("seed", worker_id))


def read_dataset(worker_id):
    np.random.seed(get_worker_info().dataset.tensors[0].zero_().sum().item())


def import_module_by_name(worker_id):
    import json

    json.JSONEncoder.item_separator = "."


def call_lambda(worker_id):
    (lambda: STATE.clear())()


class Seed:
    """A number that changes something when it is used."""

    def __add__(self, other):
        STATE.clear()
        return other


def seed_of_worker(info):
    info.dataset.tensors = ()
    return 1


def engine(worker_init_fn):
    """Description of a loader with a `worker_init_fn`, after an epoch."""
    data = TensorDataset(torch.arange(8))
    with DataLoader(data, 4, num_workers=1, worker_init_fn=worker_init_fn) as loader:
        assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        return loader.explain()


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [pytest.param(*rest, marks=needs(package)) for package, *rest in LIBRARIES],
)
def test_a_function_of_a_library_keeps_the_engine(module, name, arguments):
    function = getattr(import_module(module), name)
    assert "tensor engine" in engine(function)
    assert "tensor engine" in engine(partial(function, **arguments))


@pytest.mark.parametrize(
    "function",
    [
        seed_worker,
        partial(seed_worker),
        partial(seed_from_arguments, rank=1),
        seed_from_info,
        seed_from_state,
        seed_by_another_function,
        seeding_from(1),
    ],
)
def test_an_own_function_that_only_seeds_keeps_the_engine(function):
    assert "tensor engine" in engine(function)


@pytest.mark.parametrize(
    "function",
    [
        set_global,
        set_item,
        set_attribute,
        call_method,
        read_dataset,
        import_module_by_name,
        call_lambda,
        seeding_from(Seed()),
        partial(seed_from_arguments, rank=Seed()),
        Seed,
        pytest.param("timm.data.loader:_worker_init", marks=needs("timm")),
    ],
)
def test_any_other_function_may_change_the_dataset(function):
    if isinstance(function, str):  # one of a library that calls one of the user
        function = partial(resolve_name(function), worker_seeding=seed_of_worker)
    with DataLoader(DATA, 4, num_workers=1, worker_init_fn=function) as loader:
        assert "dataset engine" in loader.explain()


def test_replaced_seeding_functions_are_not_recognised(monkeypatch):
    monkeypatch.setattr(random, "seed", STATE.get)
    with DataLoader(DATA, 4, num_workers=1, worker_init_fn=seed_worker) as loader:
        assert "dataset engine" in loader.explain()


@needs("timm")
def test_a_replaced_function_of_a_library_is_not_recognised(monkeypatch):
    from timm.data import loader as timm_loader

    original = timm_loader._worker_init
    monkeypatch.setattr(timm_loader, "_worker_init", set_item)
    assert "dataset engine" in engine(timm_loader._worker_init)
    assert "dataset engine" in engine(original)


@needs("torchvision", "timm")
def test_rows_do_not_depend_on_the_seeds_of_workers(tmp_path):
    from timm.data.loader import _worker_init
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

    folder = ImageFolder(str(write_images(tmp_path)), Compose([RandomResizedCrop(16), ToTensor()]))
    batches = {}
    for function in None, _worker_init:
        torch.manual_seed(1)
        with DataLoader(folder, 4, num_workers=1, worker_init_fn=function) as loader:
            assert "image-row engine" in loader.explain()
            batches[function] = [images for images, _ in loader]
    assert all(map(torch.equal, batches[None], batches[_worker_init]))
