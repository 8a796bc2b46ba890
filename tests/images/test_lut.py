"""Pixels looked up in tables: compiled and by numpy, to the same bytes."""

import numpy as np
import pytest

from feedline.images import resize

DTYPES = ("uint8", "int16", "float16", "float32", "float64")


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(resize, "compiled_lut", None)
    elif resize.compiled_lut is None:
        pytest.skip("not compiled")


def given(height, width, dtype):
    rng = np.random.default_rng(height * width)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return image, (rng.normal(size=(3, 256)) * 100).astype(dtype)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 3), (5, 7), (32, 32), (31, 33), (0, 4)])
def test_every_pixel_has_its_channels_value_and_nothing_else_is_written(height, width, dtype):
    image, tables = given(height, width, dtype)
    image.flags.writeable = tables.flags.writeable = False
    size = 3 * height * width
    memory = np.full(size + 32, 77).astype(dtype)
    target = memory[16 : 16 + size].reshape(3, height, width)
    resize.apply_lut(image, tables, target)
    for channel in range(3):
        assert np.array_equal(target[channel], tables[channel][image[..., channel]])
    assert (memory[:16] == 77).all()
    assert (memory[16 + size :] == 77).all()


@pytest.mark.usefixtures("way")
def test_lookup_keeps_every_bit():
    tables = np.full((3, 256), np.nan, np.float32)
    tables.view(np.uint32)[:] |= np.arange(768, dtype=np.uint32).reshape(3, 256)
    image = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    target = np.zeros((3, 16, 16), np.float32)
    resize.apply_lut(image, tables, target)
    assert target.tobytes() == tables.tobytes()


UNFIT = {
    "an image of floats": lambda i, t, r: (i.astype(np.float32), t, r),
    "an image of signed bytes": lambda i, t, r: (i.view(np.int8), t, r),
    "four channels": lambda i, t, r: (np.zeros((6, 5, 4), np.uint8), t, r),
    "a flat image": lambda i, t, r: (i.reshape(-1), t, r),
    "an image that skips pixels": lambda i, t, r: (np.zeros((6, 10, 3), np.uint8)[:, ::2], t, r),
    "tables too short": lambda i, t, r: (i, t[:, :255].copy(), r),
    "tables of another dtype": lambda i, t, r: (i, t.astype(np.float64), r),
    "tables of another dtype of that size": lambda i, t, r: (i, t.view(np.int32), r),
    "turned tables": lambda i, t, r: (i, np.asfortranarray(t), r),
    "a target too wide": lambda i, t, r: (i, t, np.zeros((3, 6, 7), np.float32)),
    "a turned target": lambda i, t, r: (i, t, np.zeros((3, 5, 6), np.float32)),
    "a target in another order": lambda i, t, r: (i, t, np.asfortranarray(r)),
    "two channels of target": lambda i, t, r: (i, t, r[:2]),
}


@pytest.mark.skipif(resize.compiled_lut is None, reason="not compiled")
@pytest.mark.parametrize("case", UNFIT)
def test_invalid_arguments_raise_and_write_nothing(case):
    image, tables = given(6, 5, "float32")
    target = np.zeros((3, 6, 5), np.float32)
    image, tables, target = UNFIT[case](image, tables, target)
    with pytest.raises((ValueError, BufferError)):
        resize.apply_lut(image, tables, target)
    assert not target.any()
