"""Crops: inside the image, as torchvision distributes and rounds them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import CenterCrop, RandomResizedCrop, Resize

from feedline.errors import UsageError
from feedline.images.crops import Box, EvalCrop, TrainCrop, cut
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


def test_crops_are_mirrored_with_requested_probability():
    for flip in (0.0, 0.2, 0.5, 1.0):
        crop = TrainCrop(flip=flip)
        flips = sum(crop.box(100, 100, RandomStream(seed)).flip for seed in range(4000))
        assert abs(flips / 4000 - flip) < 0.03


def test_extreme_aspect_ratio_gives_centre_crop_like_torchvision():
    crop = TrainCrop(scale=(0.9, 1.0))
    assert crop.box(10, 1000, RandomStream(3))[:4] == (0, 493, 10, 13)
    assert crop.box(1000, 10, RandomStream(3))[:4] == (493, 0, 13, 10)
    assert RandomResizedCrop.get_params(torch.zeros(3, 10, 1000), [0.9, 1], [3 / 4, 4 / 3]) == (
        0, 493, 10, 13,
    )  # fmt: skip


@pytest.mark.parametrize("flip", [0.0, 0.2, 1.0])
def test_centre_crop_is_mirrored_with_same_probability(flip):
    crop = TrainCrop(scale=(0.9, 1.0), flip=flip)
    boxes = [crop.box(10, 1000, RandomStream(seed)) for seed in range(2000)]
    assert {box[:4] for box in boxes} == {(0, 493, 10, 13)}
    assert abs(sum(box.flip for box in boxes) / 2000 - flip) < 0.04


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


def test_strength_never_reverses_scale():
    crop = TrainCrop(scale=(0.1, 0.4))
    box = crop.box(1000, 1000, RandomStream(1), 0.0)
    assert 0.39 < box.height * box.width / 1e6 < 0.41


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": (0.5, 0.2)}, r"scale.*got \(0.5, 0.2\)"),
        ({"scale": (0.0, 1.0)}, "scale.*got"),
        ({"scale": (0.5, 2.0)}, "scale.*got"),
        ({"scale": 0.5}, "scale must be two numbers.*got 0.5"),
        ({"scale": (0.5, float("nan"))}, "scale.*nan"),
        ({"ratio": (2.0, 1.0)}, "ratio.*got"),
        ({"ratio": (0.0, 1.0)}, "ratio.*got"),
        ({"ratio": ("a", "b")}, "ratio.*got"),
        ({"flip": 1.5}, "flip.*got 1.5"),
        ({"flip": None}, "flip.*got None"),
    ],
)
def test_settings_of_a_training_crop_are_checked(settings, message):
    with pytest.raises(UsageError, match=message):
        TrainCrop(**settings)


@pytest.mark.parametrize("fraction", [0, 1.01, -1, float("nan"), "a"])
def test_settings_of_an_evaluation_crop_are_checked(fraction):
    with pytest.raises(UsageError, match=r"fraction.*got"):
        EvalCrop(fraction)


def test_transforms_are_values():
    assert TrainCrop(scale=[0.1, 1]) == TrainCrop(scale=(0.1, 1))
    assert len({TrainCrop(), TrainCrop(), EvalCrop(), EvalCrop(0.875)}) == 2


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
