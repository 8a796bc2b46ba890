"""Unrecognised pipelines are reported with a reason; recognition never raises."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.compile.compile_pipeline import TableBuilder
from feedline.images.compile.library_steps import CompileError
from torchvision_folder import Strange, refusal

CROP = v1.RandomResizedCrop(32)
FLOATS = v1.ToTensor()
SIZE, EXACT = (32, 32), InterpolationMode.NEAREST_EXACT


def hooked(step):
    step.register_forward_hook(lambda *_: None)
    return step


def with_own_forward(step):
    step.forward = lambda *_: None
    return step


V2_FLOATS = v2.ToDtype(torch.float32, scale=True)
ONE_SIZE = "to one size, as RandomResizedCrop"


def imitated(name):
    """A step of a subclass that has the name of its base class."""
    return type(name, (getattr(v1, name),), {})(32)


PIPELINES = {
    "no crop at all": ([FLOATS], ONE_SIZE),
    "one side only": ([v1.Resize(32), FLOATS], ONE_SIZE),
    "colours first": ([v1.ColorJitter(0.1), CROP, FLOATS], "ColorJitter.* cannot be fused"),
    "a function first": ([np.asarray, CROP, FLOATS], "^asarray cannot be fused. Move it"),
    "a subclass of that name": ([imitated("RandomResizedCrop")], "Crop.* cannot be fused"),
    "hooks": ([hooked(v1.RandomResizedCrop(32)), FLOATS], "cannot be fused"),
    "own forward": ([with_own_forward(v1.RandomResizedCrop(32)), FLOATS], "Crop.* cannot be fused"),
    "no antialias": (
        [v2.ToImage(), v2.Resize(SIZE, 3, antialias=False)],
        "resizes tensors without antialiasing",
    ),
    "exact nearest": ([v2.ToImage(), v2.Resize(SIZE, EXACT)], "resizes with 'nearest-exact'"),
    "resized floats": ([FLOATS, v1.Resize(SIZE)], r"Resize\(.*resizes floats.*move it before"),
    "cropped floats": ([v2.ToImage(), V2_FLOATS, v2.RandomResizedCrop(32)], "resizes floats"),
    "max_size": ([v1.Resize(32, max_size=40), v1.CenterCrop(16), FLOATS], "has a max_size"),
    "half a pixel": ([v2.RandomResizedCrop((32.5, 32.5)), FLOATS], "whole number of pixels"),
    "no pixels": ([v1.RandomResizedCrop(0), FLOATS], "whole number of pixels above 0"),
    "a larger centre": ([v1.Resize(32), v1.CenterCrop(40), FLOATS], "larger than the 32 px.*pads"),
    "a centre alone": ([v1.CenterCrop(32), FLOATS], "CenterCrop.*only supported once"),
    "a padded part": ([v1.Resize(36), v1.RandomCrop(32, padding=4), FLOATS], "RandomCrop.* pads"),
    "too large a share": ([v1.RandomResizedCrop(32, scale=(0.5, 1.5))], "scale must be"),
    "no share": ([v1.RandomResizedCrop(32, scale=(0.0, 1.0)), FLOATS], "scale must be"),
    "no ratio": ([v1.RandomResizedCrop(32, ratio=(0.0, 1.0)), FLOATS], "parameters: ratio must be"),
    "an odd chance": ([CROP, v1.RandomHorizontalFlip(1.5), FLOATS], "parameters: flip must be"),
    "an odd chance of a square": ([v1.Resize(SIZE), v1.RandomHorizontalFlip(-1)], "p=-1.*p must"),
    "a mean image": ([CROP, FLOATS, v1.Normalize(torch.rand(3, 16, 16), 1)], "fails on an RGB"),
    "bfloat16": ([CROP, v2.ToImage(), v2.ToDtype(torch.bfloat16)], "numpy does not support"),
    "a generator": ([v1.Compose(step for step in [CROP, FLOATS])], "cannot be fused"),
    "a strange step": ([Strange()], "Strange cannot be fused"),
}


@pytest.mark.parametrize("case", PIPELINES)
def test_pipeline_is_rejected_with_its_reason(root, case):
    steps, reason = PIPELINES[case]
    dataset = ImageFolder(root, v1.Compose(steps))
    given = refusal(dataset)
    assert re.search(reason, given), given


def test_steps_that_depend_on_pixel_position_have_no_table():
    greys = TableBuilder()
    greys.add(FLOATS)
    greys.add(lambda image: image + torch.linspace(0, 1, image.shape[-1]))
    with pytest.raises(CompileError, match="does more than map each grey level"):
        greys.build()


def test_sequential_with_hooks_is_one_opaque_step(root):
    whole = nn.Sequential(v1.RandomResizedCrop(32))
    assert compile_dataset(ImageFolder(root, v1.Compose([whole, FLOATS]))).pipeline is not None
    whole.register_forward_pre_hook(lambda *_: None)
    assert "Sequential" in refusal(ImageFolder(root, v1.Compose([whole, FLOATS])))
