"""Replaced code of torchvision's or Pillow's is seen, whatever it says of itself."""

from __future__ import annotations

import functools
import sys
from unittest import mock

import pytest
import torch
import torchvision
from PIL import Image, ImageFile
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import DatasetFolder, ImageFolder, folder
from torchvision.transforms import _functional_pil, _functional_tensor, functional, v2
from torchvision.transforms.v2 import _transform
from torchvision.transforms.v2.functional import _geometry, _utils

from feedline.recognition.recognise import recognise
from feedline.recognition.replacements import Replacements
from torchvision_folder import write_images

V1 = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()]
V1_TENSORS = [v1.PILToTensor(), v1.Resize(40), v1.CenterCrop(32)]
V2 = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage()]
V2_IMAGES = [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_images(tmp_path_factory.mktemp("images")))


def own(*args, **kwargs):
    raise AssertionError("code of a user's ran")


def wrapped(original):
    @functools.wraps(original)
    def around(*args, **kwargs):
        raise AssertionError("code of a user's ran")

    return around


def liar(original):
    def lie(*args, **kwargs):
        raise AssertionError("code of a user's ran")

    lie.__module__, lie.__name__, lie.__qualname__ = (
        *(original.__module__, original.__name__, original.__qualname__),
    )
    return lie


def run_in_its_module(original):
    """A function with torchvision's own globals, of text that is not torchvision's."""
    within = vars(sys.modules[original.__module__])
    made = {}
    exec(compile(f"def {original.__name__}(*args): raise KeyError", "patch", "exec"), within, made)
    return made[original.__name__]


def thing(original):
    return mock.MagicMock(side_effect=AssertionError("code of a user's ran"))


FUNCTIONS = [
    (V1, folder, "pil_loader"),
    (V1, folder, "default_loader"),
    (V1, folder, "accimage_loader"),
    (V1, torchvision, "get_image_backend"),
    (V1, Image, "open"),
    (V1, Image.Image, "convert"),
    (V1, Image.Image, "resize"),
    (V1, Image.Image, "crop"),
    (V1, Image.Image, "transpose"),
    (V1, ImageFile.ImageFile, "load"),
    (V1, functional, "resized_crop"),
    (V1, functional, "hflip"),
    (V1, functional, "to_tensor"),
    (V1, functional, "_is_pil_image"),
    (V1, _functional_pil, "resize"),
    (V1_TENSORS, _functional_tensor, "resize"),
    (V1_TENSORS, functional, "center_crop"),
    (V2, v2.functional, "resized_crop"),
    (V2, v2.functional, "horizontal_flip"),
    (V2, v2.functional, "to_image"),
    (V2, _geometry, "_crop_image_pil"),
    (V2, _transform, "_get_kernel"),
    (V2_IMAGES, v2.functional, "resize"),
    (V2_IMAGES, v2.functional, "center_crop"),
    (V2_IMAGES, _geometry, "interpolate"),
    (V2_IMAGES, tv_tensors, "wrap"),
]


@pytest.mark.parametrize("replacement", [wrapped, liar, run_in_its_module, thing])
@pytest.mark.parametrize(("steps", "where", "name"), FUNCTIONS)
def test_a_replaced_function_is_refused_by_name_and_not_called(
    root, monkeypatch, steps, where, name, replacement
):
    monkeypatch.setattr(where, name, replacement(getattr(where, name)))
    dataset = ImageFolder(root, v1.Compose(steps), loader=folder.default_loader)
    recognition = recognise(dataset)
    owner = getattr(where, "__qualname__", where.__name__)
    assert f"{owner}.{name} was replaced by " in recognition.refused[0]
    pipeline = recognition.pipeline
    # What comes after a replaced step runs as it is: the code in its place, for each image.
    assert pipeline is None or (recognition.as_is and not pipeline.writes_rows)


def test_the_reason_names_what_took_the_place(root, monkeypatch):
    dataset = ImageFolder(root, v1.Compose(V1))
    monkeypatch.setattr(folder, "pil_loader", own)
    assert recognise(dataset).refused == (
        f"torchvision.datasets.folder.pil_loader was replaced by {__name__}.own.",
    )
    monkeypatch.undo()
    monkeypatch.setattr(functional, "hflip", functools.partial(own))
    (reason,) = recognise(ImageFolder(root, v1.Compose([*V1_TENSORS, *V1[1:]]))).refused[:1]
    assert reason.startswith("RandomHorizontalFlip(p=0.5) cannot be fused: ")
    assert "functional.hflip was replaced by an object of functools.partial." in reason


