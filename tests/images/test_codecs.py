"""The registry of image formats: one object adds a format everywhere."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

import feedline
from feedline.errors import ImageError
from feedline.images.codec_base import Codec, DecodedPixels, DecodeOptions
from feedline.images.codec_registry import CODECS, Decoder, codec_of, register_codec
from feedline.images.folder import ImageFolder


@dataclass(frozen=True)
class Flat(Codec):
    """A made-up format of images of one colour: 4 bytes, height, width, red, green, blue."""

    def size(self, data):
        return data[4], data[5]

    def decode(self, data, options, part):
        if len(data) != 9:
            raise ImageError("it has no colour")
        colour = Image.new("RGB", (data[5], data[4]), tuple(data[6:9])).convert(options.mode)
        pixels = np.array(colour)
        return DecodedPixels(pixels.reshape(data[4], data[5], -1))


FLAT = Flat("FLAT", (".png",), (b"FLAT",))
COLOURS = {"cats/1.png": (10, 20, 30), "cats/2.png": (200, 0, 90), "dogs/3.png": (5, 250, 60)}


@pytest.fixture
def flat_format():
    before = list(CODECS)
    register_codec(FLAT)
    yield
    CODECS[:] = before


def flat(colour):
    return bytes([*b"FLAT", 40, 50, *colour])


@pytest.mark.usefixtures("flat_format")
def test_a_new_format_is_read_in_folders_archives_and_caches(tmp_path):
    folder = tmp_path / "pets"
    for name, colour in COLOURS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(flat(colour))
    archive = shutil.make_archive(str(folder), "zip", folder)
    feedline.build_cache(folder, tmp_path / "cache", (32,), raw=True, workers=1)
    for root in (folder, archive, tmp_path / "cache"):
        for workers in (0, 1):
            loader = feedline.DataLoader(ImageFolder(root), 3, image_size=16, num_workers=workers)
            ((images, _),) = list(loader)
            assert images[:, :, 0, 0].tolist() == list(map(list, COLOURS.values()))


@pytest.mark.usefixtures("flat_format")
def test_a_new_format_has_the_checks_of_all_others():
    data = flat((1, 2, 3))
    decoder = Decoder(DecodeOptions(max_pixels=40 * 50 - 1))
    with pytest.raises(ImageError, match="50 x 40 = 2000 pixels"):
        decoder.open(data)
    grey = Decoder(DecodeOptions(mode="L"))
    assert grey.open(data) == (40, 50)
    assert grey.read(part=(5, 6, 7, 8)).shape == (7, 8, 1)
    with pytest.raises(ImageError, match="no colour"):
        grey.open(data[:-1])
    with pytest.raises(ImageError, match=r"FLAT, JPEG, PNG"):
        grey.open(b"something else")


def test_a_format_is_detected_by_its_bytes_alone():
    for codec in CODECS:
        for signature in codec.signatures:
            found = codec_of(b"\0\0\0\x14ftyp" + signature) or codec_of(signature)
            assert found is codec
    assert codec_of(b"") is None
    by_brand = codec_of(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf")  # that of its container
    assert by_brand is not None
    assert by_brand.name == "AVIF"
