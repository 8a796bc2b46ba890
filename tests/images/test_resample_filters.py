"""Every filter: Pillow's pixels, torch's for its filters, and equal bytes on every code path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.images import resize
from feedline.images.crops import Box, Window
from feedline.images.resize import FILTERS, fill_as

PILLOWS = {
    "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}
sides = st.integers(1, 90)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def made(image, placement, height, width, mode="pillow"):
    row = np.zeros((height, width, 3), np.uint8)
    fill_as(mode, row, image, placement)
    return row


@pytest.mark.parametrize("filter", PILLOWS)
@settings(max_examples=120, deadline=None)
@given(sides, sides, sides, sides, st.booleans())
def test_pixels_equal_pillow(filter, h, w, height, width, flip):
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


@pytest.mark.skipif(resize.compiled is None, reason="not compiled")
@pytest.mark.parametrize("filter", FILTERS)
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60), st.integers(11, 60), st.integers(9, 60), st.integers(9, 60), st.booleans()
)
def test_without_the_compiled_part_the_bytes_are_the_same(filter, h, w, height, width, down_first):
    image = noise(h, w)
    edges = (0.25 * h, 0.125 * w, 0.5 * h, 0.75 * w)
    for placement in (Box(0, 0, h, w, True, None, filter), Box(0, 0, h, w, False, edges, filter)):
        rows = np.zeros((2, height, width, 3), np.uint8)
        resize.fill(rows[0], image, placement, down_first=down_first)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(resize, "compiled", None)
            resize.fill(rows[1], image, placement, down_first=down_first)
        assert np.array_equal(*rows)


@pytest.mark.parametrize("filter", FILTERS)
def test_small_region_of_enormous_resize_is_bounded(filter):
    row = made(noise(1, 60_000), Window(36, 2_160_000, 2, 1_000_000, True, filter), 32, 32)
    assert row.any()
