"""Pipelines of timm's `create_transform`, compared with timm."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import ImageFolder

from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.compile.datasets import class_names, folder_fingerprint
from feedline.order.batch_spec import Item
from torchvision_folder import compiled_folder, item_row, pixel_error


@pytest.fixture(scope="module", autouse=True)
def _timm():
    """Import timm for these tests alone: a large process forks slowly."""
    global ImageDataset, auto_augment, create_transform, transforms
    from timm.data import ImageDataset, auto_augment, create_transform, transforms


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
def test_evaluation_matches_timm_pixels(root, interpolation, crop_pct):
    transform = create_transform(32, interpolation=interpolation, crop_pct=crop_pct)
    dataset, recognition = compiled_folder(root, transform)
    assert not recognition.unchanged
    assert recognition.pipeline.writes_rows
    for sample, (theirs, label) in enumerate(dataset):
        ours, number = item_row(recognition.pipeline, sample)
        assert number == label
        assert pixel_error(ours, theirs) == 0


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
def test_training_matches_timm_for_same_draws(root, interpolation, monkeypatch):
    transform = create_transform(
        32, is_training=True, color_jitter=None, hflip=0, interpolation=interpolation
    )
    dataset, recognition = compiled_folder(root, transform)
    assert not recognition.unchanged
    crop = recognition.pipeline.fused.crop
    boxes = []
    monkeypatch.setattr(
        transforms.RandomResizedCropAndInterpolation,
        "get_params",
        staticmethod(lambda *_: boxes[-1][:4]),
    )
    modes = {"bilinear": 0, "bicubic": 1}
    monkeypatch.setattr(random, "choice", lambda among: among[modes[boxes[-1].filter]])
    for sample, (path, _) in enumerate(dataset.samples):
        with Image.open(path) as opened:
            width, height = opened.size
        for seed in range(6):
            boxes.append(crop.place(height, width, Item(sample, 32, seed, 1.0)))
            theirs, _ = dataset[sample]
            ours, _ = item_row(recognition.pipeline, sample, seed=seed)
            assert pixel_error(ours, theirs) == 0
    assert {box.filter for box in boxes} == (
        {"bilinear", "bicubic"} if interpolation == "random" else {interpolation}
    )


POLICIES = {
    "rand": ({"auto_augment": "rand-m5-n2"}, True),
    "rand, of any strength": ({"auto_augment": "rand-m5-mstd0.5-inc1"}, True),
    "augmix": ({"auto_augment": "augmix-m3-w2"}, True),
    "original": ({"auto_augment": "original"}, True),
    "three": ({"auto_augment": "3a"}, False),
    "erasing": ({"re_prob": 1.0, "re_mode": "pixel"}, True),
}


@pytest.mark.parametrize("case", POLICIES)
def test_policies_run_unchanged_and_rest_is_fused(root, case):
    options, rows = POLICIES[case]
    _, recognition = compiled_folder(root, create_transform(32, is_training=True, **options))
    fast = [step.partition("(")[0] for step in recognition.fused]
    assert fast[0] == "RandomResizedCropAndInterpolation"
    assert fast[-2:] == ["MaybeToTensor", "Normalize"]
    assert recognition.pipeline.writes_rows == rows
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    made = [recognition.pipeline.sample(Item(0, None, seed, 1.0))[0] for seed in (1, 1, 2)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_user_defined_operation_is_not_probed(root, monkeypatch):
    monkeypatch.setitem(auto_augment.NAME_TO_OP, "Invert", lambda image, *_, **__: image)
    transform = create_transform(32, is_training=True, auto_augment="rand-m5-n2")
    _, recognition = compiled_folder(root, transform)
    assert not recognition.pipeline.writes_rows
    assert "is known only to its own code" in recognition.reasons[-1]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm's own
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("options", [{"is_training": False}, {"use_prefetcher": True}])
def test_timm_dataset_of_a_folder_is_compiled(root, options):
    dataset = ImageDataset(str(root), transform=create_transform(32, **options))
    part = Subset(dataset, [4, 1, -1])
    pipeline = compile_dataset(part).pipeline
    assert pipeline.writes_rows
    assert pipeline.fingerprint() == folder_fingerprint(part)
    assert len(pipeline) == 3
    for sample, (theirs, label) in enumerate(part):
        ours, number = item_row(pipeline, sample)
        assert number == label
        assert ours.dtype == theirs.numpy().dtype
        assert pixel_error(ours, theirs) == 0


def test_timm_labels_are_transformed_and_its_classes_are_named(root):
    transform = create_transform(32)
    dataset = ImageDataset(str(root), transform=transform, target_transform=str)
    image, target = compile_dataset(dataset).pipeline.sample(Item(0, None, 1, 1.0))
    assert image.shape == (3, 32, 32)
    assert target == "0"
    assert class_names([dataset]) == ["cats", "deep", "dogs"]


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: setattr(dataset, "load_bytes", True),
        lambda dataset: setattr(dataset, "input_img_mode", "L"),
        lambda dataset: setattr(dataset, "additional_features", ["size"]),
        lambda dataset: setattr(dataset, "transform", None),
        lambda dataset: setattr(dataset.reader, "__getitem__", None),
        lambda dataset: setattr(
            dataset.reader, "__class__", type("Reader", (type(dataset.reader),), {})
        ),
    ],
)
def test_timm_dataset_runs_unchanged_if_its_samples_are_others(root, change):
    dataset = ImageDataset(str(root), transform=create_transform(32))
    assert compile_dataset(dataset).pipeline is not None
    change(dataset)
    compiled = compile_dataset(dataset)
    assert compiled.pipeline is None
    assert compiled.reasons


def test_folders_of_timm_and_torchvision_are_not_one_dataset(root):
    transform = create_transform(32)
    parts = ImageFolder(str(root), transform), ImageDataset(str(root), transform=transform)
    assert compile_dataset(ConcatDataset(parts)).pipeline is None
    assert compile_dataset(ConcatDataset(parts[1:] * 2)).pipeline is not None
