"""Squares of resized images, with torchvision's places and roundings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, RandomCrop, Resize
from torchvision.transforms.functional import hflip

from feedline.images.crops import Box, EvalCrop, Window, WindowCrop, scale_shape
from feedline.images.resize import fill
from feedline.order.batch_spec import Item

SIZES = [(90, 120), (131, 97), (33, 33), (201, 40), (57, 300)]


def coordinates(height, width):
    """An image whose pixels encode their position."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([y, x, y + x], axis=2).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(("resize", "crop"), [(32, 28), (33, 28), (28, 28), (35, 30)])
def test_a_central_window_is_eval_crops(height, width, resize, crop):
    ours = WindowCrop(resize, (crop, crop)).place(height, width, Item(0, crop, 1, 1.0))
    assert ours == EvalCrop(crop / resize).place(height, width, Item(0, crop, 1, 1.0))


def test_square_resize_is_one_box():
    square = WindowCrop((64, 64), (64, 64), flip=1.0)
    assert square.place(90, 70, Item(0, 64, 1, 1.0)) == Box(0, 0, 90, 70, True)
    assert square.place(90, 70, Item(0, 32, 1, 1.0)) == Box(0, 0, 90, 70, True)
    larger = WindowCrop((64, 64), (48, 48))
    assert larger.place(90, 70, Item(0, 48, 1, 1.0)) == Window(64, 64, 8, 8, False)


def test_other_sizes_show_same_region():
    crop = WindowCrop(256, (224, 224))
    assert crop.place(300, 400, Item(0, 112, 1, 1.0)) == Window(128, 170, 8, 29)
    assert crop.place(300, 400, Item(0, 160, 1, 1.0))[:2] == (183, 244)
    for size in range(1, 300):
        window = crop.place(300, 400, Item(0, size, 1, 1.0))
        assert 0 <= window.top <= window.height - size
        assert 0 <= window.left <= window.width - size


@pytest.mark.parametrize("flip_first", [False, True])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("resize", [40, (36, 44)])
def test_non_square_crop_matches_torchvision_position(height, width, resize, flip_first):
    image = Image.fromarray(coordinates(height, width))
    resized = Resize(resize)(image)
    crop = CenterCrop((31, 20))
    expected = crop(hflip(resized)) if flip_first else hflip(crop(resized))
    window = WindowCrop(resize, (31, 20), flip=1.0, flip_first=flip_first)
    row = np.zeros((31, 20, 3), np.uint8)
    fill(row, np.asarray(image), window.place(height, width, Item(0, 31, 3, 1.0)))
    assert np.abs(row.astype(int) - np.asarray(expected))[..., 1].mean() < 0.2


@pytest.mark.parametrize("resize", [64, (70, 64)])
def test_other_sizes_keep_proportion_and_lie_inside(resize):
    crop = WindowCrop(resize, (64, 40), random=True)
    assert crop.place(300, 400, Item(0, 32, 1, 1.0))[:2] == ((32, 42) if resize == 64 else (35, 32))
    for size in range(1, 200):
        rows, columns = scale_shape((64, 40), size, 64)
        assert (rows, columns) == (size, max(1, round(size * 40 / 64)))
        for height, width in SIZES:
            window = crop.place(height, width, Item(0, size, size, 1.0))
            assert 0 <= window.top <= window.height - rows
            assert 0 <= window.left <= window.width - columns


def test_random_windows_are_anywhere_as_torchvisions():
    crop = WindowCrop(40, (30, 30), random=True, flip=0.25)
    places = [
        crop.place(80, 100, Item(0, 30, seed * 0x9E3779B97F4A7C15, 1.0)) for seed in range(4000)
    ]
    theirs = [RandomCrop.get_params(torch.zeros(3, 40, 50), (30, 30)) for _ in range(4000)]
    for own, other, most in (("top", 0, 10), ("left", 1, 20)):
        ours = np.array([getattr(place, own) for place in places])
        reference = np.array([their[other] for their in theirs])
        assert ours.min() == reference.min() == 0
        assert ours.max() == reference.max() == most
        assert abs(ours.mean() - most / 2) < 0.05 * most
        assert abs(np.bincount(ours) / 4000 - 1 / (most + 1)).max() < 0.02
    assert abs(np.mean([place.flip for place in places]) - 0.25) < 0.03


def test_same_seed_gives_same_window():
    crop = WindowCrop(40, (30, 30), random=True, flip=0.5)
    assert crop.place(80, 100, Item(0, 30, 5, 1.0)) == crop.place(80, 100, Item(3, 30, 5, 0.0))
    assert len({crop.place(80, 100, Item(0, 30, seed, 1.0)) for seed in range(20)}) > 10
