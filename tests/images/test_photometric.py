"""Colours and blurs, compiled: Pillow's bytes for every colour, and never a byte too far."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import functional

photometric = pytest.importorskip("feedline.images._photometric", reason="not compiled")

CHANGES = {
    0: functional.adjust_brightness,
    1: functional.adjust_contrast,
    2: functional.adjust_saturation,
    3: functional.adjust_hue,
    4: lambda image, factor: functional.to_grayscale(image, 3),
}


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def every_colour(step):
    levels = np.arange(0, 256, step, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    return np.ascontiguousarray(colours[None])


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("factor", [-0.5, -0.31, -0.1, 0.0, 0.02, 0.25, 0.499, 0.5])
def test_colours_equal_pillow_exactly(kind, factor):
    amount = factor if kind == 3 else 1 + 2 * factor
    near = np.array([(a, b, c) for a in range(0, 256, 17) for b in range(7) for c in range(7)])
    for image in (every_colour(5), near[None].astype(np.uint8), noise(37, 41), noise(1, 1)):
        target = np.empty_like(image)
        photometric.adjust(image, target, kind, amount)
        theirs = np.asarray(CHANGES[kind](Image.fromarray(image), amount))
        assert np.array_equal(target, theirs)


@pytest.mark.parametrize("shape", [(40, 50), (12, 13), (50, 12)])
@pytest.mark.parametrize("taps", [(1, 1), (3, 23), (23, 3), (9, 9)])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 2.0])
def test_blur_matches_torchvision_within_a_level(shape, taps, sigma):
    image = noise(*shape)
    kernels = []
    for count in taps:
        half = (count - 1) / 2
        weights = np.exp(-0.5 * (np.linspace(-half, half, count) / sigma) ** 2)
        kernels.append((weights / weights.sum()).astype(np.float32))
    if taps[0] // 2 >= shape[1] or taps[1] // 2 >= shape[0]:
        pytest.skip("no room to mirror")
    target = np.empty_like(image)
    photometric.blur(image, target, *kernels)
    theirs = functional.gaussian_blur(torch.from_numpy(image).permute(2, 0, 1), taps, [sigma] * 2)
    difference = np.abs(target.astype(int) - theirs.permute(1, 2, 0).numpy())
    assert difference.max() <= 1
    assert difference.mean() <= 0.01


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (3, 5), (12, 13), (37, 131)])
def test_blur_by_boxes_equals_pillow_exactly(shape):
    image = noise(*shape)
    for across in (0.0, 0.05, 0.1, 0.7, 1.0, 1.41, 2.0, 2.449, 2.5, 3.3, 4.9):
        for down in (across, 0.0, 1.3):
            target = np.empty_like(image)
            photometric.blur_boxes(image, target, across, down)
            theirs = Image.fromarray(image).filter(ImageFilter.GaussianBlur((across, down)))
            assert np.array_equal(target, np.asarray(theirs))


def test_invalid_arguments_raise_and_write_nothing():
    image, target = noise(9, 9), np.full((9, 9, 3), 7, np.uint8)
    kernel = np.full(3, 1 / 3, np.float32)
    empty = np.zeros((0, 9, 3), np.uint8)
    for wrong in (image[:5], image[..., 0], image.astype(np.float32), empty):
        with pytest.raises(ValueError, match="alike"):
            photometric.adjust(np.ascontiguousarray(wrong), target, 0, 1.0)
    for kind, factor in ((-1, 1.0), (5, 1.0), (0, float("nan")), (3, float("inf")), (3, 0.6)):
        with pytest.raises(ValueError, match="no such change"):
            photometric.adjust(image, target, kind, factor)
    for wrong in (np.ones(2, np.float32), np.ones(19, np.float32), np.ones(3), np.ones((1, 3))):
        with pytest.raises(ValueError, match="kernels must be"):
            photometric.blur(image, target, kernel, wrong)
        with pytest.raises(ValueError, match="kernels must be"):
            photometric.blur(image, target, wrong, kernel)
    for wrong in (-0.1, 6.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="standard deviations"):
            photometric.blur_boxes(image, target, wrong, 1.0)
    with pytest.raises((ValueError, BufferError)):
        photometric.adjust(image[:, ::-1], target, 0, 1.0)
    other, turned, same = noise(9, 8), (1, 0.1, 0, -0.1, 1, 0), (1, 0, 0, 0, 1, 0)
    nan, far = (float("nan"), *same[1:]), (1, 0, 4e4, 0, 1, 0)
    for call in (
        lambda: photometric.sharpen(other, target, 1.0),
        lambda: photometric.sharpen(image, image, 1.0),
        lambda: photometric.sharpen(image, target, float("inf")),
        lambda: photometric.look_up(other, target, bytes(768)),
        lambda: photometric.look_up(image, target, bytes(767)),
        lambda: photometric.count(image, np.empty((3, 255), np.uint32)),
        lambda: photometric.count(image, np.empty((3, 256), np.int64)),
        lambda: photometric.count(image[..., :2].copy(), np.empty((3, 256), np.uint32)),
        lambda: photometric.warp(image, image, turned, 1),
        lambda: photometric.warp(image, target, turned, 3),
        lambda: photometric.warp(image, target, nan, 1),
        lambda: photometric.warp(image, target, far, 2),
        lambda: photometric.warp(image, other[..., :2].copy(), turned, 1),
    ):
        with pytest.raises(ValueError, match=r"."):
            call()
    assert (target == 7).all()


@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (9, 2), (3, 3), (37, 41)])
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7, 4.0])
def test_sharpness_equals_pillow_exactly(shape, factor):
    image = noise(*shape)
    target = np.empty_like(image)
    photometric.sharpen(image, target, factor)
    theirs = functional.adjust_sharpness(Image.fromarray(image), factor)
    assert np.array_equal(target, np.asarray(theirs))


@pytest.mark.parametrize("taps", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (37, 41)])
def test_maps_equal_pillow_exactly(shape, taps):
    image, random = noise(*shape), np.random.default_rng(0)
    filters = {1: Image.NEAREST, 2: Image.BILINEAR}
    for case in range(60):
        matrix = random.uniform(-1.5, 1.5, 6)
        matrix[[2, 5]] *= 20
        if case % 3 == 0:
            matrix[[1, 3]] = 0
        if case % 5 == 0:
            matrix = np.round(matrix)
        target = np.zeros((29, 33, 3), np.uint8)
        photometric.warp(image, target, tuple(matrix), taps)
        theirs = Image.fromarray(image).transform(
            (33, 29), Image.AFFINE, tuple(matrix), filters[taps]
        )
        assert np.array_equal(target, np.asarray(theirs))


@pytest.mark.parametrize("factor", [3.4e38, 1e39, 1e300])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_factor_beyond_all_floats_only_saturates(factor, sign):
    image = np.concatenate([noise(9, 9), np.full((9, 9, 3), 77, np.uint8)])
    for kind in range(3):
        target, large = np.empty((2, *image.shape), np.uint8)
        photometric.adjust(image, target, kind, sign * factor)
        photometric.adjust(image, large, kind, sign * 1e9)
        assert np.array_equal(target, large)
    photometric.sharpen(image, target, sign * factor)
    photometric.sharpen(image, large, sign * 1e9)
    assert np.array_equal(target, large)


@pytest.mark.parametrize("value", [1e30, -1e30, float("nan"), float("inf")])
def test_a_kernel_of_any_values_only_saturates(value):
    image, target = np.full((9, 9, 3), 5, np.uint8), np.empty((9, 9, 3), np.uint8)
    photometric.blur(image, target, np.ones(1, np.float32), np.full(3, value, np.float32))
    assert (target == (255 if value > 0 else 0)).all()
