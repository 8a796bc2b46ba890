"""The ways of resizing against those whom they follow."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, resize
from torchvision.transforms.v2 import functional as v2

from feedline.images import resize as module
from feedline.images.crops import Box, Window
from feedline.images.resize import fill_as
from torchvision_folder import TENSOR_LEVELS

SHAPES = [(40, 60), (90, 40), (300, 110), (110, 300), (131, 97), (64, 64), (30, 25), (64, 90)]


def noise(height, width):
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def theirs(way, image, size):
    picture = Image.fromarray(image)
    if way == "pillow":
        return np.asarray(resize(picture, list(size)))
    tensor = pil_to_tensor(picture)
    made = resize(tensor, list(size)) if way == "floats" else v2.resize(tensor, list(size))
    return made.permute(1, 2, 0).numpy()


@pytest.fixture(params=["compiled", "torch"])
def resampler(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(module, "compiled", None)


@pytest.mark.usefixtures("resampler")
@pytest.mark.parametrize("way", ["pillow", "bytes", "floats"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("flip", [False, True])
def test_box_matches_torchvision(way, shape, flip):
    image = noise(*shape)
    image.flags.writeable = False
    before = image.copy()
    for placement, whole, first in (
        (Box(0, 0, *shape, flip), (64, 64), (0, 0)),
        (Window(40, 55, 3, 7, flip), (40, 55), (3, 7)),
    ):
        row = np.zeros((64, 64, 3) if isinstance(placement, Box) else (32, 32, 3), np.uint8)
        fill_as(way, row, image, placement)
        shown = tuple(slice(at, at + len(row)) for at in first)
        expected = theirs(way, image, whole)[shown]
        apart = np.abs(row.astype(np.int16) - (expected[:, ::-1] if flip else expected))
        assert apart.max() <= (TENSOR_LEVELS if way == "bytes" else 0)
    assert np.array_equal(image, before)


@pytest.mark.usefixtures("resampler")
@pytest.mark.parametrize("way", ["pillow", "bytes", "floats"])
def test_an_image_of_one_row_and_very_many_columns_is_cut_in_bounded_memory(way):
    row = np.zeros((32, 32, 3), np.uint8)
    fill_as(way, row, noise(1, 60_000), Window(36, 2_160_000, 2, 1_000_000, True))
    assert row.any()
