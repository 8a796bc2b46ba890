"""Crops and windows of an image: inside it, as torchvision distributes and rounds them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from torchvision.transforms.functional import hflip

from feedline.errors import UsageError
from feedline.images.crops import Box, EvalCrop, TrainCrop, Window, WindowCrop, cut, scale_shape
from feedline.images.resize import fill
from feedline.order.batch_spec import Item
from feedline.order.seeds import RandomStream

SIDES = st.integers(1, 5000)
SEEDS = st.integers(0, 2**64 - 1)


@given(SIDES, SIDES, SEEDS, st.floats(0, 1), st.floats(0.01, 1), st.floats(0.1, 10))
def test_a_training_crop_lies_inside_the_image(height, width, seed, strength, low, ratio):
    crop = TrainCrop(scale=(low, 1.0), ratio=(ratio, ratio * 1.5))
    box = crop.box(height, width, RandomStream(seed), strength)
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= box.top + box.height <= height
    assert 0 <= box.left <= box.left + box.width <= width


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(375, 500, (0.08, 1.0)), (300, 900, (0.5, 1.0)), (90, 40, (0.3, 0.9))],
)
def test_distribution_equals_torchvision(height, width, scale):
    count = 3000
    image = torch.zeros(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = np.array(
            [RandomResizedCrop.get_params(image, list(scale), [3 / 4, 4 / 3]) for _ in range(count)]
        )
    crop = TrainCrop(scale=scale)
    ours = np.array([crop.box(height, width, RandomStream(seed))[:4] for seed in range(count)])
    # Two-sample Kolmogorov-Smirnov: 1.95 corresponds to p = 0.001, and seeds are fixed.
    allowed = 1.95 * math.sqrt(2 / count)
    for draw in (
        *((lambda boxes, k=k: boxes[:, k]) for k in range(4)),
        lambda boxes: boxes[:, 2] * boxes[:, 3],
        lambda boxes: boxes[:, 3] / boxes[:, 2],
    ):
        a, b = np.sort(draw(theirs)), np.sort(draw(ours))
        points = np.concatenate((a, b))
        gap = np.abs(
            np.searchsorted(a, points, "right") - np.searchsorted(b, points, "right")
        ).max()
        assert gap / count < allowed


LONG = [(10, 1000), (1000, 10)]


@pytest.mark.parametrize("flip", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(100, 100), *LONG])
def test_crops_are_mirrored_with_requested_probability_and_central_in_long_images(shape, flip):
    crop = TrainCrop(scale=(0.9, 1.0), flip=flip)
    boxes = [crop.box(*shape, RandomStream(seed)) for seed in range(4000)]
    assert abs(sum(box.flip for box in boxes) / 4000 - flip) < 0.03
    if shape in LONG:
        centre = RandomResizedCrop.get_params(torch.zeros(3, *shape), [0.9, 1], [3 / 4, 4 / 3])
        assert {box[:4] for box in boxes} == {centre}


@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
def test_strength_raises_the_smallest_area(strength):
    crop = TrainCrop()
    lowest = 1 - strength * (1 - 0.08)
    areas = [
        box.height * box.width / 500**2
        for box in (crop.box(500, 500, RandomStream(seed), strength) for seed in range(2000))
    ]
    assert min(areas) > lowest - 0.01
    assert min(areas) < lowest + 0.1
    box = TrainCrop(scale=(0.1, 0.4)).box(1000, 1000, RandomStream(1), 0.0)  # not reversed
    assert 0.39 < box.height * box.width / 1e6 < 0.41


@pytest.mark.parametrize(
    ("crop", "settings", "message"),
    [
        (TrainCrop, {"scale": (0.5, 0.2)}, r"scale.*got \(0.5, 0.2\)"),
        (TrainCrop, {"scale": (0.5, 2.0)}, "scale.*got"),
        (TrainCrop, {"scale": 0.5}, "scale must be two numbers.*got 0.5"),
        (TrainCrop, {"ratio": (2.0, 1.0)}, "ratio.*got"),
        (TrainCrop, {"ratio": (0.0, 1.0)}, "ratio.*got"),
        (TrainCrop, {"flip": 1.5}, "flip.*got 1.5"),
        (TrainCrop, {"flip": None}, "flip.*got None"),
        *((EvalCrop, {"fraction": f}, "fraction.*got") for f in (0, 1.01, float("nan"), "a")),
    ],
)
def test_settings_are_checked(crop, settings, message):
    with pytest.raises(UsageError, match=message):
        crop(**settings)


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 64), st.floats(0.3, 1))
def test_window_matches_torchvision_resize_and_crop(height, width, size, fraction):
    window = EvalCrop(fraction).place(height, width, Item(0, size, 0, 1.0))
    if window.height * window.width > 300_000:
        return
    # Its position is read from an image whose pixels encode their position.
    resized = Resize(round(size / fraction))(Image.new("RGB", (width, height)))
    assert (window.height, window.width) == (resized.height, resized.width)
    ys, xs = np.mgrid[: resized.height, : resized.width].astype(np.int32)
    for numbers, first in ((ys, window.top), (xs, window.left)):
        cut = np.asarray(CenterCrop(size)(Image.fromarray(numbers)))
        assert cut.shape == (size, size)
        assert cut.min() == first
        assert cut.max() == first + size - 1


@given(SIDES, SIDES, st.integers(1, 500), SEEDS)
def test_no_crop_is_decoded_below_row_size(height, width, size, seed):
    box = TrainCrop().box(height, width, RandomStream(seed))
    by = box.shrink(height, width, size)
    assert by in (1, 2, 4, 8)
    assert by == 1 or min(box.height, box.width) >= size * by
    assert by == 8 or min(box.height, box.width) < size * by * 2
    window = EvalCrop().place(height, width, Item(0, size, 0, 1.0))
    by = window.shrink(height, width, size)
    assert by in (1, 2, 4, 8)
    assert by == 1 or (height >= window.height * by and width >= window.width * by)


def test_a_box_is_unchanged_on_the_original():
    box = Box(3, 4, 5, 6, True)
    assert box.map_to_copy(100, 200, original=(100, 200)) is box
    assert box.map_to_copy(50, 100, original=(100, 200)) == Box(
        1, 2, 3, 3, True, (0.5, 0.0, 2.5, 3.0)
    )
    assert box.map_to_copy(200, 400, original=(100, 200)) == Box(6, 8, 10, 12, True)


@given(SIDES, SIDES, st.integers(1, 600), st.integers(1, 600), SEEDS)
def test_scaled_box_keeps_its_edges(height, width, to_height, to_width, seed):
    box = TrainCrop().box(height, width, RandomStream(seed))
    there = box.map_to_copy(to_height, to_width, original=(height, width))
    assert 0 <= there.top < there.top + there.height <= to_height
    assert 0 <= there.left < there.left + there.width <= to_width
    top, left, tall, wide = there.edges or (0.0, 0.0, there.height, there.width)
    assert 0 <= top < 1
    assert 0 <= left < 1
    assert tall > 0
    assert wide > 0
    assert top + tall <= there.height
    assert left + wide <= there.width
    for first, extent, was, was_extent, length, of in (
        (there.top + top, tall, box.top, box.height, to_height, height),
        (there.left + left, wide, box.left, box.width, to_width, width),
    ):
        assert first * of / length == pytest.approx(was, abs=2e-3 * of / length)
        assert (first + extent) * of / length == pytest.approx(
            was + was_extent, abs=2e-3 * of / length
        )
    again = there.map_to_copy(height, width, original=(to_height, to_width))
    assert abs(again.top - box.top) <= 1
    assert abs(again.left - box.left) <= 1


def test_region_outside_image_is_rejected():
    image = np.zeros((30, 40, 3), np.uint8)
    assert cut(image, (29, 39, 1, 1)).shape == (1, 1, 3)
    assert cut(image, None) is image
    for part in [(-1, 0, 5, 5), (0, -1, 5, 5), (26, 0, 5, 5), (0, 36, 5, 5), (3, 3, 0, 5)]:
        with pytest.raises(ValueError, match="must lie in the image of 30 x 40 pixels"):
            cut(image, part)


SIZES = [(90, 120), (131, 97), (33, 33), (201, 40), (57, 300)]


def coordinates(height, width):
    """An image whose pixels encode their position."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([y, x, y + x], axis=2).clip(0, 255).astype(np.uint8)


