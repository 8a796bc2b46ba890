"""A part of a JPEG: the bytes of the whole, whichever way it goes, and never a byte too far."""

import io
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from feedline.errors import ImageError
from feedline.images import jpeg
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import Decoder
from feedline.images.jpeg import compiled_decoder
from fenced import Fenced
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
    room,
    some_parts,
    whole,
)


def without(data, *markers):
    """A JPEG without its segments of some kinds."""
    kept, at = bytearray(data[:2]), 2
    while data[at + 1] != 0xDA:
        after = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] not in markers:
            kept += data[at:after]
        at = after
    return bytes(kept + data[at:])


def fewer_scans(data, scans):
    """A progressive JPEG that ends, as if whole, before one of its scans."""
    at = -1
    for _ in range(scans + 1):
        at = data.index(b"\xff\xda", at + 1)
    # The scan's tables stand before it; they do no harm.
    return data[:at] + b"\xff\xd9"


def without_scans_of(data, component):
    """A progressive JPEG without the scans of one component alone: it has no more than its DC."""
    begin = b"\xff\xda" + bytes((0, 8, 1, component))
    return re.sub(re.escape(begin) + rb"(?:[^\xff]|\xff\0)*", b"", data)


@compiled
@pytest.mark.parametrize("library", libraries())
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_has_the_bytes_of_the_whole(kind, library):
    decoder, data = decoder_by(library), KINDS[kind]()
    for by in (1, 2, 4, 8):
        expected = whole(data, by)
        for part in some_parts(*expected.shape[:2], 150):
            found = read(decoder, data, part, by)
            assert found is not None
            assert np.array_equal(found, cut_out(expected, part)), (by, part)


@compiled
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_single_column_and_row_has_the_bytes_of_the_whole(sampling):
    data = encoded(sampling, 70, 75)
    decoder, expected = compiled_decoder(), whole(data)
    for at in range(70):
        assert np.array_equal(read(decoder, data, (at, 9, 1, 40)), expected[at : at + 1, 9:49])
    for at in range(75):
        assert np.array_equal(read(decoder, data, (9, at, 40, 1)), expected[9:49, at : at + 1])


@compiled
@pytest.mark.parametrize("library", libraries())
def test_a_part_does_not_depend_on_the_images_before(library):
    decoder = decoder_by(library)
    others = [kind() for kind in KINDS.values()]
    for bare in (without(by_pillow(), 0xC4), without(by_pillow(), 0xDB), by_pillow("CMYK")):
        alone = read(decoder_by(library), bare, (3, 5, 60, 70))
        for other in others:
            assert read(decoder, other, (0, 0, 20, 20)) is not None
            after = read(decoder, bare, (3, 5, 60, 70))
            assert (after is None) == (alone is None)
            assert alone is None or np.array_equal(after, alone)


PROGRESSIVE = by_pillow(progressive=True)
INCOMPLETE = {
    **{
        f"{scans} scans": fewer_scans(PROGRESSIVE, scans)
        for scans in range(1, PROGRESSIVE.count(b"\xff\xda"))
    },
    **{f"without component {k}": without_scans_of(PROGRESSIVE, k) for k in (1, 2, 3)},
}


@compiled
@pytest.mark.parametrize("library", libraries())
@pytest.mark.parametrize("case", INCOMPLETE)
def test_a_part_of_an_incomplete_progressive_image_has_the_bytes_of_the_whole(library, case):
    decoder, data = decoder_by(library), INCOMPLETE[case]
    assert len(data) < len(PROGRESSIVE)
    expected = whole(data)
    for part in some_parts(HEIGHT, WIDTH, 30):
        found = read(decoder, data, part)  # None leaves it to other decoders
        assert found is None or np.array_equal(found, cut_out(expected, part))
        assert np.array_equal(wanted(data, part), cut_out(expected, part))


@compiled
@pytest.mark.parametrize("kind", [*SAMPLINGS, "a restart each row", "a restart each 3 blocks"])
def test_nothing_is_read_or_written_beyond_the_memory(kind):
    data = KINDS[kind]()
    decoder, expected = compiled_decoder(), whole(data)
    source = Fenced(len(data))
    source.at_end[:] = np.frombuffer(data, np.uint8)
    for part in some_parts(HEIGHT, WIDTH, 40):
        _, _, height, width = part
        target = Fenced(room(height, width))
        assert decoder.open(source.at_end) == (HEIGHT, WIDTH)
        first, stride = decoder.read(target.at_end, 1, *part)
        found = np.ndarray((height, width, 3), np.uint8, target.at_end, first, (stride, 3, 1))
        assert np.array_equal(found, cut_out(expected, part))
    for length in range(0, len(data), 37):  # cut off anywhere, also within a marker
        short = Fenced(length)
        short.at_end[:] = np.frombuffer(data[:length], np.uint8)
        assert decoder.open(short.at_end) is None