@pytest.mark.parametrize("step", [v1.RandomResizedCrop, v2.RandomResizedCrop])
@pytest.mark.parametrize("replacement", [wrapped, liar, run_in_its_module, thing])
def test_a_replaced_method_is_refused_by_name(root, monkeypatch, step, replacement):
    dataset = ImageFolder(root, v1.Compose([step(32), v1.ToTensor()]))
    assert recognise(dataset).pipeline is not None
    monkeypatch.setattr(step, "forward", replacement(step.forward))
    recognition = recognise(dataset)
    assert recognition.pipeline is None
    assert "forward was replaced by " in recognition.refused[0]


@pytest.mark.parametrize("of", ["forward_hook", "forward_pre_hook"])
@pytest.mark.parametrize("library", [v1, v2])
def test_hooks_on_all_modules_are_seen(root, library, of):
    dataset = ImageFolder(root, library.Compose([library.RandomResizedCrop(32), v2.ToImage()]))
    hooks = getattr(nn.modules.module, f"register_module_{of}")(own)
    try:
        recognition = recognise(dataset)
    finally:
        hooks.remove()
    assert recognition.pipeline is None
    assert "all torch modules have hooks" in recognition.refused[0]
    assert recognise(dataset).pipeline is not None


def test_a_method_of_another_step_in_its_place_is_refused(root, monkeypatch):
    monkeypatch.setattr(v1.Resize, "forward", v1.CenterCrop.forward)
    recognition = recognise(ImageFolder(root, v1.Compose(V1_TENSORS)))
    assert "Resize.forward was replaced by " in recognition.refused[0]


@pytest.mark.parametrize("replacement", [wrapped, liar, run_in_its_module, thing])
@pytest.mark.parametrize(
    ("kind", "name"), [(DatasetFolder, "__getitem__"), (nn.Module, "__call__")]
)
def test_a_replaced_method_further_down_is_refused(root, monkeypatch, kind, name, replacement):
    monkeypatch.setattr(kind, name, replacement(getattr(kind, name)))
    recognition = recognise(ImageFolder(root, v1.Compose(V1)))
    assert recognition.pipeline is None
    assert f"{kind.__name__}.{name} was replaced by " in recognition.refused[0]


@pytest.mark.parametrize("key", [tv_tensors.Image, torch.Tensor])
def test_a_replaced_kernel_is_refused(root, monkeypatch, key):
    monkeypatch.setitem(_utils._KERNEL_REGISTRY[v2.functional.resize], key, own)
    recognition = recognise(ImageFolder(root, v1.Compose(V2_IMAGES)))
    assert recognition.pipeline is None
    assert f"was replaced by {__name__}.own" in recognition.refused[0]


def test_one_function_of_torchvisions_in_the_place_of_another_is_refused(root, monkeypatch):
    monkeypatch.setattr(functional, "hflip", functional.vflip)
    recognition = recognise(ImageFolder(root, v1.Compose(V1)))
    assert "functional.hflip was replaced by torchvision." in recognition.refused[0]


def test_a_function_that_no_step_calls_may_be_replaced(root, monkeypatch):
    datasets = [ImageFolder(root, v1.Compose(steps)) for steps in (V1, V2)]
    monkeypatch.setattr(functional, "rotate", own)
    monkeypatch.setattr(v2.functional, "rotate", own)
    monkeypatch.setattr(folder, "find_classes", own)
    assert all(recognise(dataset).pipeline is not None for dataset in datasets)


ALL = {
    kind
    for module in (v1, v2)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__.startswith("torchvision.transforms")
} - {v1.InterpolationMode, v1.AutoAugmentPolicy}


def test_the_installed_torchvision_is_its_own():
    assert len(ALL) > 60
    assert not [why for kind in ALL if (why := Replacements().replaced_in(kind))]
    assert Replacements().replaced_in_loader(folder.default_loader) == ""
    assert Replacements().replaced_in_loader(folder.pil_loader) == ""
    assert Replacements().replaced_in_loader(own) is None
