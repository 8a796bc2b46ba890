"""Pipelines run unchanged if library code was replaced."""

import functools
import sys
from unittest import mock

import pytest
import timm
import torch
import torchvision
from PIL import Image, ImageEnhance, ImageFile, JpegImagePlugin
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import DatasetFolder, ImageFolder, folder
from torchvision.transforms import _functional_pil, _functional_tensor, autoaugment, functional, v2
from torchvision.transforms.v2 import _transform
from torchvision.transforms.v2.functional import _geometry

import feedline
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.images.compile.library_steps import (
    replaced_function,
    replaced_method,
    untested_versions,
)
from feedline.timing import torch_workers
from torchvision_folder import DRAW

STEPS = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()]


def own(*args, **kwargs):
    raise AssertionError("replaced code ran")


def wrapped(original):
    return functools.wraps(original)(lambda *args, **kwargs: own())


def without_gradients(original):
    return torch.no_grad()(wrapped(original))


def renamed(original):
    def replacement(*args, **kwargs):
        own()

    replacement.__module__, replacement.__name__, replacement.__qualname__ = (
        *(original.__module__, original.__name__, original.__qualname__),
    )
    return replacement


def compiled_in_its_module(original):
    """A function with the library's globals, compiled from other text."""
    within = vars(sys.modules[original.__module__])
    made = {}
    exec(compile(f"def {original.__name__}(*args): raise KeyError", "patch", "exec"), within, made)
    return made[original.__name__]


def mocked(original):
    return mock.MagicMock(side_effect=AssertionError("replaced code ran"))


REPLACEMENTS = [wrapped, without_gradients, renamed, compiled_in_its_module, mocked]
FUNCTIONS = [
    *((folder, "pil_loader"), (folder, "default_loader"), (torchvision, "get_image_backend")),
    *((Image, "open"), (Image, "blend"), (Image, "merge"), (ImageEnhance._Enhance, "enhance")),
    *((ImageEnhance, "Brightness"), (ImageFile.ImageFile, "load")),
    *((Image.Image, name) for name in ("convert", "crop", "resize", "split", "transpose")),
    *((functional, name) for name in ("resized_crop", "hflip", "to_tensor", "resize")),
    *((_functional_pil, "resize"), (_functional_tensor, "resize"), (autoaugment, "_apply_op")),
    *((v2.functional, name) for name in ("resized_crop", "horizontal_flip", "to_image")),
    *((_geometry, "_crop_image_pil"), (_transform, "_get_kernel"), (tv_tensors, "wrap")),
    *((timm.data.auto_augment, "rotate"), (timm.data.transforms, "_setup_size")),
]


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize(("owner", "name"), FUNCTIONS)
def test_replaced_function_is_named_and_not_called(root, monkeypatch, owner, name, replacement):
    dataset = ImageFolder(root, v1.Compose(STEPS), loader=folder.default_loader)
    monkeypatch.setattr(owner, name, replacement(getattr(owner, name)))
    recognition = compile_dataset(dataset)
    assert recognition.pipeline is None
    assert f"{owner.__name__}.{name} was replaced by " in recognition.reasons[0]
    explanation = feedline.compile(v1.Compose(STEPS)).explain()
    assert explanation.startswith("unchanged")
    assert f"{name} was replaced by " in explanation


METHODS = [
    *((DatasetFolder, "__getitem__"), (nn.Module, "__call__")),
    *((v1.RandomResizedCrop, "forward"), (v1.RandomResizedCrop, "get_params")),
    *((v2.RandomResizedCrop, "forward"), (v2.RandomResizedCrop, DRAW)),
    (timm.data.transforms.RandomResizedCropAndInterpolation, "__call__"),
]


class Derived(ImageFolder):
    pass


@pytest.mark.parametrize(("kind", "name"), METHODS)
@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_replaced_method_is_named(root, monkeypatch, kind, name, replacement):
    """Of a step, or of a base class of a step or of the dataset."""
    steps = STEPS if kind in (DatasetFolder, nn.Module) else [kind(32), v1.ToTensor()]
    datasets = [folder_kind(root, v1.Compose(steps)) for folder_kind in (ImageFolder, Derived)]
    assert all(compile_dataset(dataset).pipeline is not None for dataset in datasets)
    monkeypatch.setattr(kind, name, replacement(getattr(kind, name)))
    for dataset in datasets:
        recognition = compile_dataset(dataset)
        assert recognition.pipeline is None
        assert f"{kind.__name__}.{name} was replaced by " in recognition.reasons[0]


