"""Bottlenecks in the work of loader processes."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms
from torchvision.transforms import v2

import feedline
import images
from samples import Arrays, Computed, Repeated, folder, usual
from situation import CORES, Outcome, paced, situation, train


@situation("decode-bound", "torch")
def large_images(fixed: bool) -> Outcome:
    """JPEGs of 1600 x 1200 px for images of 128 px; fix: copies of 128 px."""
    data = folder(images.small() if fixed else images.large(), usual(128))
    return train(
        DataLoader(Repeated(data, 2000 if fixed else 640), 16, num_workers=CORES), paced(20)
    )


@situation("decode-bound", "feedline", predicts=False)
def large_images_of_feedline(fixed: bool) -> Outcome:
    """The same files in feedline.ImageFolder."""
    data = feedline.ImageFolder(str(images.large()))
    loader = feedline.DataLoader(data, 16, image_size=128, seed=0, num_workers=CORES)
    return train(loader, paced(5), epochs=12)


def opened(path: str) -> Image.Image:
    """A user-defined image loader equivalent to torchvision's."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


@situation("uncompiled-transform", "feedline", predicts=False)
def loader_of_ones_own(fixed: bool) -> Outcome:
    """A user-defined loader reads the files; fix: torchvision's."""
    data = folder(images.large(), feedline.per_size(usual))
    if not fixed:
        data.loader = opened
    loader = feedline.DataLoader(data, 16, schedule="128x12", num_workers=CORES)
    return train(loader, paced(2), epochs=12)


class Sharpened:
    """A user-defined transform."""

    def __call__(self, image: Any) -> Any:
        for _ in range(8):
            image = image.filter(ImageFilter.UnsharpMask(8, 120, 2))
        return image


@situation("slow-transform", "torch")
def heavy_step(fixed: bool) -> Outcome:
    """A slow user-defined filter; fix: without it."""
    more = () if fixed else (Sharpened(),)
    data = folder(images.photos(), usual(112, *more))
    length = 2400 if fixed else 900
    return train(DataLoader(Repeated(data, length), 24, num_workers=CORES), paced(30))


@situation("slow-transform", "feedline")
def heavy_step_of_feedline(fixed: bool) -> Outcome:
    """A slow user-defined filter after a compiled crop; fix: without it."""
    more = () if fixed else (Sharpened(),)
    data = folder(images.photos(), usual(112, *more))
    loader = feedline.DataLoader(data, 24, num_workers=CORES, seed=0)
    return train(loader, paced(30), epochs=6 if fixed else 3)


@situation("slow-transform", "torch")
def heavy_blur(fixed: bool) -> Outcome:
    """GaussianBlur with a large kernel; fix: without it."""
    steps = [transforms.ToPILImage(), transforms.RandomHorizontalFlip()]
    if not fixed:
        steps.append(transforms.GaussianBlur(31))
    steps.append(transforms.PILToTensor())
    data = Arrays(1600 if fixed else 700, 96, transforms.Compose(steps))
    return train(DataLoader(data, 16, num_workers=CORES), paced(12))


@situation("slow-samples", "torch")
def one_in_a_hundred(fixed: bool) -> Outcome:
    """One sample in 100 takes 150 times as long; fix: none does."""
    data = Computed(4000, 1.0, slow_every=0 if fixed else 100, slow_ms=150.0)
    return train(DataLoader(data, 16, num_workers=CORES), paced(10))


@situation("slow-samples", "feedline")
def one_in_a_hundred_of_feedline(fixed: bool) -> Outcome:
    """The same."""
    data = Computed(4000, 1.0, slow_every=0 if fixed else 100, slow_ms=150.0)
    return train(feedline.DataLoader(data, 16, num_workers=CORES), paced(10))


_mix = v2.MixUp(num_classes=10)


def mixed(samples: Any) -> Any:
    """Collate with MixUp, as in torchvision's documentation."""
    return _mix(*default_collate(samples))


class _Floats:
    def __call__(self, pixels: Any) -> Any:
        return torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float32)


@situation("cpu-mix", "torch")
def mixup_in_workers(fixed: bool) -> Outcome:
    """MixUp in collate_fn; fix: in the loop, on the device."""
    data = Arrays(7200, 192, _Floats())
    loader = DataLoader(data, 32, num_workers=CORES, collate_fn=None if fixed else mixed)
    return train(loader, paced(8))


@situation("cpu-mix", "torch")
def augmented_in_workers(fixed: bool) -> Outcome:
    """Several colour transforms; fix: on the device."""
    more = (
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
        transforms.RandomRotation(20),
        transforms.GaussianBlur(9),
    )
    data = folder(images.small(), usual(128, *(() if fixed else more)))
    length = 4000 if fixed else 1200
    return train(DataLoader(Repeated(data, length), 16, num_workers=CORES), paced(20))
