"""Pipelines of timm's `create_transform`, against timm's own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from feedline.images.compile.recognise import recognise
from feedline.order.batch_spec import Item
from torchvision_folder import item_row, pixel_error, write_images

STD = 0.225


@pytest.fixture(scope="module", autouse=True)
def _timm():
    """Import timm for these tests alone: a large process forks slowly."""
    global auto_augment, create_transform, transforms
    from timm.data import auto_augment, create_transform, transforms


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


def recognised(root, transform):
    dataset = ImageFolder(str(root), transform)
    recognition = recognise(dataset)
    assert recognition.pipeline is not None, recognition.refused
    return dataset, recognition


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
def test_evaluation_gives_timms_pixels(root, interpolation, crop_pct):
    transform = create_transform(32, interpolation=interpolation, crop_pct=crop_pct)
    dataset, recognition = recognised(root, transform)
    assert not recognition.unchanged
    assert recognition.pipeline.writes_rows
    for sample, (theirs, label) in enumerate(dataset):
        ours, number = item_row(recognition.pipeline, sample)
        assert number == label
        assert pixel_error(ours, theirs) * STD * 255 <= 0.2


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
def test_training_gives_what_timm_makes_of_the_same_draws(root, interpolation, monkeypatch):
    transform = create_transform(
        32, is_training=True, color_jitter=None, hflip=0, interpolation=interpolation
    )
    dataset, recognition = recognised(root, transform)
    assert not recognition.unchanged
    crop = recognition.pipeline.recognised.crop
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
            assert pixel_error(ours, theirs) * STD * 255 <= 0.2
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
def test_policies_run_as_they_are_and_leave_the_rest_fast(root, case):
    options, rows = POLICIES[case]
    _, recognition = recognised(root, create_transform(32, is_training=True, **options))
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


def users_own(image, *_args, **_kwargs):
    return image


def test_an_operation_of_a_users_own_is_not_run_to_find_out_what_it_gives(root, monkeypatch):
    monkeypatch.setitem(auto_augment.NAME_TO_OP, "Invert", users_own)
    transform = create_transform(32, is_training=True, auto_augment="rand-m5-n2")
    _, recognition = recognised(root, transform)
    assert not recognition.pipeline.writes_rows
    assert "is known only to its own code" in recognition.refused[-1]


def test_replaced_code_of_timms_is_seen(root, monkeypatch):
    transform = create_transform(32, is_training=True, color_jitter=None)
    monkeypatch.setattr(
        transforms.RandomResizedCropAndInterpolation, "__call__", lambda self, image: image
    )
    recognition = recognise(ImageFolder(str(root), transform))
    assert recognition.pipeline is None
    assert "RandomResizedCropAndInterpolation" in recognition.refused[0]
