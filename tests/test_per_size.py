"""`feedline.per_size` on a torchvision folder: a recognised pipeline for each image size."""

import copy
import logging
import random
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import feedline
from feedline import DataLoader
from feedline.errors import UsageError
from own_sources import assert_same, flat
from slow import slow
from torchvision_folder import pixel_error, write_images

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SCHEDULE = "16x1,24x1"
SIZES = (16, 24)


def train(size):
    """The transform of an older script, created for each size."""
    crop = [v1.RandomResizedCrop(size), v1.RandomHorizontalFlip()]
    return v1.Compose([*crop, v1.ToTensor(), v1.Normalize(MEAN, STD)])


def evaluate(size):
    whole = [v1.Resize(int(size * 1.14)), v1.CenterCrop(size)]
    return v1.Compose([*whole, v1.ToTensor(), v1.Normalize(MEAN, STD)])


def stronger(size):
    """A transform whose parameters all change with the size, with the same output."""
    erased = [v2.RandomErasing(p=1.0)] if size > 20 else []
    crop = v2.RandomResizedCrop(size, scale=(8 / size, 1.0))
    values = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([crop, v2.ColorJitter(size / 100), *values, *erased])


def values_of_its_own(size):
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor(), v1.Normalize([size / 100] * 3, STD)])


