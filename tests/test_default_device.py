"""torch.set_default_device affects tensors created by the user, not by feedline."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from feedline import DataLoader
from row_sources import Rows
from sets import Made


class Numbers(IterableDataset[Any]):
    def __iter__(self):
        return (torch.full((3,), index, device="cpu") for index in range(8))


def boxes(index):
    """Boxes, some empty, which are pickled differently."""
    return {
        "boxes": torch.zeros(index % 2, 4, device="cpu"),
        "wide": torch.zeros(2, 4, device="cpu").T[:, :1],
        "array": np.zeros((index % 2, 2), np.float32),
    }


def folder(root):
    return ImageFolder(root, Compose([RandomResizedCrop(8), RandomHorizontalFlip(), ToTensor()]))


BUILDS = {
    "rows": lambda _, workers: DataLoader(Rows(8), 2, image_size=4, num_workers=workers),
    "normalised": lambda _, workers: DataLoader(
        Rows(8), 2, image_size=4, num_workers=workers, device="cpu"
    ),
    "folder": lambda root, workers: DataLoader(folder(root), 2, num_workers=workers),
    "samples": lambda root, workers: DataLoader(
        folder(root), 2, num_workers=workers, collate_fn=list
    ),
    "dataset": lambda _, workers: DataLoader(
        Made(8, boxes), 2, num_workers=workers, collate_fn=list
    ),
    "tensors": lambda _, workers: DataLoader(
        TensorDataset(torch.zeros(8, 3), torch.zeros(8).bfloat16()), 2, num_workers=workers
    ),
    "iterable": lambda _, workers: DataLoader(Numbers(), 2, num_workers=workers),
}


@pytest.mark.filterwarnings("ignore:.*cannot be shared with worker processes")
def test_datasets_of_many_tensors_reach_workers_with_any_default_device():
    numbers = [torch.full((3,), float(k), device="cpu") for k in range(200)]
    torch.set_default_device("meta")
    try:
        with DataLoader(numbers, 50, num_workers=1, start_method="forkserver") as loader:
            first = [value for batch in loader for value in batch[:, 0].tolist()]
    finally:
        torch.set_default_device(None)
    assert first == list(range(200))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", BUILDS)
def test_batches_are_on_the_cpu_for_any_default_device(name, workers, jpeg_folder):
    with BUILDS[name](jpeg_folder, workers) as loader:
        batches = iter(loader)
        torch.set_default_device("meta")
        try:
            made = list(batches)
        finally:
            torch.set_default_device(None)
    found = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    assert len(made) >= 4
    assert found
    assert {tensor.device.type for tensor in found} == {"cpu"}
