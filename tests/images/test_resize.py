"""A part of an image into a row: torchvision's pixels, in place, compiled and by torch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from feedline.images import resize
from feedline.images.crops import Box, EvalCrop, Window, cut
from feedline.images.resize import fill
from feedline.order.batch_spec import Item

BILINEAR = InterpolationMode.BILINEAR


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(resize, "compiled", None)
    elif resize.compiled is None:
        pytest.skip("not compiled")


def photograph(height, width):
    y, x = np.mgrid[:height, :width] / max(height, width, 2)
    noise = np.random.default_rng(1).integers(0, 60, (height, width, 1))
    waves = np.stack((np.sin(9 * x + y), np.cos(14 * y), np.sin(30 * x * y)), -1)
    return (waves * 90 + 95 + noise).clip(0, 255).astype(np.uint8)


def torchvisions(image, box, size):
    crop = reference.resized_crop(
        Image.fromarray(image), box.top, box.left, box.height, box.width, [size, size], BILINEAR
    )
    return np.asarray(reference.hflip(crop) if box.flip else crop)


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int)).mean()


def filled(image, placement, size):
    """Fill the middle one of three rows; fail if another one changes."""
    rows = np.full((3, size, size, 3), 77, np.uint8)
    fill(rows[1], cut(image, placement.part), placement)
    assert (rows[[0, 2]] == 77).all()
    return rows[1]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [224, 112])
@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 375, 500),
        (10, 20, 300, 260),
        (3, 5, 100, 90),
        (100, 7, 60, 400),
        (0, 100, 370, 30),
        (5, 5, 224, 224),
        (5, 5, 112, 112),
        (374, 499, 1, 1),
        (0, 0, 1, 500),
        (0, 250, 375, 1),
        (40, 0, 225, 224),
    ],
)
def test_crop_has_torchvision_pixels(box, size, flip):
    image = photograph(375, 500)
    box = Box(*box, flip)
    assert difference(filled(image, box, size), torchvisions(image, box, size)) < 0.35


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_crop_of_any_image_has_torchvision_pixels(data):
    side = st.integers(1, 90)
    height, width, size = data.draw(side), data.draw(side), data.draw(st.integers(1, 40))
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = Box(
        top,
        left,
        data.draw(st.integers(1, height - top)),
        data.draw(st.integers(1, width - left)),
        data.draw(st.booleans()),
    )
    image = photograph(height, width)
    ours, theirs = filled(image, box, size), torchvisions(image, box, size)
    assert np.abs(ours.astype(int) - theirs).max() <= 2
    if size >= 8:  # the mean of a few pixels says nothing
        assert difference(ours, theirs) < 0.6


def test_a_crop_of_the_rows_size_is_copied_unchanged():
    image = photograph(100, 120)
    assert np.array_equal(filled(image, Box(7, 9, 64, 64, False), 64), image[7:71, 9:73])
    assert np.array_equal(filled(image, Box(7, 9, 64, 64, True), 64), image[7:71, 9:73][:, ::-1])


def test_in_place_resize_matches_torch_resize():
    image = photograph(375, 500)
    for box in (
        Box(10, 20, 300, 260, False),
        Box(0, 0, 375, 500, False),
        Box(9, 9, 40, 400, False),
        Box(30, 200, 100, 120, False),
        Box(7, 8, 224, 224, False),
    ):
        crop = image[box.top : box.top + box.height, box.left : box.left + box.width]
        source = torch.from_numpy(crop).permute(2, 0, 1).unsqueeze(0)
        theirs = torch.nn.functional.interpolate(
            source, size=(224, 224), mode="bilinear", antialias=True
        )
        assert np.array_equal(filled(image, box, 224), theirs[0].permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    "shape",
    [(375, 500), (500, 375), (256, 256), (256, 300), (257, 256), (60, 40), (224, 224), (700, 90)],
)
@pytest.mark.parametrize("size", [224, 112, 7])
def test_evaluation_crop_has_torchvision_pixels(shape, size):
    image = photograph(*shape)
    for fraction in (0.875, 1.0, 0.7):
        theirs = reference.center_crop(
            reference.resize(Image.fromarray(image), round(size / fraction), BILINEAR), size
        )
        ours = filled(image, EvalCrop(fraction).place(*shape, Item(0, size, 0, 1.0)), size)
        assert difference(ours, np.asarray(theirs)) < 0.35


@pytest.mark.parametrize("shape", [(10, 900), (900, 10), (3, 200), (200, 1), (40, 2000)])
def test_centre_of_an_elongated_image_needs_bounded_memory(shape, monkeypatch):
    image = photograph(*shape)
    size = 32
    window = EvalCrop().place(*shape, Item(0, size, 0, 1.0))
    theirs = reference.center_crop(
        reference.resize(Image.fromarray(image), round(size / 0.875), BILINEAR), size
    )
    assert difference(filled(image, window, size), np.asarray(theirs)) < 0.6
    monkeypatch.setattr(resize, "_WHOLE_LIMIT", 0)
    ours = filled(image, window, size)
    assert difference(ours, np.asarray(theirs)) < 0.6
    assert abs(ours.mean() - np.asarray(theirs).mean()) < 0.1  # neither lighter nor darker


def test_an_image_of_one_row_and_very_many_columns_is_cut_in_bounded_memory():
    image = photograph(1, 60_000)
    row = filled(image, EvalCrop().place(1, 60_000, Item(0, 224, 0, 1.0)), 224)
    assert abs(int(row[100, 112, 0]) - int(image[0, 30_000, 0])) < 80


def test_read_only_and_strided_images_are_accepted_without_warning():
    plain = photograph(90, 70)
    frozen = plain.copy()
    frozen.flags.writeable = False
    boxes = (Box(2, 3, 80, 60, True), Box(2, 3, 20, 10, False), Box(2, 3, 70, 12, False))
    for image in (frozen, plain[::-1, ::-1][::-1, ::-1], np.asfortranarray(plain)):
        for placement in (*boxes, Window(40, 36, 3, 2)):
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                row = filled(image, placement, 32)
            assert np.array_equal(row, filled(plain, placement, 32))
    turned = plain.transpose(1, 0, 2)[::-1]
    for placement in boxes[1:2]:
        expected = filled(np.ascontiguousarray(turned), placement, 32)
        assert np.array_equal(filled(turned, placement, 32), expected)


def test_the_image_itself_is_not_changed():
    image = photograph(90, 70)
    before = image.copy()
    for placement in (Box(0, 0, 90, 70, True), Box(1, 1, 32, 32, True), Window(40, 36, 3, 2)):
        filled(image, placement, 32)
    assert np.array_equal(image, before)
