"""Torchvision folders with a target_transform, of derived classes, and several as one dataset."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader, pil_loader

from feedline import DataLoader
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.compile.datasets import class_names, folder_fingerprint
from feedline.order.batch_spec import Item
from torchvision_folder import pixel_error

FIXED = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])
RANDOM = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])


def samples_of(dataset: Any) -> list[tuple[torch.Tensor, Any]]:
    """Samples of the recognised pipeline of a dataset."""
    pipeline = compile_dataset(dataset).pipeline
    assert pipeline is not None, compile_dataset(dataset).reasons
    assert len(pipeline) == len(dataset)
    return [pipeline.sample(Item(number, None, 7, 1.0)) for number in range(len(pipeline))]


def assert_same(dataset: Any) -> None:
    """Assert that the fused path returns the samples of a dataset without random steps."""
    for number, (ours, label) in enumerate(samples_of(dataset)):
        theirs, wanted = dataset[number]
        assert pixel_error(ours, theirs) * 255 <= 0.06
        assert label == wanted


def refusal(dataset: Any) -> str:
    recognition = compile_dataset(dataset)
    assert recognition.pipeline is None
    return recognition.reasons[0]


# ------------------------------------------------------------------- target_transform


def named(label: int) -> dict[str, Any]:
    assert type(label) is int
    return {"one hot": torch.eye(2)[label], "name": ["cats", "dogs"][label]}


def drawn(label: int) -> float:
    return label + random.random() + float(torch.rand(())) + float(np.random.rand())


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_with_target_transform_match_dataset(root: Path, workers: int) -> None:
    dataset = ImageFolder(root, FIXED, target_transform=named)
    with DataLoader(dataset, 3, num_workers=workers) as loader:
        explained = loader.explain()
        batches = list(loader)
    assert "sample engine" in explained
    assert "target_transform named" in explained
    assert "Your target_transform may return anything." in explained
    theirs = list(torch.utils.data.DataLoader(dataset, 3))
    assert len(batches) == len(theirs)
    for (images, targets), (wanted, wanted_targets) in zip(batches, theirs, strict=True):
        assert pixel_error(images, wanted) * 255 <= 0.06
        assert torch.equal(targets["one hot"], wanted_targets["one hot"])
        assert targets["name"] == wanted_targets["name"]


def test_a_target_transform_changes_no_pixel(root: Path) -> None:
    plain = samples_of(ImageFolder(root, RANDOM))
    turned = samples_of(ImageFolder(root, RANDOM, target_transform=float))
    for (ours, label), (other, target) in zip(plain, turned, strict=True):
        assert torch.equal(ours, other)
        assert (type(target), target) == (float, float(label))


def test_random_target_transform_is_determined_by_sample(root: Path) -> None:
    dataset = ImageFolder(root, RANDOM, target_transform=drawn)
    state = random.getstate(), torch.get_rng_state()
    first = [label for _, label in samples_of(dataset)]
    assert first == [label for _, label in samples_of(dataset)]
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    together = []
    for workers in (0, 2):
        with DataLoader(dataset, 2, num_workers=workers, seed=3) as loader:
            together.append(torch.cat([labels for _, labels in loader]))
    assert torch.equal(*together)
    assert len(set(together[0].tolist())) == len(dataset)


class Counting:
    """A target_transform with state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, label: int) -> int:
        self.calls += 1
        return self.calls


def test_target_transform_is_called_once_per_sample_in_order(root: Path) -> None:
    dataset = ImageFolder(root, FIXED, target_transform=Counting())
    with DataLoader(dataset, 3) as loader:
        assert torch.cat([labels for _, labels in loader]).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert dataset.target_transform.calls == 7


def fails_on_dogs(label: int) -> int:
    if label:
        raise KeyError("no dogs")
    return label


def test_exceptions_of_target_transform_are_unchanged_and_can_be_skipped(root: Path) -> None:
    dataset = ImageFolder(root, FIXED, target_transform=fails_on_dogs)
    with DataLoader(dataset, 7) as loader, pytest.raises(KeyError, match="no dogs"):
        next(iter(loader))
    with (
        DataLoader(dataset, 7, on_error="skip") as loader,
        pytest.warns(RuntimeWarning, match="fails_on_dogs"),
    ):
        assert [labels.tolist() for _, labels in loader] == [[0, 0, 0]]


