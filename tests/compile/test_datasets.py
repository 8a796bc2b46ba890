"""Datasets that are compiled, with the samples they have themselves, and those that are not."""

import os
import random
import re
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import default_loader, pil_loader

from feedline import DataLoader
from feedline.images.compile.datasets import class_names, folder_fingerprint
from feedline.order.batch_spec import Item
from torchvision_folder import (
    Strange,
    image,
    item_row,
    pipeline_of,
    pixel_error,
    refusal,
    write_images,
)

FIXED = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])
RANDOM = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])


@pytest.fixture
def root(tmp_path):
    """A folder that a test may change."""
    return write_images(tmp_path / "images")


# ------------------------------------------------------------------- the dataset's own samples


class Plain(ImageFolder):
    """A subclass that adds irrelevant attributes."""

    about = "a class attribute"

    def __init__(self, root, **options):
        super().__init__(root, FIXED, **options)
        self.about = "shadowed"
        self.samples = self.samples[::-1]

    def find_classes(self, directory):
        return ["dogs", "cats"], {"dogs": 0, "cats": 1}

    @property
    def number_of_classes(self):
        return len(self.classes)


class Naturalists(ImageFolder):
    """Like DeiT's INatDataset: does not call torchvision's constructor, and has no `root`."""

    def __init__(self, root, loader=default_loader):
        self.transform, self.target_transform, self.loader = FIXED, None, loader
        names = ["cats/a.jpg", "dogs/small.png", "cats/b.png"]
        self.samples = [(os.path.join(root, name), len(name) % 3) for name in names]


def folder(root, *, of=lambda samples: samples):
    """torchvision's folder with other samples."""
    dataset = ImageFolder(str(root), FIXED)
    dataset.samples = of(dataset.samples)
    return dataset


def imagenet(root):
    shutil.copytree(root, root.parent / "net" / "val")
    wnids = {"cats": ("cat", "tabby"), "dogs": ("dog",)}
    torch.save((wnids, ["cats", "dogs"]), root.parent / "net" / "meta.bin")
    return datasets.ImageNet(str(root.parent / "net"), "val", transform=FIXED)


def outside_the_folder(root):
    image(9, 50, 60).save(root.parent / "other.png")
    return folder(root, of=lambda samples: [(Path("other.png"), 5), samples[0], (b"other.png", 6)])


def without_classes(root):
    dataset = folder(root, of=lambda them: [(path, -k) for k, (path, _) in enumerate(them)])
    dataset.classes = dataset.class_to_idx = dataset.targets = None
    return dataset