def test_replaced_method_only_affects_its_step(root, monkeypatch):
    monkeypatch.setattr(v1.RandomHorizontalFlip, "forward", own)
    recognition = compile_dataset(ImageFolder(root, v1.Compose([STEPS[0], STEPS[2]])))
    assert recognition.unchanged == ()
    recognition = compile_dataset(ImageFolder(root, v1.Compose(STEPS)))
    assert [step.partition("(")[0] for step in recognition.unchanged] == ["RandomHorizontalFlip"]
    assert "RandomHorizontalFlip.forward was replaced by " in recognition.reasons[0]


def test_a_method_of_another_step_is_a_replacement(monkeypatch):
    monkeypatch.setattr(v1.Resize, "forward", v1.CenterCrop.forward)
    assert "Resize.forward was replaced by " in replaced_method(v1.Resize)


def test_a_class_that_replaces_a_step_is_not_compiled(monkeypatch):
    replacement = type("RandomResizedCrop", (), {"__call__": lambda self, image: image})
    monkeypatch.setattr(v1, "RandomResizedCrop", replacement)
    compiled = feedline.compile(v1.Compose([v1.RandomResizedCrop(), v1.ToTensor()]))
    assert compiled.explain().startswith("unchanged")


@pytest.mark.parametrize("of", ["forward_hook", "forward_pre_hook"])
@pytest.mark.parametrize("library", [v1, v2])
def test_hooks_on_all_modules_are_detected(root, library, of):
    dataset = ImageFolder(root, library.Compose([library.RandomResizedCrop(32), v2.ToImage()]))
    hooks = getattr(nn.modules.module, f"register_module_{of}")(own)
    try:
        recognition = compile_dataset(dataset)
    finally:
        hooks.remove()
    assert recognition.pipeline is None
    assert "hooks" in recognition.reasons[0]
    assert compile_dataset(dataset).pipeline is not None


def test_a_jpeg_opener_registered_by_the_user_runs(monkeypatch):
    for opener in (own, type("Opener", (), {})):
        monkeypatch.setitem(Image.OPEN, "JPEG", (opener, None))
        assert "JpegImagePlugin.jpeg_factory was replaced by" in replaced_function()
    monkeypatch.setitem(Image.OPEN, "JPEG", (JpegImagePlugin.jpeg_factory, None))
    assert replaced_function() == ""


def test_attributes_added_by_other_packages_are_not_replacements(monkeypatch):
    """fastai adds and replaces properties of images, transformers adds a method to modules."""
    monkeypatch.setattr(Image.Image, "size", property(lambda image: (*image._size,)))
    monkeypatch.setattr(Image.Image, "shape", property(lambda image: image.size), raising=False)
    monkeypatch.setattr(torch.Tensor, "show", lambda tensor: None, raising=False)
    monkeypatch.setattr(nn.Module, "smart_apply", lambda module, function: None, raising=False)
    monkeypatch.setattr(folder, "find_classes", own)
    pipeline = v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.4), v1.ToTensor()])
    assert "unchanged" not in feedline.compile(pipeline).explain()


def test_feedline_timer_is_not_a_replacement(monkeypatch):
    for kind, method, timed in (
        (v1.Compose, "__call__", torch_workers._time_compose),
        (v2.Compose, "forward", torch_workers._time_compose),
        (ImageFile.ImageFile, "load", torch_workers._time_image_load),
    ):
        monkeypatch.setattr(kind, method, vars(kind)[method])  # restored after the test
        torch_workers._wrap(kind, method, timed)
        assert "__wrapped__" in vars(vars(kind)[method])
    for library in (v1, v2):
        assert feedline.compile(library.Compose(STEPS)).explain().startswith("fused")


ALL = {
    kind
    for module in (v1, v2, timm.data.transforms, timm.data.auto_augment)
    for kind in vars(module).values()
    if type(kind) is type and kind.__module__.startswith(("torchvision.transforms", "timm.data"))
}


def test_the_installed_libraries_are_tested_and_original():
    Image.init()
    assert untested_versions() == ""
    assert replaced_function() == ""
    assert len(ALL) > 60
    assert [why for kind in ALL if (why := replaced_method(kind))] == []
