"""Parts of PNG and WebP: the pixels of the whole, and nothing read that the part does not need."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feedline.errors import ImageError
from feedline.images import pillow_codecs
from feedline.images.codec_registry import DecodeOptions, Decoder

HEIGHT, WIDTH = 75, 101


def picture() -> Image.Image:
    dice = np.random.default_rng(5)
    coarse = dice.integers(0, 256, (9, 12, 4)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
    noise = dice.integers(-20, 20, (HEIGHT, WIDTH, 4))
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


def encoded(mode: str, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image = picture().convert("L" if mode == "I;16" else "RGB" if mode == "P" else mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    image.convert(mode).save(file, kind, **options)
    return file.getvalue()


FILES = {
    "png": encoded("RGB", "PNG"),
    "png alpha": encoded("RGBA", "PNG"),
    "png grey": encoded("L", "PNG"),
    "png palette": encoded("P", "PNG"),
    "png one bit": encoded("1", "PNG"),
    "png 16 bits": encoded("I;16", "PNG"),
    "png clear colour": encoded("P", "PNG", transparency=3),
    "webp": encoded("RGB", "WEBP", quality=80),
    "webp sharp": encoded("RGB", "WEBP", quality=30, method=0),
    "webp alpha": encoded("RGBA", "WEBP", quality=80),
    "webp lossless": encoded("RGB", "WEBP", lossless=True),
    "webp lossless alpha": encoded("RGBA", "WEBP", lossless=True),
    "webp exact": encoded("RGBA", "WEBP", lossless=True, exact=True),
}


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, int, int, int]:
    top, left = draw(st.integers(0, HEIGHT - 1)), draw(st.integers(0, WIDTH - 1))
    height, width = draw(st.integers(1, HEIGHT - top)), draw(st.integers(1, WIDTH - left))
    return top, left, height, width


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None)
@given(part=st.none() | parts(), mode=st.sampled_from(["RGB", "L"]))
def test_region_equals_crop_of_pillow_image(name: str, part: Any, mode: str) -> None:
    decoder = Decoder(DecodeOptions(mode=mode))
    assert decoder.open(FILES[name]) == (HEIGHT, WIDTH)
    top, left, height, width = part or (0, 0, HEIGHT, WIDTH)
    whole = np.asarray(Image.open(io.BytesIO(FILES[name])).convert(mode)).reshape(HEIGHT, WIDTH, -1)
    pixels = decoder.read(part=part)
    assert pixels.flags.writeable
    assert np.array_equal(pixels, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("webp")])
def test_pillow_decodes_a_webp_to_the_same_pixels_without_libwebp(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pillow_codecs, "_libwebp", lambda: None)
    decoder = Decoder()
    decoder.open(FILES[name])
    whole = np.asarray(Image.open(io.BytesIO(FILES[name])).convert("RGB"))
    assert np.array_equal(decoder.read(part=(3, 4, 50, 60)), whole[3:53, 4:64])


def test_a_png_without_its_end_has_the_rows_before_it() -> None:
    dice = np.random.default_rng(1)
    file = io.BytesIO()
    Image.fromarray(dice.integers(0, 256, (400, 300, 3)).astype(np.uint8)).save(file, "PNG")
    data, decoder = file.getvalue()[: len(file.getvalue()) // 2], Decoder()
    whole = np.asarray(Image.open(file))
    decoder.open(data)
    assert np.array_equal(decoder.read(part=(10, 20, 150, 200)), whole[10:160, 20:220])
    for part in (None, (10, 20, 300, 200)):
        decoder.open(data)
        with pytest.raises(ImageError, match="truncated"):
            decoder.read(part=part)
