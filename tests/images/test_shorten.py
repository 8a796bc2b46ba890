"""Rows above a crop's lower edge, decoded without those below it: the same to the last bit."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from feedline.errors import ImageError
from feedline.images.decode import Scratch, Wanted, decode
from feedline.images.shorten import baseline_frame, shorten

HEIGHT, WIDTH = 150, 131


def pixels(height=HEIGHT, width=WIDTH):
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(7).integers(0, 60, (height, width, 3))
    planes = np.stack((x * 190 // width, y * 190 // height, (x * y) % 190), -1)
    return np.ascontiguousarray((planes + noise).astype(np.uint8))


def jpeg(subsampling="420", **options):
    if subsampling == "Gray":
        grey = np.ascontiguousarray(pixels()[..., :1])
        return simplejpeg.encode_jpeg(grey, 90, "GRAY", "Gray", **options)
    return simplejpeg.encode_jpeg(pixels(), 90, "RGB", subsampling, **options)


def by_pillow(**options):
    file = io.BytesIO()
    Image.fromarray(pixels()).save(file, "JPEG", **options)
    return file.getvalue()


def upper(data, rows, by=1):
    return decode(data, Scratch(), wanted=lambda _h, _w: Wanted(by, rows))


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
def test_every_number_of_rows_comes_as_from_the_whole(subsampling):
    data = jpeg(subsampling)
    whole = decode(data, Scratch()).copy()
    shorter = 0
    for rows in range(1, HEIGHT + 1):
        part = upper(data, rows)
        assert np.array_equal(part[:rows], whole[:rows])
        shorter += len(part) < HEIGHT
    assert shorter > 100


@pytest.mark.parametrize("by", [2, 4, 8])
@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
def test_rows_of_an_image_decoded_smaller_too(subsampling, by):
    data = jpeg(subsampling)
    whole = decode(data, Scratch(), wanted=lambda _h, _w: Wanted(by)).copy()
    for rows in range(1, len(whole) + 1):
        assert np.array_equal(upper(data, rows, by)[:rows], whole[:rows])


@pytest.mark.parametrize(
    "options",
    [{"progressive": True}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 3}],
    ids=lambda options: next(iter(options)),
)
def test_other_orders_of_the_rows_are_decoded_whole(options):
    data = by_pillow(**options)
    part = upper(data, 20)
    assert len(part) == HEIGHT
    assert np.array_equal(part, decode(data, Scratch()))


def test_a_frame_in_several_scans_is_left_as_it_is():
    data = bytearray(jpeg())
    scan = data.index(b"\xff\xda")
    data[scan + 4] = 1  # says that the first scan holds one of three components
    assert baseline_frame(bytes(data)) is None


def test_little_below_the_crop_is_not_worth_it():
    data = jpeg()
    frame = baseline_frame(data)
    assert shorten(data, frame, HEIGHT - 4) is None
    assert shorten(data, frame, 20)[1] < 30


def test_application_data_that_looks_like_a_frame_header_is_passed_over():
    data = jpeg()
    frame = data[data.index(b"\xff\xc0") :][:19]
    disguised = data[:2] + b"\xff\xe5" + (2 + len(frame)).to_bytes(2, "big") + frame + data[2:]
    whole = decode(data, Scratch()).copy()
    part = upper(disguised, 30)
    assert len(part) < HEIGHT
    assert np.array_equal(part[:30], whole[:30])


def test_a_file_without_an_end_is_an_error_whatever_is_wanted_of_it():
    data = jpeg()
    for length in (len(data) // 3, len(data) * 9 // 10, len(data) - 1):
        with pytest.raises(ImageError, match="ends before its last pixel"):
            upper(data[:length], 20)


def test_what_is_missing_is_an_error_where_it_is_wanted_and_only_there():
    data = jpeg()
    whole = decode(data, Scratch()).copy()
    cut = data[: len(data) * 2 // 3] + b"\xff\xd9"
    assert np.array_equal(upper(cut, 20)[:20], whole[:20])
    with pytest.raises(ImageError, match="ends before its last pixel"):
        upper(cut, HEIGHT - 10)


def test_damage_in_the_wanted_rows_is_decided_as_for_the_whole():
    data = jpeg()
    rng = np.random.default_rng(3)
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(2, len(data), 2):
            broken[at] = rng.integers(256)
        outcome = []
        for rows in (None, 40):
            try:
                outcome.append(upper(bytes(broken), rows)[:40].copy())
            except ImageError:
                outcome.append(None)
        if outcome[0] is not None:
            assert np.array_equal(outcome[0], outcome[1])


def test_the_frame_header_says_what_libjpeg_says():
    for data, colours in ((jpeg("Gray"), 1), (jpeg("444"), 3), (by_pillow(), 3)):
        frame = baseline_frame(data)
        assert (frame.height, frame.width, frame.colours) == (HEIGHT, WIDTH, colours)
    cmyk = io.BytesIO()
    Image.fromarray(pixels()).convert("CMYK").save(cmyk, "JPEG")
    assert baseline_frame(cmyk.getvalue()).colours == 4


def test_any_bytes_get_an_answer():
    data = jpeg()
    assert all(baseline_frame(data[:length]) is None for length in range(data.index(b"\xff\xda")))
    rng = np.random.default_rng(4)
    for _ in range(500):
        baseline_frame(b"\xff\xd8" + rng.bytes(60))
        broken = bytearray(data[:800])
        broken[rng.integers(2, 800)] = rng.integers(256)
        baseline_frame(bytes(broken))
