"""The compiled resize, by every implementation this processor has: torch's bytes, or Pillow's, for
every image and window, and never a byte too far."""

import platform
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.images import resize
from feedline.images.crops import Box, Window, cut
from feedline.images.resize import FILTERS
from fenced import Fenced

pytestmark = pytest.mark.skipif(resize.compiled is None, reason="not compiled")

# On aarch64, torch 2.9 repeats the first row if the result, here also transposed, has one column.
NARROWEST = 2 if platform.machine() == "aarch64" else 1


resample = resize.compiled.resample if resize.compiled else None
PATHS = resize.compiled.PATHS if resize.compiled else ()
LARGEST = 1 << 17  # pixels of a side


@pytest.fixture(scope="module", params=PATHS, autouse=True)
def path(request):
    resize.compiled.use_path(request.param)
    yield
    resize.compiled.use_path(PATHS[-1])


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def torchs(image, part, whole, corner, size, flip, mode="bilinear"):
    source = torch.from_numpy(cut(image, part).copy())
    resized = torch.nn.functional.interpolate(
        source.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last),
        size=whole,
        mode=mode,
        antialias=True,
    )[0].permute(1, 2, 0)
    window = resized[corner[0] : corner[0] + size, corner[1] : corner[1] + size].numpy()
    return window[:, ::-1] if flip else window


@st.composite
def tasks(draw):
    height, width = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    h, w = draw(st.integers(1, height)), draw(st.integers(1, width))
    part = (draw(st.integers(0, height - h)), draw(st.integers(0, width - w)), h, w)
    whole = draw(st.integers(NARROWEST, 150)), draw(st.integers(NARROWEST, 150))
    size = draw(st.integers(1, min(whole)))
    corner = draw(st.integers(0, whole[0] - size)), draw(st.integers(0, whole[1] - size))
    return (height, width), part, whole, corner, size, draw(st.booleans())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@settings(max_examples=400, deadline=None)
@given(tasks())
@example(((120, 120), (0, 0, 120, 120), (15, 15), (0, 0), 15, True))
@example(((120, 120), (0, 0, 120, 120), (2, 3), (0, 0), 2, True))
@example(((90, 90), (0, 0, 90, 90), (30, 60), (0, 3), 30, True))  # 3 : 1 and 1.5 : 1 exactly
@example(((90, 90), (0, 0, 90, 90), (120, 90), (0, 0), 90, False))  # 0.75 : 1 and 1 : 1
@example(((1, 1), (0, 0, 1, 1), (1, 1), (0, 0), 1, False))
def test_every_part_and_window_has_torch_bytes(mode, task):
    shape, part, whole, corner, size, flip = task
    image = noise(*shape)
    row = np.zeros((size, size, 3), np.uint8)
    assert resample(cut(image, part), row, *whole, *corner, flip, False, FILTERS.index(mode))
    assert np.array_equal(row, torchs(image, part, whole, corner, size, flip, mode))


@settings(max_examples=300, deadline=None)
@given(tasks(), st.sampled_from(FILTERS), st.sampled_from([1, 2, 3, 4]))
@example(((120, 120), (0, 0, 120, 120), (2, 3), (0, 0), 2, True), "bicubic", 3)
@example(((90, 90), (0, 0, 90, 90), (30, 60), (0, 3), 30, True), "bilinear", 3)
def test_every_part_and_window_has_pillow_bytes(task, filter, channels):
    shape, part, whole, corner, size, flip = task
    image = np.random.default_rng(2).integers(0, 256, (*shape, channels), dtype=np.uint8)
    source, row = cut(image, part), np.zeros((size, size, channels), np.uint8)
    resize.fill(row, source, Window(*whole, *corner, flip, filter), "pillow")
    top, left = corner
    for channel in range(channels):
        picture = Image.fromarray(np.ascontiguousarray(source[..., channel]))
        resized = np.asarray(picture.resize(whole[::-1], Image.Resampling[filter.upper()]))
        window = resized[top : top + size, left : left + size]
        assert np.array_equal(row[..., channel], window[:, ::-1] if flip else window)