def two_views(size):
    return feedline.views(train(size), train(size // 2))


class Shifted:
    def __call__(self, image):
        return image + feedline.image_size()


def with_own_step(size):
    return v1.Compose([v1.RandomResizedCrop(size), v1.ToTensor(), Shifted()])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


def folder(root, make, **options):
    return ImageFolder(str(root), feedline.per_size(make, **options))


def loader(dataset, **options):
    return DataLoader(dataset, 3, **{"schedule": SCHEDULE, "num_workers": 1, **options})


def engine(made):
    (line,) = (line for line in made.explain().splitlines() if line.startswith("engine"))
    return line.split()[1]


def compiled(made):
    return "\nfused " in made.explain()


@pytest.mark.parametrize(
    ("make", "workers"),
    [
        *((make, 0) for make in (train, evaluate, stronger, with_own_step, two_views)),
        (two_views, 2),
        *slow((train, 2), (evaluate, 2), (stronger, 2), (with_own_step, 2)),
    ],
)
def test_batches_equal_those_of_pipeline_for_their_size(root, make, workers):
    with loader(folder(root, make), num_workers=workers) as ours:
        assert compiled(ours)
        for epoch, size in enumerate(SIZES):
            alone = ImageFolder(str(root), make(size))
            with loader(alone, schedule=f"{size}x2", num_workers=workers) as one:
                one.set_epoch(epoch)
                for batch, other in zip(ours, one, strict=True):
                    assert next(flat(batch)).shape[-1] == size
                    assert_same(batch, other)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_those_of_transform_for_that_size(root, size):
    """int(1.14 * size) is no fixed ratio, so one pipeline cannot be scaled to all sizes."""
    data = folder(root, evaluate)
    with loader(data, schedule=None, image_size=size) as ours:
        found = torch.cat([images for images, _ in ours])
    wanted = torch.stack([image for image, _ in ImageFolder(str(root), evaluate(size))])
    scale = 255 * np.mean(STD)
    assert pixel_error(found * scale, wanted * scale) < 0.02
    assert (found - wanted).abs().max() * scale < 2


def test_a_pipeline_within_a_compose_and_parts_of_folders_are_made_for_each_size(root):
    crop = v1.Compose([feedline.per_size(v1.RandomResizedCrop), v1.ToTensor()])
    whole = ImageFolder(str(root), crop)
    # The same transform, by another `per_size`.
    again = ImageFolder(
        str(root), v1.Compose([feedline.per_size(v1.RandomResizedCrop), v1.ToTensor()])
    )
    for data in (Subset(whole, range(5)), ConcatDataset([whole, again])):
        with loader(data) as ours:
            assert compiled(ours)
            assert [next(iter(ours))[0].shape[-1] for _ in SIZES] == list(SIZES)
    other = ImageFolder(str(root), feedline.per_size(evaluate))
    with loader(ConcatDataset([whole, other])) as ours:
        assert engine(ours) == "dataset"
        assert "have different transforms" in ours.explain()


def test_size_set_later_has_its_own_pipeline(root):
    with loader(folder(root, evaluate)) as ours:
        batches = iter(ours)
        next(batches)
        ours.set_image_size(20)
        got = next(batches)
    with loader(ImageFolder(str(root), evaluate(20)), schedule="20x1") as alone:
        batches = iter(alone)
        next(batches)
        assert_same(got, next(batches))


def test_size_that_fails_is_rejected_when_set(root):
    def make(size):
        return train({16: 16, 24: 24}[size])

    with loader(folder(root, make)) as ours:
        batches = iter(ours)
        next(batches)
        for size, said in ((20, "KeyError"), (23, "KeyError")):
            with pytest.raises(UsageError, match=said):
                ours.set_image_size(size)
        assert next(batches)[0].shape[-1] == 16


def test_copies_of_a_cache_are_read(root, tmp_path):
    data, cache = folder(root, evaluate), tmp_path / "cache"
    with loader(data, cache=cache) as ours:
        assert "filled with copies of 64 px" in ours.explain()
    feedline.build_cache(str(root), cache, sizes=(64,), workers=1)
    alone = ImageFolder(str(root), evaluate(16))
    with loader(data, cache=cache) as ours, loader(alone, schedule="16x1", cache=cache) as one:
        assert "copies" in ours.explain()
        assert_same(list(ours), list(one))
        assert [images.shape[-1] for images, _ in ours] == [24, 24, 24]


@pytest.mark.parametrize("make", [train, stronger, values_of_its_own])
def test_batches_for_a_device_are_the_same(root, make):
    data = folder(root, make)
    with loader(data, device="cpu") as ours, loader(data) as plain:
        for _ in SIZES:
            assert_same(list(ours), list(plain))


def test_default_size_is_used_without_image_size(root):
    with loader(folder(root, evaluate, default=16), schedule=None) as ours:
        assert compiled(ours)
        assert next(iter(ours))[0].shape[-1] == 16
    with loader(folder(root, evaluate), schedule=None) as ours:
        assert not compiled(ours)
        with pytest.raises(UsageError, match="no size is known"):
            next(iter(ours))


def test_function_is_called_once_per_size_and_draws_nothing(root):
    calls = []

    def make(size):
        calls.append(size)
        return v1.Compose([v1.RandomResizedCrop(size, (random.random() / 2, 1.0)), v1.ToTensor()])

    random.seed(1)
    expected = random.Random(1).random()
    data = folder(root, make)
    with loader(data, num_workers=0) as ours, loader(data, num_workers=2) as other:
        for _ in SIZES:
            assert_same(list(ours), list(other))
        ours.explain()
    assert sorted(calls) == list(SIZES)
    assert random.random() == expected


@pytest.mark.slow
def test_spawned_workers_match(root):
    data = folder(root, stronger)
    with loader(data) as ours, loader(data, start_method="forkserver") as other:
        assert_same(list(ours), list(other))
        with copy.copy(other) as third:
            assert_same(next(iter(third)), next(iter(loader(data, num_workers=0))))


# What is not compiled runs unchanged


def raises(size, at):
    if size == at:
        raise ArithmeticError("no such size")
    return train(size)


def own(size, image):
    return v1.functional.to_tensor(image.resize((size, size)))


def half(size):
    return train(size // 2)


def weaker(size):
    scale = 1 - feedline.augmentation_strength()
    return v1.Compose([v1.RandomResizedCrop(size, (0.1 + scale / 2, 1.0)), v1.ToTensor()])


@pytest.mark.parametrize(
    ("make", "why", "shown"),
    [
        (lambda size: partial(own, size), "own", 16),
        (half, "At 16 px the transform makes images of 8 px", 8),
        (partial(raises, at=24), "ArithmeticError: no such size at 24 px", 16),
        (weaker, "augmentation_strength", 16),
    ],
)
def test_function_not_recognised_at_all_sizes_runs_unchanged(root, make, why, shown):
    with loader(folder(root, make)) as ours:
        assert engine(ours) == "dataset"
        assert why in ours.explain()
        images = torch.cat([images for images, _ in ours])
        assert images.shape[-1] == shown
    for option in ({"cache": root / "none"}, {"device": "cpu"}):
        with pytest.raises(UsageError, match=re.escape(why)):
            iter(loader(folder(root, make), **option))


class Photos(Dataset[Any]):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.transform(torch.zeros(3, 40, 40))


def test_user_defined_dataset_uses_sample_engine():
    calls = []

    def make(size):
        calls.append(size)
        return v2.Resize((size, size))

    data = Photos(feedline.per_size(make))
    with loader(data, num_workers=1) as ours:
        assert engine(ours) == "dataset"
        assert [next(iter(ours)).shape[-1] for _ in SIZES] == list(SIZES)
    assert calls == []  # but in the worker


# Warnings about uncompiled pipelines with a schedule


def opened(path):
    return Image.open(path).convert("RGB")


class WarnedFolder(ImageFolder):
    """Each warning is logged once in a process, and names the class."""


def test_one_warning_explains_unfused_folder_with_schedule(root, caplog):
    own_loader = WarnedFolder(str(root), v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]), None)
    own_loader.loader = opened
    half_size = WarnedFolder(str(root), feedline.per_size(half))
    with caplog.at_level(logging.WARNING, "feedline"):
        for data, why in ((half_size, "8 px"), (Subset(own_loader, [0, 1]), "opened")):
            with loader(data, num_workers=0) as ours:
                ours.explain()
                data.transform = None
                ours.explain()
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert why in caplog.text
            caplog.clear()
        # No size is requested, or none can be used.
        with loader(folder(root, half), schedule=None, image_size=16, num_workers=0) as ours:
            ours.explain()
        with loader(folder(root, train), num_workers=0) as ours:
            ours.explain()
        with loader(Photos(v2.Resize((16, 16))), num_workers=0) as ours:
            ours.explain()
    assert caplog.records == []


def test_loader_reports_accepted_settings(root):
    for data, uncompiled, accepts in (
        (folder(root, train), False, ("cache", "device")),
        (folder(root, two_views), False, ("cache",)),
        (folder(root, half), True, ()),
        (Photos(feedline.per_size(lambda size: v2.Resize((size, size)))), False, ()),
    ):
        with loader(data, num_workers=0) as ours:
            next(iter(ours))
            (said,) = ours.run.loaders
            assert (said.uncompiled, said.accepts) == (uncompiled, accepts)
            assert bool(said.because) == (accepts != ("cache", "device"))
