"""Batches and their draws depend on seed, epoch and position alone, for every kind of dataset."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, WeightedRandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

import feedline
from comparisons import same_everywhere
from feedline import DataLoader, ImageArray
from image_inputs import Pictures, own_step, random_pipeline
from own_sources import colours, policy, shards, views
from pair_inputs import Scenes, preset, write_pairs
from sets import Drawing, Sized
from slow import slow

FLOATS = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])


def negative(label):
    """A `target_transform`. It is called with seeded states, within those of the batch."""
    return -label


def drawing(samples):
    """A `collate_fn` that draws, as one that mixes does."""
    return float(torch.rand(())), random.random(), float(np.random.rand())


def noisy(images, labels, *, batch):
    """A `batch_transform` that draws from the batch's seed."""
    generator = torch.Generator().manual_seed(batch.batch_seed & (1 << 63) - 1)
    return images + torch.rand(images.shape, generator=generator), labels


def pixels():
    return ImageArray(
        np.random.default_rng(0).integers(0, 255, (20, 24, 24, 3), np.uint8), np.arange(20)
    )


def paths(root):
    return [path for path, _ in ImageFolder(root).samples]


SEEDED = {
    "own dataset": (lambda root, tmp: Drawing(), {}),
    "forkserver": (
        lambda root, tmp: Drawing(),
        {"start_method": "forkserver", "schedule": "ownx2"},
    ),
    "spawn": (lambda root, tmp: Drawing(), {"start_method": "spawn", "schedule": "ownx2"}),
    "sizes": (lambda root, tmp: Sized(), {"schedule": "8x1@4,12x1@6"}),
    "sampler": (lambda root, tmp: Drawing(), {"sampler": [3, 1, 2, 0, 5], "shuffle": None}),
    "rows": (lambda root, tmp: feedline.ImageFolder(root), {"schedule": "16x1,12x1"}),
    "rows on a device": (
        lambda root, tmp: pixels(),
        {"schedule": "8x1,16x1", "device": "cpu", "batch_transform": noisy},
    ),
    "repeated sample": (
        lambda root, tmp: pixels(),
        {"sampler": [2] * 9, "image_size": 16, "shuffle": None},
    ),
    "windows": (lambda root, tmp: list(range(600)), {"shuffle": "window:256", "batch_size": 90}),
    "weights": (lambda root, tmp: pixels(), {"weights": np.arange(20) + 0.5, "image_size": 8}),
    "weights and a schedule": (
        lambda root, tmp: list(range(20)),
        {"weights": torch.arange(20) + 0.5, "schedule": "ownx2", "seed": None},
    ),
    "fused pipeline": (lambda root, tmp: ImageFolder(root, colours()), {}),
    "drawing collate_fn": (
        lambda root, tmp: ImageFolder(root, FLOATS, target_transform=negative),
        {"collate_fn": drawing},
    ),
    "views": (lambda root, tmp: ImageFolder(root, views()), {}),
    "pipeline per size": (
        lambda root, tmp: ImageFolder(root, feedline.per_size(colours)),
        {"schedule": "16x1,24x1"},
    ),
    "unfused source": (lambda root, tmp: shards(root, tmp, policy()), {}),
    "compiled transform": (
        lambda root, tmp: Pictures(paths(root), feedline.compile(random_pipeline(32, own_step))),
        {},
    ),
    "pairs": (lambda root, tmp: Scenes(write_pairs(tmp), feedline.pair(preset())), {}),
}


SLOW = ("spawn",)


@pytest.mark.parametrize("kind", [*(each for each in SEEDED if each not in SLOW), *slow(*SLOW)])
def test_a_seed_determines_batches_and_draws(kind, jpeg_folder, tmp_path):
    make, chosen = SEEDED[kind]
    data = make(jpeg_folder, tmp_path)
    options = {"batch_size": 4, "seed": 5, "shuffle": "weights" not in chosen}
    options |= chosen
    if options["shuffle"] is False:
        del options["shuffle"]
    first, second = same_everywhere(lambda count: DataLoader(data, num_workers=count, **options))
    assert len({repr(batch) for batch in first + second}) == len(first) + len(second)


@pytest.mark.parametrize("sampler", [None, list(range(23))])
def test_draws_depend_on_the_seed_and_on_the_epoch_in_any_order(sampler):
    found = set()
    for seed in (3, 4):
        with DataLoader(Drawing(), 23, sampler=sampler, seed=seed) as loader:
            found |= {repr(batch[1].tolist()) for _ in range(2) for batch in loader}
    assert len(found) == 4


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_sizes_of_a_schedule_and_those_that_are_set_are_exact_to_the_batch(workers):
    def read(change):
        options = {"seed": 1, "schedule": "8x1@4,12x2@6", "num_workers": workers}
        sizes, draws = [], []
        with DataLoader(Sized(), **options) as loader:
            for _ in range(3):
                for step, (size, sample) in enumerate(loader):
                    sizes.append(size.tolist())
                    draws.append(repr(sample))
                    if change and loader.epoch == 0 and step in (0, 3):
                        loader.set_image_size(20 if step == 0 else None)
        return sizes, draws

    sizes, draws = read(change=False)
    assert sizes == [[8] * 4] * 5 + [[8] * 3] + ([[12] * 6] * 3 + [[12] * 5]) * 2
    changed, same_draws = read(change=True)
    assert changed == [sizes[0], *[[20] * 4] * 3, *sizes[4:]]
    assert same_draws == draws


def test_a_state_determines_the_rest_of_an_epoch_that_a_sampler_draws(jpeg_folder):
    data = Subset(ImageFolder(jpeg_folder, colours()), range(11, 2, -1))
    weights = WeightedRandomSampler([1.0] * len(data), 30)

    def make(count):
        return DataLoader(data, 4, sampler=weights, num_workers=count)

    same_everywhere(make, seed=False)