@settings(max_examples=200, deadline=None)
@given(tasks(), st.sampled_from([1, 2, 4, 7, 8, 9, 20]))
def test_any_number_of_channels_has_torch_bytes(task, channels):
    shape, part, whole, corner, size, flip = task
    image = np.random.default_rng(0).integers(0, 256, (*shape, channels), dtype=np.uint8)
    row = np.zeros((size, size, channels), np.uint8)
    assert resample(cut(image, part), row, *whole, *corner, flip)
    for channel in range(channels):  # torch's results of other numbers of channels are these, too
        grey = np.repeat(image[..., channel : channel + 1], 3, 2)
        alone = np.zeros((size, size, 3), np.uint8)
        assert resample(cut(grey, part), alone, *whole, *corner, flip)
        assert np.array_equal(row[..., channel], alone[..., 0])
    if whole[1] > 1:  # torch repeats the first row of a single column
        assert np.array_equal(row, torchs(image, part, whole, corner, size, flip))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize(
    ("shape", "whole", "corner", "size"),
    [
        *(((h, w), (s, s), (0, 0), s) for h, w, s in ((375, 500, 224), (500, 333, 160))),
        *(((h, w), (s, s), (0, 0), s) for h, w, s in ((1600, 2400, 112), (3000, 4000, 224))),
        *(((h, w), (s, s), (0, 0), s) for h, w, s in ((40, 9000, 16), (9000, 20, 2))),
        ((3000, 70), (NARROWEST, NARROWEST), (0, 0), NARROWEST),
        ((40, 30), (4096, 4096), (4064, 2000), 32),
        ((40, 30), (32, LARGEST), (0, LARGEST - 32), 32),
    ],
)
def test_large_images_and_resizes_have_torch_bytes(shape, whole, corner, size, channels, mode):
    image = np.random.default_rng(0).integers(0, 256, (*shape, channels), dtype=np.uint8)
    height, width = shape
    for flip, part in ((True, (0, 0, *shape)), (False, (3, 5, height - 3, width - 5))):
        row = np.zeros((size, size, channels), np.uint8)
        numbers = (*whole, *corner, flip, False, FILTERS.index(mode))
        assert resample(cut(image, part), row, *numbers)
        assert np.array_equal(row, torchs(image, part, whole, corner, size, flip, mode))


