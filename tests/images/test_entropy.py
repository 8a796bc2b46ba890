"""Huffman codes that feedline reads in libjpeg's place: libjpeg's coefficients, or none."""

import functools

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.images.jpeg import compiled_decoder
from image_files import damaged, random_jpeg
from jpegs import (
    HEIGHT,
    KINDS,
    SAMPLINGS,
    WIDTH,
    by_pillow,
    compiled,
    cut_out,
    decoder_by,
    encoded,
    libraries,
    picture,
    read,
    some_parts,
    whole,
)

pytestmark = compiled

SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0"]


def by_libjpeg(data, part=None, by=1):
    """A part by a decoder in which libjpeg reads the codes itself; all for None."""
    decoder = compiled_decoder()
    decoder.reads_codes = False
    size = decoder.open(data)
    if size is None:
        return None
    return read(decoder, data, part or (0, 0, -(-size[0] // by), -(-size[1] // by)), by)


def scan_at(data):
    """Start and end of the entropy-coded data."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big"), len(data) - 2


@functools.cache
def restarted(blocks=2, **options):
    return by_pillow(restart_marker_blocks=blocks, quality=90, **options)


def segments(data):
    """Data before the entropy-coded data, and the codes of each segment without markers."""
    first, last = scan_at(data)
    parts, start = [], first
    for at in range(first, last):
        if data[at] == 0xFF and 0xD0 <= data[at + 1] <= 0xD7:
            parts.append(data[start:at])
            start = at + 2
    return data[:first], [*parts, data[start:last]]


def joined(head, parts, number=lambda k: k % 8):
    """The opposite of `segments`."""
    codes = parts[0]
    for k, part in enumerate(parts[1:]):
        codes += bytes((0xFF, 0xD0 + number(k))) + part
    return head + codes + b"\xff\xd9"


@pytest.mark.parametrize("library", libraries())
def test_entropy_codes_are_read_natively(library):
    assert decoder_by(library).reads_codes


def test_codes_read_without_bmi2_have_the_same_pixels():
    decoder = compiled_decoder()
    decoder._bmi2 = False
    dice = np.random.default_rng(3)
    for data in (*(KINDS[kind]() for kind in KINDS), *(random_jpeg(dice) for _ in range(40))):
        size = decoder.open(data)
        part = (size[0] // 3, size[1] // 3, size[0] - size[0] // 3, size[1] - size[1] // 3)
        assert np.array_equal(read(decoder, data, part), by_libjpeg(data, part))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_region_equals_the_whole_for_any_restart_interval(data):
    height, width = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 100))
    sort = data.draw(st.sampled_from(["noise", "shades", "stripes", "flat"]))
    grey = data.draw(st.booleans())
    if data.draw(st.integers(0, 3)) == 0:  # samplings that Pillow does not write
        image = encoded(data.draw(st.sampled_from(SAMPLINGS)), height, width)
    else:
        image = by_pillow(
            "L" if grey else "RGB",
            pixels=pixels_of(sort, height, width),
            quality=data.draw(st.sampled_from([1, 50, 90, 95, 100])),
            subsampling="4:4:4" if grey else data.draw(st.sampled_from(SUBSAMPLINGS)),
            optimize=data.draw(st.booleans()),
            progressive=data.draw(st.booleans()),
            restart_marker_blocks=data.draw(st.integers(0, 60)),
        )
    by = data.draw(st.sampled_from((1, 2, 4, 8)))
    rows, columns = -(-height // by), -(-width // by)
    h, w = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    part = data.draw(st.integers(0, rows - h)), data.draw(st.integers(0, columns - w)), h, w
    expected = cut_out(by_libjpeg(image, None, by), part)
    assert np.array_equal(read(compiled_decoder(), image, part, by), expected)
    if by == 1:
        assert np.array_equal(expected, cut_out(simplejpeg.decode_jpeg(image, "RGB"), part))


def pixels_of(sort, height, width):
    y, x = np.mgrid[:height, :width]
    if sort == "noise":  # long codes, and blocks without an end of theirs
        return np.random.default_rng(height).integers(0, 256, (height, width, 3)).astype(np.uint8)
    if sort == "stripes":  # long runs of zeros
        return np.stack([(x % 2 * 255), (y % 2 * 255), ((x ^ y) % 2 * 255)], -1).astype(np.uint8)
    if sort == "shades":
        return picture(height, width)
    return np.full((height, width, 3), 77, np.uint8)


@pytest.mark.parametrize("quality", [85, 100])
@pytest.mark.parametrize("blocks", [0, 7, 3000])
def test_segments_larger_than_read_buffer(blocks, quality):
    pixels = pixels_of("noise", 400, 600)
    options = {"restart_marker_blocks": blocks} if blocks else {}
    data = by_pillow(pixels=pixels, quality=quality, subsampling="4:2:0", **options)
    decoder, expected = compiled_decoder(), whole(data)
    for part in some_parts(400, 600, 20):
        assert np.array_equal(read(decoder, data, part), cut_out(expected, part))


def test_other_segments_are_not_read():
    head, parts = segments(restarted())
    across = -(-WIDTH // 16)
    assert len(parts) == -(-across * -(-HEIGHT // 16) // 2)
    part = 50, 40, 30, 40  # and its neighbours: MCUs of rows 3 to 5, columns 2 to 5
    needed = {(row * across + column) // 2 for row in (3, 4, 5) for column in (2, 3, 4, 5)}
    broken = [codes if k in needed else b"\x55" for k, codes in enumerate(parts)]
    data = joined(head, broken)
    expected = cut_out(whole(restarted()), part)
    assert np.array_equal(read(compiled_decoder(), data, part), expected)
    assert by_libjpeg(data, part) is None
    for k in needed:  # and no less than those is needed
        without = joined(head, [*broken[:k], b"\x55", *broken[k + 1 :]])
        assert read(compiled_decoder(), without, part) is None


def test_restart_markers_out_of_order_fall_back():
    head, parts = segments(restarted())
    last = (HEIGHT - 20, 0, 20, WIDTH)
    good = joined(head, parts)
    assert good == restarted()
    assert read(compiled_decoder(), good, last) is not None
    swapped = joined(head, [*parts[:3], parts[4], parts[3], *parts[5:]], lambda k: (k ^ 1) % 8)
    shifted = joined(head, parts, lambda k: (k + 1) % 8)
    fewer = joined(head, [*parts[:9], *parts[10:]])
    more = joined(head, [*parts[:9], parts[9], *parts[9:]], lambda k: (k if k < 9 else k - 1) % 8)
    other = good.replace(b"\xff\xd3", b"\xff\xe3", 1)
    none = joined(head, [b"".join(parts)])
    for data in (swapped, shifted, more, other, none, fewer):
        assert read(compiled_decoder(), data, last) is None
    # Data before the disorder is intact; fill bytes before a marker are valid, too.
    assert np.array_equal(read(compiled_decoder(), fewer, (0, 0, 9, 90)), whole(good)[:9, :90])
    filled = good.replace(b"\xff\xd3", b"\xff\xff\xff\xd3")
    assert np.array_equal(read(compiled_decoder(), filled, last), cut_out(whole(good), last))


def test_segment_of_wrong_length_falls_back():
    head, parts = segments(restarted())
    part = (0, 0, 10, 60)  # of segments 0 and 1
    assert read(compiled_decoder(), joined(head, parts), part) is not None
    for k in (0, 1):
        for codes in (parts[k][:-1], parts[k][:-3], b"", parts[k] + b"\0", parts[k] * 2):
            data = joined(head, [*parts[:k], codes, *parts[k + 1 :]])
            assert read(compiled_decoder(), data, part) is None
    data = joined(head, [parts[0] + b"\xff\xff\0", *parts[1:]])  # one byte of data for libjpeg
    assert by_libjpeg(data) is None
    assert read(compiled_decoder(), data, part) is None


def test_wrong_restart_interval_falls_back():
    data = restarted()
    at = data.index(b"\xff\xdd") + 4
    assert data[at : at + 2] == b"\0\2"
    for interval in (1, 3, 5, 90, 65535):
        other = data[:at] + interval.to_bytes(2, "big") + data[at + 2 :]
        assert read(compiled_decoder(), other, (0, 0, HEIGHT, WIDTH)) is None
    without = data[:at] + b"\0\0" + data[at + 2 :]
    assert read(compiled_decoder(), without, (0, 0, HEIGHT, WIDTH)) is None


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("blocks", [0, 1, 5])
def test_any_bytes_give_pixels_of_libjpeg_or_none(blocks, progressive):
    options = {"restart_marker_blocks": blocks, "progressive": progressive}
    data = by_pillow(pixels=picture(70, 90), quality=85, **options)
    dice, decoder, compared, refused = np.random.default_rng(blocks), compiled_decoder(), 0, 0
    for turn in range(1500):
        broken = bytearray(data)
        first = scan_at(data)[0] if turn % 3 else 2
        for at in dice.integers(first, len(data), int(dice.integers(1, 4))):
            broken[at] = dice.choice([0, 0xFF, 0xD0, 0xD9, int(dice.integers(256))])
        if turn % 7 == 0:
            at = int(dice.integers(first, len(data)))
            del broken[at : at + int(dice.integers(1, 40))]
            broken += b"\xff\xd9"
        broken = bytes(broken)
        size = decoder.open(broken)
        if size is None or size[0] * size[1] > 1 << 20:
            continue
        everything = read(decoder, broken, (0, 0, *size))
        if everything is None:
            refused += 1
            continue
        compared += 1
        assert np.array_equal(everything, by_libjpeg(broken))
        for part in some_parts(*size, 2, seed=turn):
            assert np.array_equal(read(decoder, broken, part), cut_out(everything, part))
    assert compared > 100
    assert refused > 100


@pytest.mark.parametrize("scan", range(10))
def test_progressive_scan_without_its_end_falls_back(scan):
    data = by_pillow(progressive=True)
    starts = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    stop = [*(data.rindex(b"\xff\xc4", 0, at) for at in starts[1:]), len(data) - 2][scan]
    for removed in (1, 9):
        broken = data[: stop - removed] + data[stop:]
        assert by_libjpeg(broken, (0, 0, 9, 9)) is None
        assert read(compiled_decoder(), broken, (0, 0, 9, 9)) is None


def test_random_jpegs_give_pixels_of_libjpeg_and_damaged_ones_or_none():
    dice, decoder, given = np.random.default_rng(8), compiled_decoder(), 0
    for seed in range(200):
        data = random_jpeg(dice)
        for broken in (data, *(damaged(data, dice) for _ in range(5))):
            size, is_whole = decoder.open(broken), broken is data
            assert size or not is_whole
            if size is None or size[0] * size[1] > 1 << 17:
                continue
            for by in (1, 2, 4, 8):
                rows, columns = -(-size[0] // by), -(-size[1] // by)
                expected = by_libjpeg(broken, None, by)
                found = read(decoder, broken, (0, 0, rows, columns), by)
                assert found is not None or not is_whole
                given += not is_whole and found is not None
                assert found is None or np.array_equal(found, expected)
                for part in some_parts(rows, columns, 2, seed):
                    found = read(decoder, broken, part, by)
                    assert found is not None or not is_whole
                    if found is not None and expected is not None:
                        assert np.array_equal(found, cut_out(expected, part))
    assert given > 100