def only_pillow_reads_them(root):
    # An end marker too early: Pillow fills up with grey.
    data = (root / "cats/a.jpg").read_bytes()
    (root / "cats/a.jpg").write_bytes(data[: len(data) // 2] + b"\xff\xd9")
    image(5, 60, 50).save(root / "cats" / "b.png", "TGA")  # not detectable by its first bytes
    return folder(root)


def other_extensions(root):
    endings = (".gif", ".jp2", ".tga", ".dds")
    for number, ending in enumerate(endings):
        image(number, 60, 50).save(root / ("cats", "dogs")[number % 2] / f"{number}{ending}")
    return DatasetFolder(str(root), pil_loader, endings, FIXED)


def several(root):
    shutil.copytree(root, root.parent / "more")
    first, second = folder(root), Plain(str(root.parent / "more"))
    return [Subset(first, [5, -1, 2]), second, first, ConcatDataset([second, Subset(first, [])])]


def equal_transforms(root):
    again = v1.Compose([v1.Compose(FIXED.transforms[:2]), v1.ToTensor()])
    return ConcatDataset([folder(root), ImageFolder(root, again)])


SAME = {
    "filtered and relabelled": lambda root: folder(
        root, of=lambda them: [(path, label + 40) for path, label in them if "png" in path][::-1]
    ),
    **{
        f"subset by {name}": lambda root, indices=indices: Subset(
            folder(root, of=lambda samples: samples * 50), indices
        )
        for name, indices in {
            "list": [3, 0, 3],
            "range": range(6, -1, -2),
            "nothing": [],
            "array": np.array([2, 5]),
            "tensor": torch.tensor([2, 5]),
            "signed bytes": np.array([-128], np.int8),
        }.items()
    },
    "subset of subsets": lambda root: Subset(
        Subset(Subset(folder(root), [6, 4, 2, 0, 1]), [-1, 0, 3]), [2, 1, 0, 0]
    ),
    "another listing": Plain,
    "without a root": lambda root: Naturalists(str(root)),
    "ImageNet": imagenet,
    "outside the folder": outside_the_folder,
    "without classes": without_classes,
    "only Pillow reads them": only_pillow_reads_them,
    "other extensions": other_extensions,
    "several": lambda root: ConcatDataset(several(root)),
    "part of several": lambda root: Subset(ConcatDataset(several(root)), [-1, 0, 12, 4, 4]),
    "several with equal transforms": equal_transforms,
}


@pytest.mark.parametrize("case", SAME)
def test_compiled_dataset_has_its_own_samples(root, monkeypatch, case):
    monkeypatch.chdir(root.parent)
    dataset = plain = SAME[case](root)
    if isinstance(dataset, Subset):  # torch itself cannot index with each kind of number
        plain = Subset(dataset.dataset, list(map(int, dataset.indices)))
    pipeline = pipeline_of(dataset)
    assert len(pipeline) == len(plain)
    for number in range(len(plain)):
        theirs, wanted = plain[number]
        ours, label = pipeline.sample(Item(number, None, 7, 1.0))
        row, row_label = item_row(pipeline, number)
        assert label == row_label == wanted
        assert pixel_error(ours, theirs) * 255 <= 0.06
        assert np.array_equal(row, ours)
    assert pipeline.targets.dtype == np.int64
    assert pipeline.targets.tolist() == [plain[number][1] for number in range(len(plain))]


def test_samples_have_the_names_of_their_files(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    kept = folder(root, of=lambda samples: samples[::-2])
    names = [path for path, _ in kept.samples]
    assert [pipeline_of(kept).name(sample) for sample in range(len(kept))] == names
    outside = pipeline_of(outside_the_folder(root))
    assert outside.name(2) == str(root.parent / "other.png")
    net = imagenet(root)
    assert pipeline_of(net).name(0) == str(root.parent / "net/val/cats/a.jpg")
    assert class_names([net]) is None


def test_the_fingerprint_is_of_samples_labels_and_their_order(root):
    class Own(ImageFolder):
        def __getitem__(self, index):
            return index

    plain = folder(root)
    moved = write_images(root.parent / "moved")
    expected = pipeline_of(plain).fingerprint()
    for dataset in (
        *(plain, ImageFolder(f"{root}/", RANDOM), ImageFolder(moved, RANDOM)),
        *(Subset(plain, range(7)), ConcatDataset([plain])),
    ):
        assert folder_fingerprint(dataset) == pipeline_of(dataset).fingerprint() == expected
    # Also of datasets that are not compiled.
    for dataset in (ImageFolder(root), ImageFolder(root, len, loader=len), Own(str(root))):
        assert folder_fingerprint(dataset) == expected
    whole = ConcatDataset([plain, plain])
    assert folder_fingerprint(Subset(whole, range(14))) == folder_fingerprint(whole)
    others = [
        plain,
        whole,
        Subset(plain, [4, -1]),
        *(
            folder(root, of=change)
            for change in (
                lambda samples: samples[1:],
                lambda samples: [samples[1], samples[0], *samples[2:]],
                lambda samples: [(samples[0][0], 1), *samples[1:]],
                lambda samples: [*samples, samples[-1]],
                lambda samples: [(samples[0][0] + "x", 0), *samples[1:]],
                lambda samples: [("/other/a.png", 1), *samples],
                lambda samples: [],
            )
        ),
    ]
    prints = [folder_fingerprint(dataset) for dataset in others]
    assert prints == [pipeline_of(dataset).fingerprint() for dataset in others]
    assert len(set(prints)) == len(others)
    halves = folder(root, of=lambda samples: [("a", 0.5)])
    for other in (halves, Subset([1, 2], [0]), [], None, ImageFolder, Subset(plain, [9])):
        assert folder_fingerprint(other) is None
    rootless = folder_fingerprint(Naturalists(str(root)))  # of a class without a root
    assert rootless == folder_fingerprint(Naturalists(str(moved)))
    assert rootless != folder_fingerprint(Subset(Naturalists(str(root)), [0]))


@pytest.mark.parametrize("form", [str, Path])
def test_relative_paths_are_found_from_elsewhere(root, monkeypatch, form):
    monkeypatch.chdir(root.parent)
    dataset = ImageFolder(form("images"), FIXED)
    pipeline, expected = pipeline_of(dataset), [dataset[k][0] for k in range(7)]
    monkeypatch.chdir("/")
    assert pipeline.name(0) == str(root / "cats/a.jpg")
    for sample in range(7):
        assert pixel_error(item_row(pipeline, sample)[0], expected[sample]) * 255 <= 0.06


def test_a_loader_makes_rows_of_several_folders(root):
    dataset = ConcatDataset([folder(root), Subset(folder(root), [3, 4])])
    with DataLoader(dataset, 4, num_workers=2) as loader:
        assert "image-row engine with a fused transform" in loader.explain()
        batches = list(loader)
    theirs = list(torch.utils.data.DataLoader(dataset, 4))
    for (images, labels), (wanted, wanted_labels) in zip(batches, theirs, strict=True):
        assert pixel_error(images, wanted) * 255 <= 0.06
        assert torch.equal(labels, wanted_labels)


# ------------------------------------------------------------------- target_transform


def named(label):
    assert type(label) is int
    return {"one hot": torch.eye(2)[label], "name": ["cats", "dogs"][label]}


def drawn(label):
    return label + random.random() + float(torch.rand(())) + float(np.random.rand())


def samples_of(dataset):
    pipeline = pipeline_of(dataset)
    return [pipeline.sample(Item(number, None, 7, 1.0)) for number in range(len(pipeline))]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_with_target_transform_match_dataset(root, workers):
    dataset = ImageFolder(root, FIXED, target_transform=named)
    with DataLoader(dataset, 3, num_workers=workers) as loader:
        explained = loader.explain()
        batches = list(loader)
    assert "sample engine" in explained
    assert "target_transform named" in explained
    assert "Your target_transform may return anything." in explained
    theirs = list(torch.utils.data.DataLoader(dataset, 3))
    for (images, targets), (wanted, wanted_targets) in zip(batches, theirs, strict=True):
        assert pixel_error(images, wanted) * 255 <= 0.06
        assert torch.equal(targets["one hot"], wanted_targets["one hot"])
        assert targets["name"] == wanted_targets["name"]


def test_random_target_transform_is_determined_by_sample(root):
    dataset = ImageFolder(root, RANDOM, target_transform=drawn)
    state = random.getstate(), torch.get_rng_state()
    first, again = samples_of(dataset), samples_of(dataset)
    assert [label for _, label in first] == [label for _, label in again]
    plain = samples_of(ImageFolder(root, RANDOM))
    assert all(torch.equal(ours, other) for (ours, _), (other, _) in zip(first, plain, strict=True))
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    together = []
    for workers in (0, 2):
        with DataLoader(dataset, 2, num_workers=workers, seed=3) as loader:
            together.append(torch.cat([labels for _, labels in loader]))
    assert torch.equal(*together)
    assert len(set(together[0].tolist())) == len(dataset)


def test_target_transform_is_called_once_per_sample_in_order(root):
    calls = count(1)
    dataset = ImageFolder(root, FIXED, target_transform=lambda label: next(calls))
    with DataLoader(dataset, 3) as loader:
        assert torch.cat([labels for _, labels in loader]).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert next(calls) == 8


def fails_on_dogs(label):
    if label:
        raise KeyError("no dogs")
    return label


def test_exceptions_of_target_transform_are_unchanged_and_can_be_skipped(root):
    dataset = ImageFolder(root, FIXED, target_transform=fails_on_dogs)
    with DataLoader(dataset, 7) as loader, pytest.raises(KeyError, match="no dogs"):
        next(iter(loader))
    with (
        DataLoader(dataset, 7, on_error="skip") as loader,
        pytest.warns(RuntimeWarning, match="fails_on_dogs"),
    ):
        assert [labels.tolist() for _, labels in loader] == [[0, 0, 0]]


def test_a_target_transform_that_is_set_later_is_called(root):
    dataset = ImageFolder(root, FIXED)
    with DataLoader(dataset, 7) as loader:
        assert next(iter(loader))[1].dtype == torch.int64
        dataset.target_transform = float
        assert next(iter(loader))[1].dtype == torch.float64


# ------------------------------------------------------------------- datasets that are rejected


def changed(root, **attributes):
    dataset = ImageFolder(root, RANDOM)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def circular(root):
    whole = Subset(changed(root), [0])
    whole.dataset = whole
    return whole


def circular_parts(root):
    whole = ConcatDataset([Subset(changed(root), [0])])
    whole.datasets[0].dataset = whole
    return whole


def self_containing(root):
    compose = v1.Compose([])
    compose.transforms.append(compose)
    return ImageFolder(root, compose)


def grown(root):
    dataset = ConcatDataset([folder(root), folder(root)])
    dataset.datasets[1].samples.append(dataset.datasets[0].samples[0])
    return dataset


def different_steps(root):
    """Equal steps of which each may keep state."""
    erasing = [v1.Compose([*RANDOM.transforms, v1.RandomErasing(1.0)]) for _ in range(2)]
    return ConcatDataset([ImageFolder(root, each) for each in erasing])


def joined(root, **options):
    return ConcatDataset([folder(root), ImageFolder(root, **options)])


def without_attribute(root):
    dataset = Plain(root)
    del dataset.target_transform
    return dataset


class Paths:
    """A second base class with a relevant method."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def derived(*bases, **members):
    """A subclass that overrides something."""
    kind = type("Derived", bases or (ImageFolder,), members)
    return lambda root: kind(root, FIXED)


BEYOND, NO_NUMBERS = "exceed its 7 samples", "not a list of whole numbers"
REPLACED = "method of .* was replaced"
REJECTED = {
    "another dataset": (lambda _: TensorDataset(torch.zeros(3)), "^TensorDataset is not torchvisi"),
    "a subset of its own": (
        lambda root: type("OwnSubset", (Subset,), {})(changed(root), [0]),
        "^OwnSubset is not",
    ),
    "the class": (lambda _: ImageFolder, "^type is not torchvision's"),
    "something strange": (lambda _: Strange(), "^Strange is not torchvision's"),
    "a loader of its own": (lambda root: changed(root, loader=open), "The loader open is not"),
    "a partial loader": (
        lambda root: changed(root, loader=partial(pil_loader)),
        r"functools\.partial",
    ),
    "no transform": (lambda root: ImageFolder(root), "no transform, so it returns PIL images"),
    "a method put in": (lambda root: changed(root, __getitem__=len), REPLACED),
    "fractions for labels": (lambda root: changed(root, samples=[("a", 0.5)]), "of type float"),
    "truths for labels": (lambda root: changed(root, samples=[("a", True)]), "of type bool"),
    "labels too large": (lambda root: changed(root, samples=[("a", 2**70)]), "cannot be inspected"),
    "samples of three": (lambda root: changed(root, samples=[("a", 1, 2)]), "cannot be inspected"),
    "samples from nowhere": (lambda root: changed(root, samples=iter([])), "not a list"),
    "open files": (lambda root: changed(root, samples=[(3, 1)]), "cannot be inspected"),
    "a zero byte": (lambda root: changed(root, samples=[("a\0b", 1)]), "zero byte"),
    "a missing attribute": (without_attribute, r"^This Plain has no target_transform\.$"),
    "indices beyond": (lambda root: Subset(changed(root), [0, 7]), BEYOND),
    "indices before": (lambda root: Subset(changed(root), [-8]), BEYOND),
    "truths for indices": (lambda root: Subset(changed(root), [True]), NO_NUMBERS),
    "a subset of itself": (circular, "Subset is nested more than 100"),
    "parts of themselves": (circular_parts, "nested more than 100"),
    "a pipeline within itself": (self_containing, "cannot be inspected: RecursionErr"),
    # Subclasses
    "own samples": (
        derived(__getitem__=lambda self, index: index),
        r"subclass .* overrides __getitem__",
    ),
    "other attributes": (derived(__getattr__=lambda self, name: 1), "overrides __getattr__"),
    "own list": (
        derived(samples=property(lambda self: [], lambda self, new: None)),
        "overrides samples",
    ),
    "from the side": (
        derived(type("Side", (Paths,), {}), ImageFolder),
        r"\(Paths\.__getitems__\), which may",
    ),
    # Several folders
    "other transforms": (
        lambda root: joined(root, transform=RANDOM),
        r"different transforms, Compose\(.*Resize.* and Compose\(.*Random",
    ),
    "different steps": (different_steps, "different transforms"),
    "one without a transform": (lambda root: joined(root, transform=None), "has no transform"),
    "other target transforms": (
        lambda root: joined(root, transform=FIXED, target_transform=float),
        "different target_transforms",
    ),
    "another loader": (
        lambda root: joined(root, transform=FIXED, loader=open),
        "The loader open is not torchvision's own",
    ),
    "a concatenation of its own": (
        lambda root: type("OwnConcat", (ConcatDataset,), {})([folder(root)]),
        "^OwnConcat is not",
    ),
    "one of another kind": (lambda root: ConcatDataset([folder(root), [(1, 2)]]), "^list is not"),
    "one that has grown": (grown, "have changed their lengths"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_dataset_is_rejected_with_its_reason(root, case):
    make, reason = REJECTED[case]
    given = refusal(make(root))
    assert re.search(reason, given), given


def test_replaced_parts_of_the_libraries_reject_a_dataset(root, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torchvision, "_image_backend", "accimage")
        assert "backend is not PIL" in refusal(folder(root))
    monkeypatch.setattr(ConcatDataset, "__getitem__", lambda self, index: None)
    assert refusal(ConcatDataset([folder(root)])).startswith("ConcatDataset is not torchvision's")
