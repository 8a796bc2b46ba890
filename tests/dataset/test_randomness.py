"""What random transforms draw: other numbers for every batch, rank, epoch and place."""

from __future__ import annotations

import random
from operator import ne
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, DistributedSampler, get_worker_info
from torchvision import transforms
from torchvision.datasets import ImageFolder

from feedline import ImageArray
from feedline.loader import DataLoader
from feedline.randomness import fingerprint, seeded


class Random(Dataset[Any]):
    """Gives a number of each generator."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, float(torch.rand(())), random.random(), float(np.random.rand())


class Closed(Dataset[Any]):
    """Does not pickle, so that each epoch has new workers; gives a draw and the worker's seed."""

    def __init__(self) -> None:
        self.function = lambda value: value

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        assert info is not None
        return int(np.random.randint(1 << 30)), info.seed


def seed_worker(worker: int) -> None:
    """As PyTorch's notes on reproducibility have it."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"seed": 0}, {}, {"seed": 0, "sampler": "distributed"}])
def test_no_two_batches_have_the_same_draws_on_any_rank(
    options: dict[str, Any], workers: int
) -> None:
    torch.manual_seed(0)
    seen: list[float] = []
    for rank in range(2):
        chosen = dict(options)
        if "sampler" in chosen:
            chosen["sampler"] = DistributedSampler(Random(), num_replicas=2, rank=rank)
        elif "seed" in chosen:
            chosen |= {"rank": rank, "world_size": 2}
        with DataLoader(Random(), 2, num_workers=workers, **chosen) as loader:
            for _ in range(2):
                seen += [float(draw) for _, *draws in loader for each in draws for draw in each]
    assert len(set(seen)) == len(seen)


def test_workers_that_seed_themselves_have_torchs_draws_in_every_epoch() -> None:
    seen = []
    for kind in (TorchDataLoader, DataLoader):
        options: dict[str, Any] = {"num_workers": 1, "worker_init_fn": seed_worker}
        loader = kind(Closed(), 3, generator=torch.Generator().manual_seed(0), **options)
        seen.append([[part.tolist() for part in batch] for _ in range(3) for batch in loader])
    assert seen[0] == seen[1]
    assert len({str(batch) for batch in seen[1]}) == 3


def test_a_sample_that_comes_twice_is_cropped_twice() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 32, 32, 3), dtype=np.uint8)
    options: dict[str, Any] = {"sampler": [2] * 8, "image_size": 16, "seed": 3}
    found = []
    for workers in (0, 2):
        with DataLoader(
            ImageArray(pixels, np.arange(8)), 4, num_workers=workers, **options
        ) as loader:
            found.append(torch.cat([images for images, _ in loader]))
    assert torch.equal(found[0], found[1])
    assert len({image.numpy().tobytes() for image in found[0]}) == 8


def test_within_one_another_each_gives_back_what_it_found() -> None:
    before = fingerprint()
    with seeded(1):
        within = fingerprint()
        with seeded(2):
            assert all(map(ne, fingerprint(), within))
            with seeded(3):
                np.random.rand()
        assert fingerprint() == within
    assert fingerprint() == before


def drawing(samples: list[Any]) -> tuple[float, float, float]:
    """A `collate_fn` that draws, as one that mixes does."""
    return float(torch.rand(())), random.random(), float(np.random.rand())


def negative(label: int) -> int:
    """A `target_transform`."""
    return -label


def test_a_collate_fn_draws_the_same_without_workers(jpeg_folder: Path) -> None:
    """A `target_transform` is called with seeded states, within those of the batch."""
    steps = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
    data = ImageFolder(jpeg_folder, steps, target_transform=negative)
    found = []
    for workers in (0, 2):
        with DataLoader(data, 4, seed=1, collate_fn=drawing, num_workers=workers) as loader:
            found.append(list(loader))
    assert found[0] == found[1]
    assert len(set(sum(found[0], ()))) == 9
