"""Decoding: Pillow's pixels for valid images and their parts, an ImageError for others."""

import io
import random
import struct
import warnings
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, features

from feedline.errors import ImageError
from feedline.images import pillow_codecs
from feedline.images.codec_base import DecodeOptions, find_orientation
from feedline.images.codec_registry import CODECS, Decoder, codec_of
from feedline.images.crops import cut
from feedline.images.jpeg import jpeg_is_lossless, jpeg_orientation
from image_files import RGB, chunk, header, png
from image_inputs import encoded
from jpegs import some_parts
from torchvision_folder import image


def picture(width=61, height=47, mode="RGB"):
    return image(5, width, height, mode)


def reference(data, mode="RGB"):
    """Pillow's pixels, as torchvision's pil_loader gets them: (height, width, channels)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if codec_of(data).name == "HEIC":
            pixels = np.asarray(pillow_heif.open_heif(data).to_pillow().convert(mode))
        else:
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
        return pixels.reshape(*pixels.shape[:2], -1)


def silently(data, part=None, **options):
    """Decode; fail if a warning of any kind is issued."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            decoder = Decoder(DecodeOptions(**options))
            decoder.open(data)
            return decoder.read(part=part)
        finally:
            assert [str(warning.message) for warning in caught] == []


def with_alpha():
    image = picture(mode="RGBA")
    image.putalpha(picture(mode="L"))
    return image


def see_through_palette(transparency):
    return encoded(picture(mode="P"), "PNG", transparency=transparency)


def sixteen_bits():
    return Image.fromarray((np.arange(61 * 47).reshape(47, 61) * 20).astype(np.uint16))


WHOLE = {
    "jpeg 4:2:0": lambda: encoded(picture(), "JPEG", quality=90),
    "jpeg progressive": lambda: encoded(picture(), "JPEG", progressive=True),
    "jpeg with restarts": lambda: encoded(picture(), "JPEG", restart_marker_blocks=2),
    "jpeg grey": lambda: encoded(picture(mode="L"), "JPEG"),
    "jpeg cmyk": lambda: encoded(picture(mode="CMYK"), "JPEG"),
    "jpeg with bytes behind": lambda: encoded(picture(), "JPEG") + b"behind the end" * 9,
    "jpeg with bytes before the end": lambda: encoded(picture(), "JPEG")[:-2] + b"abcd\xff\xd9",
    "jpeg progressive with bytes before the end": lambda: (
        encoded(picture(), "JPEG", progressive=True)[:-2] + b"abcd\xff\xd9"
    ),
    "jpeg 1 x 1": lambda: encoded(picture(1, 1), "JPEG"),
    "png": lambda: encoded(picture(), "PNG"),
    "png grey": lambda: encoded(picture(mode="L"), "PNG"),
    "png palette, one colour clear": lambda: see_through_palette(3),
    "png palette, clear by degrees": lambda: see_through_palette(bytes(range(0, 250, 5))),
    "png grey, one grey clear": lambda: encoded(picture(mode="L"), "PNG", transparency=9),
    "png rgb, one colour clear": lambda: encoded(picture(), "PNG", transparency=(1, 2, 3)),
    "png alpha": lambda: encoded(with_alpha(), "PNG"),
    "png 16 bits": lambda: encoded(sixteen_bits(), "PNG"),
    "png animated": lambda: encoded(
        picture(), "PNG", save_all=True, append_images=[ImageOps.invert(picture())]
    ),
    "webp": lambda: encoded(picture(), "WEBP"),
    "webp lossless": lambda: encoded(picture(), "WEBP", lossless=True),
    "webp alpha": lambda: encoded(with_alpha(), "WEBP"),
    "webp lossless alpha": lambda: encoded(with_alpha(), "WEBP", lossless=True),
    "webp animated": lambda: encoded(
        picture(), "WEBP", save_all=True, append_images=[ImageOps.invert(picture())]
    ),
    "gif": lambda: encoded(picture(mode="P"), "GIF"),
    "gif with a clear colour": lambda: encoded(picture(mode="P"), "GIF", transparency=2),
    "gif animated": lambda: encoded(
        picture(), "GIF", save_all=True, append_images=[ImageOps.invert(picture())], disposal=2
    ),
    "bmp": lambda: encoded(picture(), "BMP"),
    "tiff": lambda: encoded(picture(), "TIFF"),
    "tiff cmyk": lambda: encoded(picture(mode="CMYK"), "TIFF"),
    "tiff floats": lambda: encoded(picture(mode="F"), "TIFF"),
    "ppm": lambda: encoded(picture(), "PPM"),
    "pgm": lambda: encoded(picture(mode="L"), "PPM"),
}
if features.check("avif"):
    WHOLE |= {
        "avif": lambda: encoded(picture(), "AVIF"),
        "avif animated": lambda: encoded(
            picture(), "AVIF", save_all=True, append_images=[ImageOps.invert(picture())]
        ),
    }