@compiled
def test_invalid_arguments_raise_and_decoder_stays_usable():
    data, decoder = encoded(), compiled_decoder()
    memory = np.empty(1 << 20, np.uint8)
    with pytest.raises(ValueError, match="no image is open"):
        decoder.read(memory, 1, 0, 0, 1, 1)
    outside = [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (0, 0, HEIGHT + 1, 5)]
    outside += [(HEIGHT, 0, 1, 1), (1, 0, HEIGHT, 1), (0, 100, 1, 32), (2**62, 2**62, 2**62, 9)]
    for part in outside:
        decoder.open(data)
        with pytest.raises(ValueError, match="must lie in the image"):
            decoder.read(memory, 1, *part)
    for by in (0, 3, 16, -1):
        decoder.open(data)
        with pytest.raises(ValueError, match="1, 2, 4 or 8"):
            decoder.read(memory, by, 0, 0, 1, 1)
    decoder.open(data)
    with pytest.raises(ValueError, match="too small"):
        decoder.read(np.empty(100, np.uint8), 1, 0, 0, 50, 50)
    decoder.open(data)
    with pytest.raises(ValueError, match="too small"):
        decoder.read(np.empty(HEIGHT * WIDTH * 3 - 1, np.uint8), 1, 0, 0, HEIGHT, WIDTH)
    with pytest.raises(ValueError, match="no image is open"):  # it was closed
        decoder.read(memory, 1, 0, 0, 1, 1)
    frozen = np.empty(1 << 20, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        decoder.read(frozen, 1, 0, 0, 1, 1)
    with pytest.raises(TypeError):
        decoder.open("text")
    with pytest.raises(TypeError):
        decoder.read(memory, 1)
    decoder.open(data)
    decoder.open(data)  # an unread one is released
    assert np.array_equal(read(decoder, data, (3, 4, 50, 60)), whole(data)[3:53, 4:64])


@compiled
@pytest.mark.parametrize("kind", ["420", "progressive 4:2:0"])
@pytest.mark.parametrize("reads_codes", [True, False])  # otherwise libjpeg reads them, and warns
def test_damage_in_one_image_does_not_affect_the_next(kind, reads_codes):
    decoder, data, other = compiled_decoder(), encoded(), KINDS[kind]()
    decoder.reads_codes = reads_codes
    short = other[: len(other) // 2] + b"\xff\xd9"
    for _ in range(20):
        assert read(decoder, short, (HEIGHT - 10, 0, 10, 10)) is None
        assert np.array_equal(read(decoder, data, (3, 5, 60, 70)), whole(data)[3:63, 5:75])


@compiled
def test_opened_image_is_kept_until_read():
    decoder = compiled_decoder()
    data = bytearray(encoded())
    decoder.open(data)
    with pytest.raises(BufferError):
        data.append(0)
    decoder.read(np.empty(1 << 20, np.uint8), 1, 0, 0, 9, 9)
    data.append(0)


@compiled
@pytest.mark.skipif(
    jpeg.compiled is not None and jpeg.compiled.CONTAINED_LIBJPEG is not None,
    reason="the module contains libjpeg-turbo",
)
def test_library_without_libjpeg_turbo_is_rejected(tmp_path):
    for path in (tmp_path / "none.so", __file__, np._core._multiarray_umath.__file__):
        with pytest.raises(OSError, match=Path(path).name):
            jpeg.compiled.Decoder(path)
    with pytest.raises(TypeError):
        jpeg.compiled.Decoder()


@compiled
def test_concurrent_use_of_decoder_raises():
    file = io.BytesIO()
    Image.fromarray(picture(900, 900)).save(file, "JPEG", progressive=True)
    data, decoder = file.getvalue(), compiled_decoder()
    expected, outcomes = whole(data)[10:20, 10:20], []

    def often():
        for _ in range(20):
            try:
                found = read(decoder, data, (10, 10, 10, 10))
                outcomes.append(found is not None and np.array_equal(found, expected))
            except (RuntimeError, ValueError) as error:  # busy, or closed by the other
                outcomes.append(str(error) in MEANT)

    threads = [threading.Thread(target=often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 60
    assert all(outcomes)


MEANT = ("a decoder serves one thread at a time", "no image is open")


@pytest.fixture(params=["compiled", "simplejpeg"])
def way(request, monkeypatch):
    if request.param == "simplejpeg":
        monkeypatch.setattr(jpeg, "compiled", None)
    elif compiled_decoder() is None:
        pytest.skip("not compiled, or no libjpeg-turbo")


def wanted(data, part, by=1, **options):
    decoder = Decoder(DecodeOptions(**options))
    decoder.open(data)
    return decoder.read(by, part)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", KINDS)
def test_both_decoders_give_same_region(kind):
    data = KINDS[kind]()
    for by in (1, 2, 4, 8):
        expected = whole(data, by)
        assert np.array_equal(wanted(data, None, by), expected)
        for part in some_parts(*expected.shape[:2], 10, seed=by):
            assert np.array_equal(wanted(data, part, by), cut_out(expected, part))


@pytest.mark.usefixtures("way")
def test_file_without_end_raises_for_any_region():
    data = encoded()
    for length in (len(data) // 3, len(data) * 9 // 10, len(data) - 1):
        with pytest.raises(ImageError, match="ends before its last pixel"):
            wanted(data[:length], (0, 0, 20, 20))


@compiled
def test_missing_data_raises_only_if_required():
    data = encoded()
    short = data[: len(data) * 2 // 3] + b"\xff\xd9"
    assert np.array_equal(wanted(short, (0, 5, 20, 50)), whole(data)[:20, 5:55])
    with pytest.raises(ImageError, match="ends before its last pixel"):
        wanted(short, (HEIGHT - 10, 0, 10, 10))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["420", "progressive 4:2:0", "a restart each row"])
def test_damage_in_the_wanted_part_is_decided_as_for_the_whole(kind):
    data, part = KINDS[kind](), (10, 20, 40, 60)
    rng, compared = np.random.default_rng(3), 0
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(2, len(data), 2):
            broken[at] = rng.integers(256)
        try:
            expected = cut_out(wanted(bytes(broken), None), part)
        except ImageError:
            continue
        if expected.shape[:2] == part[2:]:  # else the part is not in the image
            compared += 1
            assert np.array_equal(wanted(bytes(broken), part), expected)
    assert compared > 30


@pytest.mark.usefixtures("way")
def test_pillow_only_formats_are_also_scaled():
    data = by_pillow(progressive=True)
    odd = data[:-2] + b"abcd" * 50 + data[-2:]
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(odd, "RGB", strict=True)
    expected = np.asarray(Image.open(io.BytesIO(odd)).convert("RGB"))
    assert np.array_equal(wanted(odd, (7, 8, 90, 80)), expected[7:97, 8:88])
    smaller = wanted(odd, None, 2)
    assert smaller.shape == (75, 66, 3)
    assert np.abs(smaller.astype(int) - whole(data, 2)).mean() < 5
    assert np.array_equal(wanted(odd, (5, 6, 30, 20), 2), smaller[5:35, 6:26])


def lossless(height, width):
    """A lossless JPEG (ITU T.81, annex H) of columns that are lighter by 1 each, from 128 on.

    Each pixel is coded as its difference to the left one, 0 as the bit 0 and 1 as the bits 101.
    """

    def segment(marker, *content):
        return bytes((0xFF, marker, 0, len(content) + 2, *content))

    bits = ("000" + "101" * 3 * (width - 1)) * height
    bits += "1" * (-len(bits) % 8)
    coded = bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))
    return (
        b"\xff\xd8"
        + segment(0xC3, 8, 0, height, 0, width, 3, *(82, 17, 0), *(71, 17, 0), *(66, 17, 0))
        + segment(0xC4, 0, *(1, 1), *[0] * 14, *(0, 1))
        + segment(0xDA, 3, *(82, 0), *(71, 0), *(66, 0), 1, 0, 0)
        + coded.replace(b"\xff", b"\xff\0")
        + b"\xff\xd9"
    )


@pytest.mark.usefixtures("way")
def test_lossless_jpeg_is_scaled():
    columns = np.repeat(np.arange(128, 168, dtype=np.uint8), 3).reshape(1, 40, 3)
    expected = np.broadcast_to(columns, (30, 40, 3))
    data = lossless(30, 40)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), expected)
    assert np.array_equal(wanted(data, (3, 4, 20, 30)), expected[3:23, 4:34])
    smaller = np.array(Image.fromarray(expected).reduce(2))
    assert np.array_equal(wanted(data, None, 2), smaller)
    assert np.array_equal(wanted(data, (2, 3, 9, 4), 2), smaller[2:11, 3:7])