@pytest.mark.parametrize("size", [1, 5, 11, 32, 40])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (7, 5), (33, 31), (100, 90)])
def test_nothing_is_touched_beyond_the_image_and_the_row(height, width, size):
    images, rows = Fenced(height * width * 3), Fenced(size * size * 3)
    expected = noise(height, width)
    for pixels in (images.at_start, images.at_end):
        image = pixels.reshape(height, width, 3)
        image[...] = expected
        for target in (rows.at_start, rows.at_end):
            row = target.reshape(size, size, 3)
            h, w = -(-height * 2 // 3), -(-width * 2 // 3)
            parts = (0, 0, h, w), (height - h, width - w, h, w), (0, 0, height, width)
            for flip, part, more in product((False, True), parts, (0, 7)):
                whole = (size + more, size + more)
                assert resample(cut(image, part), row, *whole, more, more, flip)
                assert np.array_equal(row, torchs(expected, part, whole, (more, more), size, flip))
                assert resample(cut(image, part), row, *whole, more, more, flip, 3)


def test_unsupported_input_is_left_unchanged():
    image, row = noise(90, 90), np.full((5, 5, 3), 7, np.uint8)
    assert not resample(image, row, LARGEST + 1, 90, 0, 0, False)
    assert not resample(image, row, 90, LARGEST + 1, 0, 0, False)
    assert not resample(image[::-1], row, 90, 90, 0, 0, False)
    assert not resample(image[:, ::-1], row, 90, 90, 0, 0, False)
    assert not resample(image[..., ::-1], row, 90, 90, 0, 0, False)
    assert not resample(image.transpose(1, 0, 2), row, 90, 90, 0, 0, False)
    assert (row == 7).all()


INSIDE = (16, 16, 0, 0, False, False, 0)


@pytest.mark.parametrize(
    ("shape", "numbers", "said"),
    [
        ((90, 90), (90, 15, 0, 0, False), "must lie in"),
        ((90, 90), (90, 90, 75, 0, False), "must lie in"),
        ((90, 90), (90, 90, 0, -1, False), "must lie in"),
        ((90, 90), (90, 90, 0, 2**62, False), "must lie in"),
        ((90, 90), (-(2**63) + 15, 16, 10**9, 0, False), "must lie in"),
        ((90, 90), (16, -(2**63) + 15, 0, 10**9, False), "must lie in"),
        ((0, 90), (90, 90, 0, 0, False), "must hold pixels"),
        ((90, 0), (90, 90, 0, 0, False), "must hold pixels"),
        ((10, 12), (*INSIDE, (-0.1, 0, 5, 5)), "box must lie in the image"),
        ((10, 12), (*INSIDE, (0, 8, 5, 4.5)), "box must lie in the image"),
        ((10, 12), (*INSIDE, (0, 0, 0, 5)), "box must lie in the image"),
        ((10, 12), (*INSIDE, (0, 0, 10.5, 5)), "box must lie in the image"),
        ((10, 12), (*INSIDE, (float("nan"), 0, 5, 5)), "box must lie in the image"),
        ((10, 12), (*INSIDE, (0, 0, float("inf"), 5)), "box must lie in the image"),
    ],
)
def test_pixels_outside_image_are_rejected(shape, numbers, said):
    row = np.full((16, 16, 3), 7, np.uint8)
    with pytest.raises(ValueError, match=said):
        resample(noise(*shape), row, *numbers)
    assert (row == 7).all()


def test_arrays_of_other_shapes_and_types_are_rejected():
    numbers = (8, 8, 0, 0, False)
    image, row = noise(8, 8), noise(8, 8)
    others = [image.astype(kind) for kind in (np.float32, np.int8, bool)]
    for wrong in (image[..., 0], image[..., :2], image[..., :0], image[None], *others):
        with pytest.raises(ValueError, match="must be uint8"):
            resample(wrong, row, *numbers)
    for wrong in (row[..., :2].copy(), row[0], row.astype(np.int16)):
        with pytest.raises(ValueError, match="must be uint8"):
            resample(image, wrong, *numbers)
    frozen = row.copy()
    frozen.flags.writeable = False
    for wrong in (frozen, noise(16, 16)[::2, ::2]):
        with pytest.raises((BufferError, ValueError)):
            resample(image, wrong, *numbers)
    with pytest.raises(TypeError):
        resample(image, row, *numbers[1:])
    with pytest.raises(TypeError):
        resample(image, row, "0", *numbers[1:])


@st.composite
def boxes(draw):
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    edges = []
    for length in (height, width):
        first = draw(st.floats(0, min(1.0, length * 0.9), exclude_max=True))
        edges.append(
            (first, draw(st.floats(max(length - first - 1, (length - first) / 10), length - first)))
        )
    (top, tall), (left, wide) = edges
    size = draw(st.integers(1, 70))
    return (height, width), (top, left, tall, wide), size, draw(st.booleans())


@settings(max_examples=300, deadline=None)
@given(boxes(), st.sampled_from(FILTERS), st.booleans(), st.sampled_from(["bytes", "pillow"]))
@example(((9, 9), (0.5, 0.25, 8.0, 8.5), 3, True), "bilinear", False, "bytes")
@example(((21, 21), (0.0, 0.0, 20.00001, 20.00001), 20, False), "bilinear", False, "bytes")
def test_a_box_between_pixels_has_the_same_bytes_without_the_compiled_resize(
    task, filter, whole, mode
):
    shape, edges, size, flip = task  # a weight of 1, others 0, in the last example
    edges = None if whole else edges
    image = noise(*shape)
    rows = np.zeros((2, size, size, 3), np.uint8)
    for row, quick in zip(rows, (True, False), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resize, "compiled", resize.compiled if quick else None)
            resize.fill(row, image, Box(0, 0, *shape, flip, edges, filter), mode)
    assert np.array_equal(*rows)
    if edges and filter == "bilinear":
        top, left, tall, wide = edges
        pillows = Image.fromarray(image).resize(
            (size, size), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + tall)
        )
        pillows = np.asarray(pillows).astype(int)
        assert np.abs(rows[0] - (pillows[:, ::-1] if flip else pillows)).max() <= 2


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("mode", ["bytes", "pillow"])
def test_a_box_of_one_ulp_at_the_end_reads_no_row_after_the_last(filter, mode):
    """The centres of its last rows and columns are rounded up to the end of the image."""
    image = Fenced(40 * 12 * 3).at_end.reshape(40, 12, 3)
    image[...] = noise(40, 12)
    rows, first = np.full((2, 7, 7, 3), 99, np.uint8), (np.nextafter(40, 0), np.nextafter(12, 0))
    placement = Box(0, 0, 40, 12, False, (*first, 40 - first[0], 12 - first[1]), filter)
    resize.fill(rows[0], image, placement, mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "compiled", None)
        resize.fill(rows[1], image, placement, mode)
    assert np.array_equal(*rows)
    # As in Pillow no source pixel has a weight there.
    assert rows[0, -1, -1].any() == (filter != "box")


@pytest.mark.parametrize("extent", [1e-7, 1e-300, 5e-324])
def test_box_smaller_than_a_pixel_is_that_pixel(extent):
    image, row = noise(9, 12), np.zeros((70, 70, 3), np.uint8)
    assert resample(image, row, 70, 70, 0, 0, False, False, 0, (4.5, 5.5, extent, extent))
    assert (row == image[4, 5]).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_side_beyond_32_bits_is_not_cut_off(axis):
    """An image of 2**32 + 1 equal rows, of which a box is resized; it was once truncated to one
    row."""
    image = np.lib.stride_tricks.as_strided(
        noise(8, 8), ((2**32 + 1, 8, 3), (8, 2**32 + 1, 3))[axis], (0, 3, 1)
    )
    row = np.full((4, 4, 3), 7, np.uint8)
    assert not resample(image, row, 4, 4, 0, 0, False, False, 0, (0.0, 0.0, 8.0, 8.0))
    assert (row == 7).all()