def heic():
    file = io.BytesIO()
    pillow_heif.from_pillow(picture(64, 48)).save(file)
    return file.getvalue()


VALID = dict(WHOLE)
if find_spec("pillow_heif"):
    import pillow_heif

    VALID["heic"] = heic


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", VALID)
def test_every_kind_of_image_and_its_parts_have_the_pixels_of_pillow(name, mode):
    data = VALID[name]()
    whole = reference(data, mode)
    for part in (None, *some_parts(*whole.shape[:2], 20)):
        pixels = silently(data, part, mode=mode)
        assert pixels.dtype == np.uint8
        assert pixels.flags.c_contiguous or part
        assert pixels.flags.writeable
        assert np.array_equal(pixels, cut(whole, part))


@pytest.mark.parametrize("name", [name for name in WHOLE if name.startswith("webp")])
def test_pillow_decodes_a_webp_to_the_same_pixels_without_libwebp(name, monkeypatch):
    monkeypatch.setattr(pillow_codecs, "_libwebp", lambda: None)
    data = WHOLE[name]()
    assert np.array_equal(silently(data, (3, 4, 40, 50)), reference(data)[3:43, 4:54])


HARD_TO_CUT = ("jpeg 1 x 1", "gif animated", *(kind for kind in VALID if "bytes" in kind))


