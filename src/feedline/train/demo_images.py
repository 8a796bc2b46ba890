"""Photograph-like images of made-up classes, for trying things out with nothing to download.

A picture is a surface with its class's texture (stripes, dots, bricks, ...) at a random scale,
angle, place and pair of colours, before a coloured 1/f background (the spectrum of natural scenes:
Field, "Relations between the statistics of natural images and the response properties of
cortical cells", 1987), under slanted light and with sensor noise. Colour says nothing about the
class; only texture does, so that a random crop still shows it.

Guarantees: a picture depends on (seed, split, class, number) alone, and is the same bytes under the
same versions of numpy and simplejpeg. Its JPEG is 375 x 500 pixels, some upright, of about 110 KB,
ImageNet's mean: decoding it costs what decoding a real one costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

__all__ = ["CLASS_NAMES", "LONG_PX", "SHORT_PX", "demo_jpeg", "demo_pixels"]

LONG_PX, SHORT_PX = 500, 375
JPEG_QUALITY = 91
_PORTRAIT_SHARE = 0.25
_SENSOR_NOISE = 5.0  # grey levels; with the quality above, this makes the files ImageNet's size
_SPLITS = {"train": 0, "val": 1}

_Plane = NDArray[Any]  # float32, shape (height, width)
_Texture = Callable[[_Plane, _Plane], _Plane]


def _edge(distance: _Plane) -> _Plane:
    """A soft step: 0 where `distance` is below 0, 1 above, over a twelfth of a period."""
    soft: _Plane = np.clip(distance * 12.0 + 0.5, 0.0, 1.0)
    return soft


def _cell(u: _Plane) -> _Plane:
    """The position within a unit cell, from -0.5 to 0.5."""
    cell: _Plane = u - np.floor(u) - np.float32(0.5)
    return cell


def _stripes(u: _Plane, v: _Plane) -> _Plane:
    return _edge(np.abs(_cell(u)) - 0.25)


def _dots(u: _Plane, v: _Plane) -> _Plane:
    return _edge(np.hypot(_cell(u), _cell(v)) - 0.3)


def _checks(u: _Plane, v: _Plane) -> _Plane:
    return _edge(np.sin(np.pi * u) * np.sin(np.pi * v) * 0.5)


def _rings(u: _Plane, v: _Plane) -> _Plane:
    radius = np.hypot(_cell(u * 0.4), _cell(v * 0.4)) * 2.5
    return _edge(np.abs(_cell(radius * 1.6)) - 0.25)


def _zigzag(u: _Plane, v: _Plane) -> _Plane:
    return _edge(np.abs(_cell(u + 1.5 * np.abs(_cell(v * 0.8)))) - 0.25)


def _bricks(u: _Plane, v: _Plane) -> _Plane:
    row = np.floor(v)
    across = _cell(u * 0.5 + 0.5 * (row % 2))
    return _edge(np.minimum((0.5 - np.abs(across)) * 2.0, 0.5 - np.abs(_cell(v))) - 0.1)


def _crosses(u: _Plane, v: _Plane) -> _Plane:
    x, y = np.abs(_cell(u)), np.abs(_cell(v))
    return _edge(np.maximum(np.minimum(x, y) - 0.1, np.maximum(x, y) - 0.38))


def _triangles(u: _Plane, v: _Plane) -> _Plane:
    return _edge((_cell(u) + _cell(v)) * 0.7)


def _weave(u: _Plane, v: _Plane) -> _Plane:
    over = np.sin(np.pi * u * 0.5) * np.sin(np.pi * v * 0.5) > 0
    return _edge(np.abs(_cell(np.where(over, u, v) * 2.0)) - 0.25)


def _scales(u: _Plane, v: _Plane) -> _Plane:
    row = np.floor(v)
    x = _cell(u + 0.5 * (row % 2))
    return _edge(np.abs(np.hypot(x, _cell(v) + 0.5) - 0.55) - 0.12)


def _pinwheels(u: _Plane, v: _Plane) -> _Plane:
    angle = np.arctan2(_cell(v * 0.5), _cell(u * 0.5))
    return _edge(np.sin(6.0 * angle) * 0.3)


def _grid(u: _Plane, v: _Plane) -> _Plane:
    return _edge(0.38 - np.maximum(np.abs(_cell(u)), np.abs(_cell(v))))


# In this order `--classes N` takes the first N: the first few look least alike.
_TEXTURES: dict[str, _Texture] = {
    "stripes": _stripes,
    "dots": _dots,
    "checks": _checks,
    "rings": _rings,
    "zigzag": _zigzag,
    "bricks": _bricks,
    "crosses": _crosses,
    "pinwheels": _pinwheels,
    "scales": _scales,
    "weave": _weave,
    "triangles": _triangles,
    "grid": _grid,
}
CLASS_NAMES: tuple[str, ...] = tuple(_TEXTURES)


@cache
def _falloff(height: int, width: int) -> _Plane:
    """The amplitude 1/f of each frequency of a real image's spectrum, 0 at f = 0."""
    fy = np.fft.fftfreq(height)[:, None] * height
    fx = np.fft.rfftfreq(width)[None, :] * width
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = np.inf
    falloff: _Plane = (1.0 / frequency).astype(np.float32)
    return falloff


