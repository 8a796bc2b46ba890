"""No function that a fused step's original calls can be replaced unseen.

Which functions these are is found by running the originals, so that none is forgotten.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
import torch
from library_calls import calls_of, counted, named
from PIL import Image, ImageEnhance
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

import feedline
from feedline.recognition.replacements import Replacements
from slow import slow
from torchvision_folder import image

SIDE = 40
FLOATS = v1.ToTensor()

STEPS = {
    f"{name}, {version.__name__.rpartition('.')[2]}": make(version)
    for version in (v1, v2)
    for name, make in {
        "random resized crop": lambda v: [v.RandomResizedCrop(SIDE)],
        "resize": lambda v: [v.Resize((SIDE, SIDE + 1))],
        "centre crop": lambda v: [v.Resize(SIDE + 8), v.CenterCrop(SIDE)],
        "random crop": lambda v: [v.Resize((SIDE + 8, SIDE + 9)), v.RandomCrop(SIDE)],
        "flip": lambda v: [v.Resize((SIDE, SIDE + 1)), v.RandomHorizontalFlip(0.5)],
        "brightness": lambda v: [v.Resize((SIDE, SIDE + 1)), v.ColorJitter(brightness=0.5)],
        "contrast": lambda v: [v.Resize((SIDE, SIDE + 1)), v.ColorJitter(contrast=0.5)],
        "saturation": lambda v: [v.Resize((SIDE, SIDE + 1)), v.ColorJitter(saturation=0.5)],
        "hue": lambda v: [v.Resize((SIDE, SIDE + 1)), v.ColorJitter(hue=0.3)],
        "grey": lambda v: [v.Resize((SIDE, SIDE + 1)), v.RandomGrayscale(0.5)],
        "perhaps": lambda v: [
            v.Resize((SIDE, SIDE + 1)),
            v.RandomApply([v.ColorJitter(0.4), v.RandomGrayscale(0.5)], 0.5),
        ],
    }.items()
} | {
    "values": [v1.Resize((SIDE, SIDE)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
    "values, v2": [v2.Resize((SIDE, SIDE)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "tensors": [v1.PILToTensor(), v1.Resize((SIDE, SIDE))],
    "tensors, v2": [v2.ToImage(), v2.Resize((SIDE, SIDE))],
}

# What is surely among the functions that are found.
KNOWN = {
    "random resized crop, transforms": ["Image.resize", "Image.crop", "torch.randint"],
    "random crop, transforms": ["torch.randint", "Tensor.item", "Image.crop"],
    "flip, v2": ["Image.transpose", "torch.rand"],
    "brightness, transforms": ["_Enhance.enhance", "Brightness.__init__", "PIL.Image.blend"],
    "saturation, v2": ["_Enhance.enhance", "Color.__init__", "PIL.Image.blend", "Image.convert"],
    "hue, transforms": ["Image.split", "PIL.Image.merge", "Image.convert", "torch.randperm"],
    "timm's crop": ["Image.resize"],
}


IMAGES = [image(seed, SIDE + 1, SIDE) for seed in range(3)]
"""Of the size that they are resized to, which is the same in all ways to resize."""


def steps_of(case: str) -> list[Any]:
    if case == "timm's crop":
        from timm.data import transforms as timm

        return [timm.RandomResizedCropAndInterpolation(SIDE, interpolation="random")]
    return STEPS[case]


def made(transform: Any, *more: Any) -> list[Any]:
    torch.manual_seed(3)
    random.seed(3)
    return [transform(each, *more) for each in IMAGES]


SLOW = ("flip, transforms", "contrast, transforms", "saturation, transforms", "resize, v2")
SLOW += ("centre crop, v2", "random crop, v2", "brightness, v2", "contrast, v2", "grey, v2")


@pytest.mark.parametrize(
    "case", ["timm's crop", *(each for each in STEPS if each not in SLOW), *slow(*SLOW)]
)
def test_a_replaced_function_that_a_step_calls_runs(case: str) -> None:
    chosen = steps_of(case)
    pipeline = v1.Compose([*chosen, *([] if "values" in case else [FLOATS])])
    if "tensors" in case:
        pipeline = v1.Compose([*chosen, v1.ConvertImageDtype(torch.float32)])
    assert feedline.compile(pipeline).explain().startswith("fused")
    # What the last step does is tabled, and the table is made by the step itself.
    steps = v1.Compose(chosen)
    places = calls_of(lambda: made(steps))
    for known in KNOWN.get(case, []):
        assert any(named(place).endswith(known) for place in places), known
    unseen = []
    for place in places:
        with counted(place) as calls:
            # Version 2 knows its kernels by its functions, and fails where one was replaced.
            with suppress(ValueError):
                made(steps)
            # Where it is not called, another name of it is.
            if calls and "unchanged" not in feedline.compile(pipeline).explain():
                unseen.append(named(place))
    assert unseen == []


class Darker:
    def __init__(self, image: Image.Image) -> None:
        self.image = image

    def enhance(self, factor: float) -> Image.Image:
        return self.image.point(lambda value: value // 2)


def doubled(self: Any, image: Image.Image) -> None:
    self.image, self.degenerate = image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


REPLACED = [
    (ImageEnhance._Enhance, "enhance", lambda self, factor: self.image),
    (ImageEnhance, "Brightness", Darker),
    (ImageEnhance.Color, "__init__", doubled),
    (Image, "blend", lambda one, other, factor: other),
    (Image.Image, "split", lambda image: [image.convert("L")] * 3),
    (Image, "merge", lambda mode, bands: Image.new(mode, bands[0].size)),
    (torch, "randint", lambda *args, size, **named: torch.zeros(size, dtype=torch.int64)),
    (torch, "rand", lambda *sizes: torch.zeros(sizes)),
    (torch.Tensor, "uniform_", lambda tensor, low=0.0, high=1.0: tensor.fill_(high)),
]


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize(("owner", "name", "by"), REPLACED)
def test_what_was_replaced_decides_the_pixels(
    version: Any, owner: Any, name: str, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        *(version.Resize((SIDE, SIDE + 1)), version.RandomCrop(SIDE - 8)),
        *(version.RandomHorizontalFlip(0.5), version.ColorJitter(0.5, 0.5, 0.5, 0.3)),
        *(version.RandomGrayscale(0.5), v1.ToTensor()),
    ]
    # What does not call this is fused, with draws of its own.
    if name != "randint":
        del steps[1]
        if name != "rand":
            del steps[1]
    pipeline = v1.Compose(steps)
    plain = made(pipeline)
    monkeypatch.setattr(owner, name, by)
    compiled = feedline.compile(pipeline)
    assert f"{name} was replaced by" in compiled.explain()
    theirs = made(pipeline)
    assert not all(map(torch.equal, theirs, plain))
    assert all(map(torch.equal, made(compiled), theirs))


def test_what_other_packages_add_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fastai adds a property to tensors and arrays, and transformers a method to modules."""
    pipeline = v1.Compose([v1.RandomResizedCrop(SIDE), v1.ColorJitter(0.4), v1.ToTensor()])
    monkeypatch.setattr(Image.Image, "shape", property(lambda image: image.size), raising=False)
    monkeypatch.setattr(Image.Image, "show", lambda image: None)
    monkeypatch.setattr(torch.Tensor, "show", lambda tensor: None, raising=False)
    monkeypatch.setattr(nn.Module, "smart_apply", lambda module, function: None, raising=False)
    monkeypatch.setattr("warnings.warn", lambda *args, **named: None)
    assert "unchanged" not in feedline.compile(pipeline).explain()


def test_all_formats_of_pillow_s_are_its_own() -> None:
    Image.init()
    assert Replacements().replaced_in_pillow() == ""


def test_a_jpeg_opened_in_another_way_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Image.OPEN, "JPEG", (lambda *args: IMAGES[0], None))
    pipeline = v1.Compose([v1.RandomResizedCrop(SIDE), v1.ToTensor()])
    assert "JpegImagePlugin.jpeg_factory was replaced by" in feedline.compile(pipeline).explain()