def test_a_target_transform_that_is_set_later_is_called(root: Path) -> None:
    dataset = ImageFolder(root, FIXED)
    with DataLoader(dataset, 7) as loader:
        assert next(iter(loader))[1].dtype == torch.int64
        dataset.target_transform = float
        assert next(iter(loader))[1].dtype == torch.float64


# ------------------------------------------------------------------- derived classes


class Plain(ImageFolder):
    """A subclass that adds irrelevant attributes."""

    about = "a class attribute"

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, FIXED, **options)
        self.about = "shadowed"
        self.samples = self.samples[::-1]

    def find_classes(self, directory: str) -> tuple[list[str], dict[str, int]]:
        return ["dogs", "cats"], {"dogs": 0, "cats": 1}

    @property
    def number_of_classes(self) -> int:
        return len(self.classes)


class Naturalists(ImageFolder):
    """Like DeiT's INatDataset: does not call torchvision's constructor, and has no `root`."""

    def __init__(self, root: Path, loader: Any = default_loader) -> None:
        self.transform, self.target_transform, self.loader = FIXED, None, loader
        names = json.loads((Path(root) / "train.json").read_text())
        self.samples = [(os.path.join(root, name), len(name) % 3) for name in names]


def test_class_with_another_listing_is_recognised(root: Path) -> None:
    dataset = Plain(root)
    assert_same(dataset)
    assert {label for _, label in samples_of(dataset)} == {0, 1}


def test_a_class_without_a_root_is_recognised_and_may_move(root: Path, tmp_path: Path) -> None:
    moved = []
    for place in ("here", "there"):
        folder = tmp_path / place
        shutil.copytree(root, folder)
        names = ["cats/a.jpg", "dogs/small.png", "cats/b.png"]
        (folder / "train.json").write_text(json.dumps(names))
        moved.append(Naturalists(str(folder)))
    assert_same(moved[0])
    prints = [compile_dataset(dataset).pipeline.fingerprint() for dataset in moved]  # type: ignore[union-attr]
    assert prints[0] == prints[1] == folder_fingerprint(moved[0])
    assert folder_fingerprint(Subset(moved[0], [0])) != prints[0]


def test_imagenet_of_torchvision_is_recognised(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "val")
    wnids = {"cats": ("cat", "tabby"), "dogs": ("dog",)}
    torch.save((wnids, ["cats", "dogs"]), tmp_path / "meta.bin")
    dataset = datasets.ImageNet(str(tmp_path), "val", transform=FIXED)
    assert_same(dataset)
    assert class_names([dataset]) is None
    assert compile_dataset(dataset).pipeline.name(0) == str(tmp_path / "val/cats/a.jpg")  # type: ignore[union-attr]