def _clouds(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    """1/f noise of shape (3, height, width), float32, mean 0 and deviation 1 in each channel."""
    falloff = _falloff(height, width)
    # One brightness plane and two weaker colour planes: real scenes vary more in light than in hue.
    noise = rng.standard_normal((3, *falloff.shape, 2), dtype=np.float32)
    planes = np.fft.irfft2(noise.view(np.complex64)[..., 0] * falloff, s=(height, width))
    planes /= planes.std(axis=(1, 2), keepdims=True)
    light, warm, green = planes.astype(np.float32)
    clouds = np.stack(
        [
            light + 0.5 * warm + 0.2 * green,
            light - 0.2 * warm + 0.4 * green,
            light - 0.3 * warm - 0.6 * green,
        ]
    )
    clouds /= clouds.std(axis=(1, 2), keepdims=True)
    return clouds


def demo_pixels(
    class_name: str, *, number: int, split: str = "train", seed: int = 0
) -> NDArray[np.uint8]:
    """Draw one picture.

    Args:
        class_name: one of `CLASS_NAMES`.
        number: which picture of the class, from 0.
        split: "train" or "val"; they share no picture.
        seed: another seed, another set.

    Returns:
        uint8 of shape (375, 500, 3) or, for a quarter of the pictures, (500, 375, 3).
    """
    rng = np.random.default_rng([seed, _SPLITS[split], CLASS_NAMES.index(class_name), number])
    portrait = rng.random() < _PORTRAIT_SHARE
    height, width = (LONG_PX, SHORT_PX) if portrait else (SHORT_PX, LONG_PX)
    y = np.arange(height, dtype=np.float32)[:, None]
    x = np.arange(width, dtype=np.float32)[None, :]
    clouds = _clouds(rng, height, width)

    # The texture, turned, scaled and slightly bent by the clouds so that no line is quite straight.
    angle, period_px = rng.uniform(-0.45, 0.45), rng.uniform(28, 64)
    bend = clouds[1] * np.float32(0.1)
    cos, sin = math.cos(angle) / period_px, math.sin(angle) / period_px
    u = x * cos + y * sin + rng.uniform(0, 8) + bend
    v = y * cos - x * sin + rng.uniform(0, 8) + bend
    texture = _TEXTURES[class_name](u, v)

    dark, light = rng.uniform(15, 110, 3), rng.uniform(145, 245, 3)
    if rng.random() < 0.5:
        dark, light = light, dark
    colours = (dark.astype(np.float32), light.astype(np.float32))
    base = rng.uniform(70, 185, 3).astype(np.float32)

    # The surface's outline: a rounded, uneven patch that leaves some background.
    centre_y, centre_x = rng.uniform(0.35, 0.65) * height, rng.uniform(0.35, 0.65) * width
    radius_y, radius_x = rng.uniform(0.42, 0.75) * height, rng.uniform(0.42, 0.75) * width
    outline = np.square(np.square((y - centre_y) / radius_y))
    outline = outline + np.square(np.square((x - centre_x) / radius_x))
    inside = np.clip((1.0 + 0.25 * clouds[2] - outline) * 8.0, 0.0, 1.0)

    slope_y, slope_x = rng.uniform(-0.35, 0.35), rng.uniform(-0.35, 0.35)
    lighting = 1.0 + slope_y * (y / height - 0.5) + slope_x * (x / width - 0.5)
    grain = rng.standard_normal((height, width), dtype=np.float32) * np.float32(_SENSOR_NOISE)

    pixels = np.empty((height, width, 3), dtype=np.uint8)
    for channel in range(3):
        low, high = colours[0][channel], colours[1][channel]
        surface = low + (high - low) * texture + 8.0 * clouds[channel]
        backdrop = base[channel] + 38.0 * clouds[channel]
        value = (backdrop + (surface - backdrop) * inside) * lighting + grain
        pixels[..., channel] = np.clip(value, 0.0, 255.0)
    return pixels


def demo_jpeg(class_name: str, *, number: int, split: str = "train", seed: int = 0) -> bytes:
    """Draw one picture as a JPEG, 4:2:0, of about 110 KB. Arguments as for `demo_pixels`."""
    pixels = demo_pixels(class_name, number=number, split=split, seed=seed)
    encoded: bytes = simplejpeg.encode_jpeg(
        pixels, quality=JPEG_QUALITY, colorspace="RGB", colorsubsampling="420"
    )
    return encoded
