"""JPEGs of every kind with the expected result."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch  # noqa: F401  torchvision's libraries look for those of torch in this process
from PIL import Image, _imaging

from feedline.images import jpeg
from feedline.images.jpeg import compiled_decoder

HEIGHT, WIDTH = 150, 131
SAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]

compiled = pytest.mark.skipif(
    compiled_decoder() is None, reason="not compiled, or no libjpeg-turbo"
)


def picture(height=HEIGHT, width=WIDTH):
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(7).integers(0, 60, (height, width, 3))
    planes = np.stack((x * 190 // width, y * 190 // height, (x * y) % 190), -1)
    return np.ascontiguousarray((planes + noise).astype(np.uint8))


def encoded(sampling="420", height=HEIGHT, width=WIDTH):
    pixels = picture(height, width)
    if sampling == "Gray":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[..., :1]), 90, "GRAY", "Gray")
    return simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)


def by_pillow(mode="RGB", pixels=None, **options):
    file = io.BytesIO()
    image = Image.fromarray(picture() if pixels is None else pixels)
    image.convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


ODD_KINDS = {
    "progressive 4:2:0": lambda: by_pillow(progressive=True),
    "progressive 4:4:4": lambda: by_pillow(progressive=True, subsampling=0),
    "progressive grey": lambda: by_pillow("L", progressive=True),
    "a restart each row": lambda: by_pillow(restart_marker_rows=1),
    "a restart each 3 blocks": lambda: by_pillow(restart_marker_blocks=3),
    "rgb": lambda: by_pillow(keep_rgb=True),
    "optimised tables": lambda: by_pillow(optimize=True, quality=40),
}
KINDS = {**{kind: lambda kind=kind: encoded(kind) for kind in SAMPLINGS}, **ODD_KINDS}


def whole(data, by=1):
    pixels = simplejpeg.decode_jpeg(data, "RGB")
    if by > 1:
        height, width = -(-pixels.shape[0] // by), -(-pixels.shape[1] // by)
        pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width)
        assert pixels.shape[:2] == (height, width)
    return pixels


def cut_out(pixels, part):
    top, left, height, width = part
    return pixels[top : top + height, left : left + width]


def some_parts(height, width, count, seed=0):
    dice = np.random.default_rng(seed)
    for _ in range(count):
        h, w = int(dice.integers(1, height + 1)), int(dice.integers(1, width + 1))
        yield int(dice.integers(height - h + 1)), int(dice.integers(width - w + 1)), h, w
    yield from [(0, 0, height, width), (0, 0, 1, 1), (height - 1, width - 1, 1, 1)]


def libraries():
    """Pillow's libjpeg has the interface of version 6b, and torchvision's that of version 8."""
    names = {"Pillow's": _imaging.__file__}
    for file in sorted(Path(find_spec("torchvision").origin).parent.glob("image*.so")):
        names["torchvision's"] = str(file)
    return [pytest.param(path, id=name) for name, path in names.items()]


def decoder_by(library):
    try:
        return jpeg.compiled.Decoder(library)
    except OSError as error:  # a torchvision that was built without libjpeg
        pytest.skip(str(error))


def room(height, width):
    """Bytes that a part may need."""
    rows, columns = jpeg.compiled.MARGINS
    return (height + rows) * (width + columns) * 3


def read(decoder, data, part, by=1):
    """The part of an image by a decoder, or None."""
    _, _, height, width = part
    if decoder.open(data) is None:
        return None
    memory = np.empty(room(height, width), np.uint8)
    place = decoder.read(memory, by, *part)
    if place is None:
        return None
    return np.ndarray((height, width, 3), np.uint8, memory, place[0], (place[1], 3, 1))
