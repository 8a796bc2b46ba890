"""The warning about a torchvision or timm pipeline on images that runs unfused in workers."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

import feedline
from torchvision_folder import write_images

CROP = [T.RandomResizedCrop(16), T.ToTensor()]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def messages():
    """Warnings so far."""
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("feedline")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


class Photos(Dataset[Any]):
    """A dataset that opens its images. Each test has a subclass, since warnings are logged once."""

    def __init__(self, root, transform):
        self.paths = sorted(root.rglob("*.jpg"))
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB"))


class InMemory(Dataset[Any]):
    def __init__(self, transform):
        self.data = np.zeros((400, 32, 32, 3), np.uint8)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.data[index]))


def brighten(image):
    return image.point(lambda value: min(255, 2 * value))


class Preset:
    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __call__(self, image):
        return self.pipeline(image)


def explain(dataset, **options):
    """Description of a loader, for which its engine is chosen as for an iteration."""
    with feedline.DataLoader(dataset, 2, **{"num_workers": 1, **options}) as loader:
        return loader.explain()


def test_a_dataset_that_opens_images_is_told_once_how_to_fuse_its_pipeline(root, messages):
    class OwnPhotos(Photos):
        pass

    data = OwnPhotos(root, T.Compose(CROP))
    explain(data, num_workers=0)
    assert messages == []
    for _ in range(2):
        text = explain(data)
        explain(OwnPhotos(root, T.Compose(CROP)))
    assert len(messages) == 1
    for description in (text, messages[0]):
        assert "feedline.lazy_images()" in description
        assert "feedline.compile" in description
    assert "OwnPhotos" in messages[0]


def test_a_reason_is_given_if_a_pipeline_has_no_fused_form(root, messages):
    class OwnFolder(ImageFolder):
        pass

    class BrightPhotos(Photos):
        pass

    pipeline = T.Compose([brighten, *CROP])
    for data in OwnFolder(str(root), pipeline), BrightPhotos(root, pipeline):
        explain(data)
        assert "brighten" in messages[-1]
        assert type(data).__name__ in messages[-1]
    assert len(messages) == 2


def test_nothing_is_said_if_nothing_is_to_be_gained(root, messages):
    pipeline = T.Compose(CROP)
    assert "because" not in explain(ImageFolder(str(root), pipeline))
    for transform in Preset(pipeline), feedline.compile(Preset(pipeline)):
        nested = explain(ImageFolder(str(root), transform))
        assert "fused       RandomResizedCrop" in nested
        assert "unchanged" not in nested
        assert "fix " not in nested
    explain(Photos(root, feedline.compile(pipeline)))
    explain(Photos(root, T.ToTensor()))
    explain(Photos(root, brighten))
    explain(ImageFolder(str(root), brighten))
    explain(InMemory(pipeline))
    explain(torch.utils.data.TensorDataset(torch.arange(4)))
    assert messages == []


@pytest.mark.parametrize(("rank", "count"), [("0", 1), ("1", 0)])
def test_only_rank_0_warns(rank, count, root, messages, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = type(f"PhotosOfRank{rank}", (Photos,), {})(root, T.Compose(CROP))
    explain(data)
    assert len(messages) == count


def test_images_that_stay_undecoded_are_fused(root, messages):
    class LazyPhotos(Photos):
        pass

    with feedline.lazy_images():
        assert "fused       dataset.transform: RandomResizedCrop" in explain(
            LazyPhotos(root, T.Compose(CROP))
        )
    assert messages == []