class Paths:
    """A second base class with a relevant method."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]  # type: ignore[index]


def derived(*bases: type, **members: Any) -> type:
    return type("Derived", bases or (ImageFolder,), members)


OVERRIDDEN: dict[str, tuple[Any, str]] = {
    "a sample": (
        derived(__getitem__=lambda self, index: index),
        r"subclass .* overrides __getitem__",
    ),
    "a length": (derived(__len__=lambda self: 3), r"overrides __len__ \(Derived\.__len__\)"),
    "all attributes": (
        derived(__getattribute__=lambda self, name: object.__getattribute__(self, name)),
        "overrides __getattribute__",
    ),
    "other attributes": (derived(__getattr__=lambda self, name: 1), "overrides __getattr__"),
    "samples": (
        derived(samples=property(lambda self: [], lambda self, new: None)),
        "overrides samples",
    ),
    "the loader": (derived(loader=staticmethod(pil_loader)), "overrides loader"),
    "the transform": (
        derived(transform=property(lambda self: FIXED, lambda self, new: None)),
        "overrides transform",
    ),
    "whole batches": (derived(ImageFolder, Paths), r"overrides __getitems__ \(Paths\.__getit"),
    "from the side": (derived(derived(Paths), ImageFolder), r"\(Paths\.__getitems__\), which may"),
}


@pytest.mark.parametrize("case", OVERRIDDEN)
def test_class_with_overridden_methods_is_rejected(root: Path, case: str) -> None:
    kind, reason = OVERRIDDEN[case]
    assert re.search(reason, refusal(kind(root, FIXED)))


def test_class_without_required_attributes_is_rejected(root: Path) -> None:
    dataset = Plain(root)
    del dataset.target_transform
    assert refusal(dataset) == "This Plain has no target_transform."


# ------------------------------------------------------------------- several folders


def test_several_folders_are_one_dataset(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "more")
    first, second = ImageFolder(root, FIXED), Plain(str(tmp_path / "more"))
    parts = [Subset(first, [5, -1, 2]), second, first, ConcatDataset([second, Subset(first, [])])]
    assert_same(ConcatDataset(parts))
    assert_same(Subset(ConcatDataset(parts), [-1, 0, 12, 4, 4]))


def test_equal_transforms_need_not_be_identical(root: Path) -> None:
    again = v1.Compose([v1.Compose(FIXED.transforms[:2]), v1.ToTensor()])
    assert_same(ConcatDataset([ImageFolder(root, FIXED), ImageFolder(root, again)]))
    step = v1.RandomErasing(1.0)
    ours = [v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor(), step]) for _ in range(2)]
    dataset = ConcatDataset([ImageFolder(root, each) for each in ours])
    assert compile_dataset(dataset).pipeline is not None
    ours[1].transforms[2] = v1.RandomErasing(1.0)  # which may keep state
    assert "different transforms" in refusal(dataset)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"transform": RANDOM}, r"different transforms, Compose\(.*Resize.* and Compose\(.*Random"),
        ({"transform": None}, "has no transform"),
        ({"transform": FIXED, "target_transform": float}, "different target_transforms"),
        ({"transform": FIXED, "loader": open}, "The loader open is not torchvision's own"),
    ],
)
def test_different_parts_are_rejected(root: Path, other: dict[str, Any], reason: str) -> None:
    dataset = ConcatDataset([ImageFolder(root, FIXED), ImageFolder(root, **other)])
    assert re.search(reason, refusal(dataset))


class OwnConcat(ConcatDataset[Any]):
    pass


def test_other_concatenations_are_rejected(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ImageFolder(root, FIXED)
    assert refusal(OwnConcat([folder])).startswith("OwnConcat is not torchvision's")
    assert refusal(ConcatDataset([folder, [(1, 2)]])).startswith("list is not torchvision's")
    grown = ConcatDataset([folder, ImageFolder(root, FIXED)])
    grown.datasets[1].samples.append(folder.samples[0])
    assert "have changed their lengths" in refusal(grown)
    round_about: Any = ConcatDataset([folder])
    round_about.datasets[0] = round_about
    assert "The ConcatDataset is nested more than 100 levels deep" in refusal(round_about)
    monkeypatch.setattr(ConcatDataset, "__getitem__", lambda self, index: None)
    assert refusal(ConcatDataset([folder])).startswith("ConcatDataset is not torchvision's")


def test_the_fingerprint_of_several_folders_is_of_all_their_samples(root: Path) -> None:
    folder = ImageFolder(root, FIXED)
    whole = ConcatDataset([folder, folder])
    single = folder_fingerprint(folder)
    assert folder_fingerprint(ConcatDataset([folder])) == single is not None
    assert folder_fingerprint(whole) not in (single, None)
    assert folder_fingerprint(whole) == compile_dataset(whole).pipeline.fingerprint()  # type: ignore[union-attr]
    assert folder_fingerprint(Subset(whole, range(14))) == folder_fingerprint(whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_makes_rows_of_several_folders(root: Path, workers: int) -> None:
    dataset = ConcatDataset([ImageFolder(root, FIXED), Subset(ImageFolder(root, FIXED), [3, 4])])
    with DataLoader(dataset, 4, num_workers=workers) as loader:
        assert "image-row engine with a fused transform" in loader.explain()
        batches = list(loader)
    theirs = list(torch.utils.data.DataLoader(dataset, 4))
    for (images, labels), (wanted, wanted_labels) in zip(batches, theirs, strict=True):
        assert pixel_error(images, wanted) * 255 <= 0.06
        assert torch.equal(labels, wanted_labels)
