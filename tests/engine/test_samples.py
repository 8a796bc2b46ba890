"""Samples at the requested size and strength: rejected if unused, or made like rows."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

import feedline
from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.order.schedule import Phase
from sets import Drawing, Made, Sized, plain
from torchvision_folder import write_images

WEAK = [Phase(image_size=8, epochs=1, strength=0.5)]


class Weakened(Sized):
    def __getitem__(self, index):
        return super().__getitem__(index), feedline.augmentation_strength()


# No request


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("options", [{"image_size": 8}, {"schedule": "8x2"}])
@pytest.mark.parametrize("data", [Drawing(), TensorDataset(torch.arange(23))])
def test_unused_size_raises(data, workers, options):
    said = f"nothing in {type(data).__name__} asked for the size: .* 8 px.*per_size"
    with DataLoader(data, 4, seed=1, num_workers=workers, **options) as loader:
        for _ in range(2):
            batches = iter(loader)
            for _ in range(2):
                with pytest.raises(UsageError, match=said) as caught:
                    next(batches)
                # What it says is all that its reader needs; where it was caught is its cause.
                assert "Traceback" not in str(caught.value)
                cause = str(caught.value.__cause__)
                assert not workers or "Original Traceback" in cause


def test_size_can_be_requested_by_sample_or_collate_fn():
    some = Made(8, lambda index: feedline.image_size() if index % 4 == 0 else 8)
    assert len(list(DataLoader(some, 4, image_size=8))) == 2
    made = DataLoader(Drawing(), 4, image_size=8, collate_fn=lambda _: feedline.image_size())
    assert next(iter(made)) == 8
    assert len(list(DataLoader(Drawing(), 4))) == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_unused_strength_raises(workers):
    with DataLoader(Sized(), 4, seed=1, schedule=WEAK, num_workers=workers) as loader:
        batches = iter(loader)
        with pytest.raises(UsageError, match=r"strength 0\.5, but nothing in Sized asked"):
            next(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_strength_reaches_the_dataset_and_collate_fn(workers):
    with DataLoader(Weakened(), 4, seed=1, schedule=WEAK, num_workers=workers) as loader:
        assert next(iter(loader))[1].tolist() == [0.5] * 4
    options = {"schedule": WEAK, "collate_fn": lambda _: feedline.augmentation_strength()}
    with DataLoader(Sized(), 4, seed=1, num_workers=workers, **options) as loader:
        assert next(iter(loader)) == 0.5


# Made in place of the dataset


@pytest.fixture
def folder(tmp_path):
    steps = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*steps, transforms.ToTensor()])
    return ImageFolder(write_images(tmp_path), transform)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"seed": 3, "image_size": 16},
        {"sampler": [5, 2, 2, -1, 5]},
        {"schedule": WEAK},
    ],
    ids=repr,
)
def test_samples_have_the_pixels_of_rows(folder, options, workers):
    batches = []
    for collate_fn, engine in (
        (None, "image-row engine"),
        (partial(default_collate), "sample engine"),
    ):
        torch.manual_seed(1)
        with DataLoader(folder, 5, collate_fn=collate_fn, num_workers=workers, **options) as loader:
            assert engine in loader.explain()
            batches.append([plain(batch) for batch in loader])
    assert batches[0] == batches[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_other_keys_than_whole_numbers_go_to_the_dataset(folder, workers):
    keys = [1, np.int16(2), torch.tensor(3), True, torch.tensor([4]), -1]
    options = {"collate_fn": list, "num_workers": workers}
    with DataLoader(folder, 6, sampler=keys, **options) as loader:
        assert "sample engine" in loader.explain()
        ((*labels,),) = ([label for _, label in batch] for batch in loader)
        assert labels == [folder.targets[key] for key in (1, 2, 3, 1, 4, -1)]
    for key in ("four", 2.5, (6,)):
        with (
            DataLoader(folder, None, sampler=[key], **options) as loader,
            pytest.raises(TypeError, match="list indices") as caught,
        ):
            list(loader)
        said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
        assert f"index {key!r}" in said