@pytest.mark.parametrize("kind", [kind for kind in VALID if kind not in HARD_TO_CUT])
def test_truncated_images_raise(kind):
    data, said = VALID[kind](), None
    lengths = [15, 30, len(data) // 3, len(data) // 2]
    if kind.startswith("jpeg"):
        lengths += [*range(3, 300, 37), len(data) - 40, *range(-6, 0)]
        said = r"ends before its last pixel|truncated|those of JPEG"
    for length in lengths:
        with pytest.raises(ImageError, match=said):
            silently(data[:length])


def test_truncated_jpeg_raises_even_if_pillow_completes_it(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encoded(picture(), "JPEG")
    with pytest.raises(ImageError, match="ends before"):
        silently(data[: len(data) // 2])


def test_a_png_without_its_end_has_the_rows_before_it():
    pixels = np.random.default_rng(1).integers(0, 256, (400, 300, 3)).astype(np.uint8)
    data = encoded(Image.fromarray(pixels), "PNG")
    data = data[: len(data) // 2]
    assert np.array_equal(silently(data, (10, 20, 150, 200)), pixels[10:160, 20:220])
    for part in (None, (10, 20, 300, 200)):
        with pytest.raises(ImageError, match="truncated"):
            silently(data, part)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\0" * 5000, "only zeros"),
        (b"hello, world " * 99, r"not a supported image.*1287 bytes.*b'hello, w'"),
        (b"\n<!DOCTYPE html><html>404", "web page"),
        (b"\0\0\0\x1cftypheic" + bytes(99), "HEIC"),
        (b"\0\0\0\x1cftypavif" + bytes(99), "those of AVIF|pillow>=11.3"),
        (b"\0\0\0\x1cftypisom" + bytes(99), "a video"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\xff\xd8\xff", "those of JPEG|the JPEG ends before"),
        (b"\xff\xd8\xff" + b"garbage" * 99, "those of JPEG"),
        (b"\x89PNG\r\n\x1a\n" + b"garbage" * 99, "those of PNG"),
        (b"P", "not a supported image"),
        (b"x", "not a supported image"),
    ],
)
def test_non_image_raises_with_guessed_type(data, message):
    with pytest.raises(ImageError, match=message):
        silently(data)


@pytest.mark.parametrize(
    "kind",
    [
        *("jpeg 4:2:0", "jpeg cmyk", "png", "webp", "webp lossless", "webp alpha"),
        *("webp animated", "gif", "bmp", "tiff", "ppm"),
    ],
)
def test_the_header_is_checked_against_the_most_pixels_allowed(kind, monkeypatch):
    data = WHOLE[kind]()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # warns above this, refuses above twice
    assert silently(data, max_pixels=61 * 47).shape == (47, 61, 3)
    with pytest.raises(ImageError, match=r"61 x 47 = 2867 pixels, .*max_pixels=2866"):
        silently(data, max_pixels=61 * 47 - 1)


def gif_frame_beyond_its_screen(width, height):
    data = bytearray(WHOLE["gif"]())
    at = data.index(b"\x2c", 13 + 768)
    struct.pack_into("<HH", data, at + 5, width, height)
    return bytes(data)


def test_a_gif_is_as_large_as_its_first_frame_reaches():
    data = bytearray(WHOLE["gif"]())
    struct.pack_into("<HH", data, data.index(b"\x2c", 13 + 768) + 1, 100, 30)
    assert Image.open(io.BytesIO(data)).size == (161, 77)
    assert codec_of(bytes(data)).size(bytes(data)) == (77, 161)
    with pytest.raises(ImageError, match="161 x 77 = 12397 pixels"):
        silently(bytes(data), max_pixels=61 * 47)


@pytest.mark.parametrize(
    "data",
    [
        png(header(60_000, 60_000, RGB), zlib.compress(bytes(1000))),
        gif_frame_beyond_its_screen(60_000, 60_000),
    ],
    ids=["png", "gif"],
)
def test_decompression_bomb_is_rejected_by_its_header(data):
    with pytest.raises(ImageError, match=r"60000 x 60000 = 3600000000 pixels"):
        silently(data)


def test_damaged_exif_prints_nothing():
    exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0" + b"\x1a\x01\x05\0\x01\0\0\0\xff\xff\0\0" * 2
    for data in (
        encoded(picture(mode="CMYK"), "JPEG", exif=exif),
        encoded(picture(), "JPEG", exif=exif),
        encoded(picture(), "PNG", exif=exif),
        encoded(picture(), "WEBP", exif=exif),
    ):
        for turn in (False, True):
            assert silently(data, exif=turn).shape == (47, 61, 3)


def test_damaged_animation_headers_print_nothing_and_many_are_read_in_linear_time():
    data = WHOLE["png"]()
    for frames, count in ((0, 1), (2, 100_000)):
        animation = chunk(b"acTL", struct.pack(">II", frames, 0)) * count
        assert np.array_equal(silently(data[:33] + animation + data[33:]), reference(data))


ENTRY = b"II*\0\x08\0\0\0\x01\0\x12\x01%c\0\x01\0\0\0%c\0\0\0"


@pytest.mark.parametrize(
    ("exif", "orientation"),
    [
        *((exif, 1) for exif in (b"", b"Exif\0\0", b"II*\0", b"II*\0\xff\xff\xff\xff")),
        (b"XX*\0\x08\0\0\0\x01\0", 1),
        (b"II*\0\x08\0\0\0\xff\xff" + bytes(30), 1),
        (ENTRY % (3, 9), 1),
        (ENTRY % (2, 6), 1),
        (ENTRY % (3, 6), 6),
        (ENTRY % (4, 5), 5),
        (b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0", 8),
    ],
)
def test_the_orientation_is_read_in_either_byte_order_if_it_is_valid(exif, orientation):
    assert find_orientation({"exif": exif}) == orientation


@pytest.mark.parametrize("count", [0, 1, 2])
def test_number_of_values_is_treated_as_by_pillow(count):
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0%c\0\0\0\x06\0\x01\0\0\0\0\0" % count
    xmp = b'<x tiff:Orientation="3"/>'
    data = encoded(picture(), "WEBP", lossless=True, exif=exif, xmp=xmp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of several values
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(silently(data, exif=True), np.array(upright.convert("RGB")))


def test_orientation_is_found_after_other_segments():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(), "JPEG", exif=exif)
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"
    xmp = b"\xff\xe1" + struct.pack(">H", len(xmp) + 2) + xmp
    for before in (xmp, b"\xff", b"\xff\xff", b"\xff\x01", xmp + b"\xff" + xmp):
        assert jpeg_orientation(data[:2] + before + data[2:]) == 6
    assert jpeg_orientation(data[:2] + xmp + encoded(picture(), "JPEG")[2:]) == 1


def test_images_are_read_once_and_previous_ones_never_returned():
    decoder = Decoder()
    with pytest.raises(ValueError, match="no image is open"):
        decoder.read()
    for kind in ("JPEG", "PNG"):
        decoder.open(encoded(picture(), kind))
        decoder.read()
        with pytest.raises(ValueError, match="no image is open"):
            decoder.read()
        decoder.open(encoded(picture(), kind))
        for broken in (b"", b"nothing", encoded(picture(), "PNG")[:20], b"\xff\xd8\xff\xe0\0"):
            with pytest.raises(ImageError):
                decoder.open(broken)
            assert not decoder.reducible
            with pytest.raises(ValueError, match="no image is open"):
                decoder.read()


def test_image_larger_than_buffer_is_decoded(monkeypatch):
    monkeypatch.setattr("feedline.images.jpeg._KEPT_BYTES", 100)
    data = encoded(picture(1200, 900), "JPEG")
    assert np.array_equal(silently(data), reference(data))


def damaged(data, dice):
    """Replace, insert or remove some of the bytes, often in the header."""
    data = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(1, len(data) if dice.random() < 0.6 else min(64, len(data)))
        removed, added = dice.choice(((1, 1), (1, 1), (30, 30), (0, 19), (19, 0), (len(data), 0)))
        data[at : at + removed] = dice.choice((bytes(added), dice.randbytes(added)))
        if len(data) < 2:
            break
    return bytes(data)


@pytest.mark.parametrize("kind", [name for name in WHOLE if not name.startswith("jpeg 1")])
def test_damage_gives_image_or_image_error_only(kind):
    dice = random.Random(kind)
    whole = WHOLE[kind]()
    for _ in range(150):
        data = damaged(whole, dice)
        options = {"exif": dice.random() < 0.5, "max_pixels": 1_000_000}
        try:
            pixels = silently(data, **options)
        except ImageError:
            continue
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        assert 0 < pixels.shape[0] * pixels.shape[1] <= 1_000_000


def test_headers_of_any_bytes_are_read_without_an_exception():
    dice = random.Random(7)
    starts = (b"", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8X", b"RIFF\0\0\0\0WEBPVP8L", b"\xff\xd8\xff\xe1")
    for _ in range(3000):
        data = dice.choice(starts) + dice.randbytes(dice.randrange(40))
        codec_of(data)
        for codec in CODECS:
            size = codec.size(data)
            assert size is None or (size[0] >= 0 and size[1] >= 0)
        assert 1 <= jpeg_orientation(data) <= 8
        assert jpeg_is_lossless(data) in (True, False)
        assert 1 <= find_orientation({"exif": data, "xmp": data}) <= 8