def test_square_resize_is_one_box():
    square = WindowCrop((64, 64), (64, 64), flip=1.0)
    assert square.place(90, 70, Item(0, 64, 1, 1.0)) == Box(0, 0, 90, 70, True)
    assert square.place(90, 70, Item(0, 32, 1, 1.0)) == Box(0, 0, 90, 70, True)
    larger = WindowCrop((64, 64), (48, 48))
    assert larger.place(90, 70, Item(0, 48, 1, 1.0)) == Window(64, 64, 8, 8, False)


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


@pytest.mark.parametrize(
    ("crop", "resized", "at"),
    [
        (WindowCrop(256, (224, 224)), {112: (128, 170, 8, 29), 160: (183, 244)}, 224),
        (WindowCrop(64, (64, 40), random=True), {32: (32, 42)}, 64),
        (WindowCrop((70, 64), (64, 40), random=True), {32: (35, 32)}, 64),
    ],
)
def test_other_sizes_show_the_same_region_keep_proportion_and_lie_inside(crop, resized, at):
    for size, expected in resized.items():
        assert crop.place(300, 400, Item(0, size, 1, 1.0))[: len(expected)] == expected
    for size in range(1, 300):
        rows, columns = scale_shape(crop.crop, size, at)
        assert (rows, columns) == (size, max(1, round(size * crop.crop[1] / at)))
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
