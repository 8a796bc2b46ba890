"""A library's `worker_init_fn` that only seeds does not make a loader slower."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

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


def seed_worker(worker_id: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


def seed_of_worker(info: Any) -> int:
    info.dataset.tensors = ()
    return 1


def engine(worker_init_fn: Any) -> str:
    """Description of a loader with a `worker_init_fn`, after an epoch."""
    data = TensorDataset(torch.arange(8))
    with DataLoader(data, 4, num_workers=1, worker_init_fn=worker_init_fn) as loader:
        assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        return loader.explain()


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [pytest.param(*rest, marks=needs(package)) for package, *rest in LIBRARIES],
)
def test_a_function_of_a_library_keeps_the_engine(
    module: str, name: str, arguments: dict[str, Any]
) -> None:
    function = getattr(import_module(module), name)
    assert "tensor engine" in engine(function)
    assert "tensor engine" in engine(partial(function, **arguments))


@pytest.mark.parametrize("function", [seed_worker, partial(seed_worker)])
def test_any_other_function_may_change_the_dataset(function: Any) -> None:
    assert "dataset engine" in engine(function)


@needs("timm")
def test_a_function_that_calls_one_of_the_user_may_change_the_dataset() -> None:
    from timm.data.loader import _worker_init

    data = TensorDataset(torch.arange(8))
    function = partial(_worker_init, worker_seeding=seed_of_worker)
    with DataLoader(data, 4, num_workers=1, worker_init_fn=function) as loader:
        assert "dataset engine" in loader.explain()


@needs("timm")
def test_a_replaced_function_of_a_library_is_not_recognised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from timm.data import loader as timm_loader

    original = timm_loader._worker_init
    monkeypatch.setattr(timm_loader, "_worker_init", seed_worker)
    assert "dataset engine" in engine(timm_loader._worker_init)
    assert "dataset engine" in engine(original)


@needs("torchvision", "timm")
def test_rows_do_not_depend_on_the_seeds_of_workers(tmp_path: Path) -> None:
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
