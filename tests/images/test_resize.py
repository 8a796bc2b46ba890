"""A part of an image into a row: pixels of Pillow and torchvision, in place, compiled and not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference
from torchvision.transforms.v2 import functional as v2

from feedline.images import resize
from feedline.images.crops import Box, EvalCrop, Window, cut
from feedline.images.resize import FILTERS, fill
from feedline.order.batch_spec import Item
from torchvision_folder import TENSOR_LEVELS

BILINEAR = InterpolationMode.BILINEAR
PILLOWS = {name: Image.Resampling[name.upper()] for name in FILTERS if "nearest" not in name}
PILLOWS["nearest-exact"] = Image.Resampling.NEAREST
sides = st.integers(1, 90)


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


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def made(image, placement, height, width, mode="pillow"):
    row = np.zeros((height, width, 3), np.uint8)
    fill(row, image, placement, mode)
    return row


@pytest.mark.parametrize("filter", PILLOWS)
@settings(max_examples=100, deadline=None)
@given(sides, sides, sides, sides, st.booleans())
def test_every_filter_has_the_pixels_of_pillow(filter, h, w, height, width, flip):
    image = noise(h, w)
    row = made(image, Box(0, 0, h, w, flip, None, filter), height, width)
    theirs = np.asarray(Image.fromarray(image).resize((width, height), PILLOWS[filter]))
    assert np.array_equal(row, theirs[:, ::-1] if flip else theirs)


@settings(max_examples=150, deadline=None)
@given(sides, sides, sides, sides)
def test_torch_nearest_equals_torch(h, w, height, width):
    image = noise(h, w)
    row = made(image, Box(0, 0, h, w, False, None, "nearest"), height, width, "bytes")
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None]
    theirs = torch.nn.functional.interpolate(tensor, size=(height, width), mode="nearest")
    assert np.array_equal(row, theirs[0].permute(1, 2, 0).numpy())


def resized(mode, image, size):
    """torchvision's resize that a mode of `fill` follows."""
    picture = Image.fromarray(image)
    if mode == "pillow":
        return np.asarray(reference.resize(picture, list(size)))
    tensor = reference.pil_to_tensor(picture)
    resize = reference.resize if mode == "floats" else v2.resize
    return resize(tensor, list(size)).permute(1, 2, 0).numpy()


SHAPES = [(40, 60), (90, 40), (300, 110), (110, 300), (131, 97), (64, 64), (30, 25), (64, 90)]


@pytest.mark.parametrize("mode", ["pillow", "bytes", "floats"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("flip", [False, True])
def test_box_and_window_match_torchvision(mode, shape, flip):
    image = noise(*shape)
    image.flags.writeable = False
    before = image.copy()
    for placement, whole, (top, left), side in (
        (Box(0, 0, *shape, flip), (64, 64), (0, 0), 64),
        (Window(40, 55, 3, 7, flip), (40, 55), (3, 7), 32),
    ):
        row = made(image, placement, side, side, mode)
        expected = resized(mode, image, whole)[top : top + side, left : left + side]
        apart = np.abs(row.astype(np.int16) - (expected[:, ::-1] if flip else expected))
        assert apart.max() <= (TENSOR_LEVELS if mode == "bytes" else 0)
    assert np.array_equal(image, before)


@pytest.mark.parametrize("mode", ["pillow", "bytes", "floats"])
@pytest.mark.parametrize("filter", FILTERS)
def test_small_region_of_enormous_resize_is_bounded(filter, mode):
    window = Window(36, 2_160_000, 2, 1_000_000, True, filter)
    assert made(noise(1, 60_000), window, 32, 32, mode).any()


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int)).mean()


def filled(image, placement, size):
    """Fill the middle one of three rows; fail if another one changes."""
    rows = np.full((3, size, size, 3), 77, np.uint8)
    fill(rows[1], cut(image, placement.part), placement)
    assert (rows[[0, 2]] == 77).all()
    return rows[1]


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


def test_read_only_and_strided_images_are_accepted_without_warning():
    plain = photograph(90, 70)
    frozen = plain.copy()
    frozen.flags.writeable = False
    turned = plain.transpose(1, 0, 2)[::-1].copy().transpose(1, 0, 2)[:, ::-1]
    for image in (frozen, np.asfortranarray(plain), turned):
        for placement in (Box(2, 3, 80, 60, True), Box(2, 3, 20, 10, False), Window(40, 36, 3, 2)):
            row = filled(image, placement, 32)  # a warning would be an error
            assert np.array_equal(row, filled(plain, placement, 32))
