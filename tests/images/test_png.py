"""PNGs by feedline's own decoder: pixels and errors of Pillow."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from feedline.errors import ImageError
from feedline.images import png as decoder_module
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import Decoder
from feedline.images.pillow_codecs import PngFile
from feedline.images.png import decode_png
from image_files import (
    GREY,
    GREY_ALPHA,
    PALETTE,
    RGB,
    RGB_ALPHA,
    chunk,
    header,
    png,
    random_png,
    random_rows,
)
from jpegs import cut_out, some_parts

compiled = pytest.importorskip("feedline.images._png", reason="not compiled")

COLOURS = {"grey": GREY, "grey alpha": GREY_ALPHA, "rgb": RGB, "rgb alpha": RGB_ALPHA}
FILTERS = {
    **{name: [number] for number, name in enumerate(("none", "sub", "up", "average", "paeth"))},
    "all": [4, 4, 4, 0, 1, 2, 3, 4, 2, 4, 4, 1, 3, 3, 0, 4],
}
SIZES = [(1, 1), (1, 7), (9, 1), (2, 2), (3, 6), (37, 29), (4099, 5)]
WIDTH, HEIGHT = 37, 29
ROWS = random_rows(WIDTH, HEIGHT, RGB, range(5))
START, DEFLATED = header(WIDTH, HEIGHT, RGB), zlib.compress(ROWS)
END = chunk(b"IEND")


def decoded(data, part=None, **options):
    """Pixels, or the text of the error."""
    decoder = Decoder(DecodeOptions(**options))
    try:
        decoder.open(data)
        return np.array(decoder.read(part=part))
    except ImageError as error:
        return str(error)


def by_pillow(monkeypatch, data, part=None, **options):
    with monkeypatch.context() as patch:
        patch.setattr(decoder_module, "compiled", None)
        return decoded(data, part, **options)


def is_fast(data, part=None, **options):
    return decode_png(data, PngFile, DecodeOptions(**options), part) is not None


def reference(data, mode="RGB"):
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("colour", COLOURS)
def test_all_filters_colours_and_sizes_equal_pillow(colour, filters, mode):
    for width, height in SIZES:
        data = random_png(width, height, COLOURS[colour], FILTERS[filters])
        whole = reference(data, mode)
        assert np.array_equal(decoded(data, mode=mode), whole)
        for part in some_parts(height, width, 8):
            assert np.array_equal(decoded(data, part, mode=mode), cut_out(whole, part))
            assert is_fast(data, part, mode=mode)


def deflated(level, window=15, strategy=zlib.Z_DEFAULT_STRATEGY):
    deflate = zlib.compressobj(level, zlib.DEFLATED, window, 9, strategy)
    return deflate.compress(ROWS) + deflate.flush()


TEXT = chunk(b"tEXt", b"date:modify\0" + b"2020-01-01")
PLAIN = {
    **{f"level {level}": png(START, deflated(level)) for level in range(10)},
    **{f"window {bits}": png(START, deflated(9, bits)) for bits in range(9, 16)},
    "fixed codes": png(START, deflated(9, 15, zlib.Z_FIXED)),
    "huffman only": png(START, deflated(9, 15, zlib.Z_HUFFMAN_ONLY)),
    "many chunks": png(START, DEFLATED, cuts=range(1, len(DEFLATED))),
    "empty chunks": png(START, DEFLATED, cuts=[0, 0, 5, 5, 900, len(DEFLATED), len(DEFLATED)]),
    "chunks before": png(
        START,
        DEFLATED,
        before=chunk(b"gAMA", struct.pack(">I", 45455))
        + chunk(b"sRGB", b"\0")
        + chunk(b"pHYs", struct.pack(">IIB", 2835, 2835, 1))
        + chunk(b"iCCP", b"profile\0\0" + zlib.compress(b"not IDAT" * 99))
        + chunk(b"teSt", b"unknown"),
    ),
    "texts": png(START, DEFLATED, before=TEXT, after=TEXT + chunk(b"tIME", bytes(7)) + END),
    "bytes after its end": png(START, DEFLATED, after=END + b"more"),
    "data after the pixels": png(START, DEFLATED + b"more"),
    "clear colour": png(START, DEFLATED, before=chunk(b"tRNS", bytes(6))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_any_compression_and_chunks_equal_pillow(name, monkeypatch):
    data, part = PLAIN[name], (3, 5, 11, 20)
    whole = reference(data)
    for _ in range(2):
        assert is_fast(data)
        assert is_fast(data, part)
        assert np.array_equal(decoded(data), whole)
        assert np.array_equal(decoded(data, part), whole[3:14, 5:25])
        monkeypatch.setattr(decoder_module, "inflater", zlib)


def other(colour, depth, interlaced=False):
    rows = random_rows(WIDTH, HEIGHT, colour, [0, 4], depth=depth)
    if interlaced:
        rows += random_rows(2 * WIDTH, 2 * HEIGHT, colour, [0, 4])
    colours = chunk(b"PLTE", bytes(range(6)))
    return png(
        header(WIDTH, HEIGHT, colour, depth, interlaced),
        zlib.compress(rows),
        before=colours if colour == PALETTE else b"",
    )


def flawed(**changes):
    return png(**{"start": START, "deflated": DEFLATED, **changes})


def without_checksum(data, name):
    at = data.index(name)
    stop = at + 4 + int.from_bytes(data[at - 4 : at], "big")
    return data[:stop] + b"\1\2\3\4" + data[stop + 4 :]


UNKNOWN_FILTER = bytearray(ROWS)
UNKNOWN_FILTER[10 * (1 + 3 * WIDTH)] = 5
ORDINARY = flawed()

UNUSUAL = {
    **{f"{depth} bits of grey": other(GREY, depth) for depth in (1, 2, 4, 16)},
    "8 bits of palette": other(PALETTE, 8),
    "16 bits of rgb and alpha": other(RGB_ALPHA, 16),
    "interlaced": other(RGB, 8, interlaced=True),
    "wrong checksum of the header": without_checksum(ORDINARY, b"IHDR"),
    "wrong checksum of the pixels": without_checksum(ORDINARY, b"IDAT"),
    "wrong checksum of the end": without_checksum(ORDINARY, b"IEND"),
    "wrong checksum of a text after": without_checksum(flawed(after=TEXT + END), b"tEXt"),
    "wrong Adler-32": flawed(deflated=DEFLATED[:-1] + b"!"),
    "no Adler-32": flawed(deflated=DEFLATED[:-4]),
    "no last rows": flawed(deflated=DEFLATED[:-200]),
    "fewer rows": flawed(deflated=zlib.compress(ROWS[: -(1 + 3 * WIDTH)])),
    "part of a row": flawed(deflated=zlib.compress(ROWS[:-5])),
    "more rows": flawed(deflated=zlib.compress(ROWS + ROWS[:150])),
    "no data": flawed(deflated=b""),
    "no rows": flawed(deflated=zlib.compress(b"")),
    "unknown filter": flawed(deflated=zlib.compress(bytes(UNKNOWN_FILTER))),
    "damaged data": flawed(deflated=DEFLATED[:500] + b"\xff" * 9 + DEFLATED[509:]),
    "window too large": flawed(deflated=b"\x88\x1c" + DEFLATED[2:]),
    "preset dictionary": flawed(deflated=b"\x78\xbb" + DEFLATED[2:]),
    "other method": flawed(deflated=b"\x79\x9c" + DEFLATED[2:]),
    "no end": flawed(after=b""),
    "chunk after cut": flawed(after=TEXT[:-9]),
    "pixels after another chunk": png(START, DEFLATED[:99], after=chunk(b"IDAT", DEFLATED[99:])),
    "text amid the pixels": png(START, DEFLATED[:99], after=TEXT + flawed()[33:]),
    "text that holds IDAT": flawed(before=chunk(b"tEXt", b"a\0IDAT")),
    "another size": flawed(before=header(WIDTH, HEIGHT - 9, RGB)),
    "another colour": flawed(before=header(WIDTH, HEIGHT, GREY)),
    "larger than its pixels": png(header(9 * WIDTH, 9 * HEIGHT, RGB), DEFLATED),
    "animation": flawed(before=chunk(b"acTL", struct.pack(">II", 1, 0))),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_and_damaged_files_have_the_pixels_or_the_error_of_pillow(name, monkeypatch):
    for mode in ("RGB", "L"):
        for part in (None, (2, 3, 9, 9), (10, 0, HEIGHT - 10, WIDTH)):
            found = decoded(UNUSUAL[name], part, mode=mode)
            expected = by_pillow(monkeypatch, UNUSUAL[name], part, mode=mode)
            assert type(found) is type(expected)
            assert np.array_equal(found, expected)


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()[6:]


ORIENTED = {
    "after": lambda turn: flawed(after=chunk(b"eXIf", turned(turn)) + END),
    "profile after": lambda turn: flawed(
        after=chunk(
            b"tEXt", b"Raw profile type exif\0\nexif\n1\n" + turned(turn).hex().encode() + b"\n"
        )
        + END
    ),
}


@pytest.mark.parametrize("place", ORIENTED)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_read_after_the_pixels(place, orientation):
    data = ORIENTED[place](orientation)
    image = Image.open(io.BytesIO(data))
    image.load()
    assert np.array_equal(decoded(data, exif=True), np.asarray(ImageOps.exif_transpose(image)))
    assert np.array_equal(decoded(data), reference(data))


def test_the_limit_of_pixels_holds_for_a_second_header():
    data = png(header(9, 9, RGB), DEFLATED, before=START)
    assert "max_pixels=100" in decoded(data, max_pixels=100)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": bytes(77)},
        {"width": 3},
        {"width": 1 << 62},
        {"channels": 0},
        {"channels": 5},
        {"top": -1},
        {"top": 1},
        {"top": (1 << 63) - 1},
        {"target": np.zeros((6, 4), np.uint8)},
        {"target": np.zeros((6, 4, 2), np.uint8)},
        {"target": np.zeros((6, 4, 1), np.uint8)},
        {"target": np.zeros((6, 4, 3), np.int8)},
        {"target": np.zeros((0, 4, 3), np.uint8)},
        {"target": np.zeros((6, 4, 6), np.uint8)[..., ::2]},
    ],
)
def test_arguments_that_do_not_match_are_refused(changes):
    arguments = {
        "data": bytes(78),
        "target": np.zeros((6, 4, 3), np.uint8),
        "width": 4,
        "channels": 3,
        "top": 0,
    }
    assert compiled.unfilter(*arguments.values())
    with pytest.raises((ValueError, BufferError)):
        compiled.unfilter(*(arguments | changes).values())
