"""Photograph-like images of made-up classes, to try things out with nothing to download.

A picture is a surface with its class's texture (stripes, dots, bricks, ...) at a random scale,
angle, place and pair of colours, in front of a coloured 1/f background (the spectrum of natural
scenes: Field, "Relations between the statistics of natural images and the response properties of
cortical cells", 1987), under slanted light and with sensor noise. Only texture shows the class.

Guarantees: a picture depends on (seed, split, class, number) alone, and is the same bytes under the
same versions of numpy and Pillow. Its JPEG is 375 x 500 pixels, some upright, of about 110 KB,
ImageNet's mean: decoding it costs what decoding a real one costs. A folder holds a whole set or was
never touched: pictures are written to a hidden sibling and moved into place in one step.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from PIL import Image

from feedline.errors import DatasetError, UsageError
from feedline.sources.cache_folder import remove_owned
from feedline.system import refuse_unusable_path

LONG_PX, SHORT_PX = 500, 375
JPEG_QUALITY = 91
_PORTRAIT_SHARE = 0.25
_SENSOR_NOISE = 5.0  # grey levels; with the quality above, this makes the files ImageNet's size
_SPLITS = {"train": 0, "val": 1}
_MARKER = ".feedline-demo.json"
_ROOM = 40  # characters of the longest name, train/CLASS/CLASS-NUMBER.jpg
_VERSION = 1  # of the pictures; raise it when they change

_Plane = NDArray[Any]  # float32, shape (height, width)


def _cell(u: _Plane) -> _Plane:
    """The position within a unit cell, from -0.5 to 0.5."""
    cell: _Plane = u - np.floor(u) - np.float32(0.5)
    return cell


def _band(u: _Plane) -> _Plane:
    """The distance from a band that is half a period wide."""
    return np.abs(_cell(u)) - 0.25


def _offset(v: _Plane) -> _Plane:
    """Shift of the cells of every other row, by half a period."""
    return 0.5 * (np.floor(v) % 2)


# Distance of a position (u, v) from the marks of a texture, in periods, below 0 within. A set of N
# classes has the first N: the first few look least alike.
_TEXTURES: dict[str, Callable[[_Plane, _Plane], _Plane]] = {
    "stripes": lambda u, v: _band(u),
    "dots": lambda u, v: np.hypot(_cell(u), _cell(v)) - 0.3,
    "checks": lambda u, v: np.sin(np.pi * u) * np.sin(np.pi * v) * 0.5,
    "rings": lambda u, v: _band(np.hypot(_cell(u * 0.4), _cell(v * 0.4)) * 2.5 * 1.6),
    "zigzag": lambda u, v: _band(u + 1.5 * np.abs(_cell(v * 0.8))),
    "bricks": lambda u, v: (
        np.minimum((0.5 - np.abs(_cell(u * 0.5 + _offset(v)))) * 2.0, 0.5 - np.abs(_cell(v))) - 0.1
    ),
    "crosses": lambda u, v: np.maximum(
        np.minimum(np.abs(_cell(u)), np.abs(_cell(v))) - 0.1,
        np.maximum(np.abs(_cell(u)), np.abs(_cell(v))) - 0.38,
    ),
    "pinwheels": lambda u, v: np.sin(6.0 * np.arctan2(_cell(v * 0.5), _cell(u * 0.5))) * 0.3,
    "scales": lambda u, v: np.abs(np.hypot(_cell(u + _offset(v)), _cell(v) + 0.5) - 0.55) - 0.12,
    "weave": lambda u, v: _band(
        np.where(np.sin(np.pi * u * 0.5) * np.sin(np.pi * v * 0.5) > 0, u, v) * 2.0
    ),
    "triangles": lambda u, v: (_cell(u) + _cell(v)) * 0.7,
    "grid": lambda u, v: 0.38 - np.maximum(np.abs(_cell(u)), np.abs(_cell(v))),
}
CLASS_NAMES: tuple[str, ...] = tuple(_TEXTURES)


@cache
def _falloff(height: int, width: int) -> _Plane:
    """Amplitude 1/f of each frequency of a real image's spectrum, 0 at f = 0."""
    fy = np.fft.fftfreq(height)[:, None] * height
    fx = np.fft.rfftfreq(width)[None, :] * width
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = np.inf
    return (1.0 / frequency).astype(np.float32)  # type: ignore[no-any-return]


def _clouds(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    """1/f noise of shape (3, height, width), float32, mean 0 and deviation 1 in each channel."""
    falloff = _falloff(height, width)
    # One brightness plane and two weaker colour planes: real scenes vary more in light than in hue.
    noise = rng.standard_normal((3, *falloff.shape, 2), dtype=np.float32)
    planes = np.fft.irfft2(noise.view(np.complex64)[..., 0] * falloff, s=(height, width))
    planes /= planes.std(axis=(1, 2), keepdims=True)
    light, warm, green = planes.astype(np.float32)
    mixed = ((0.5, 0.2), (-0.2, 0.4), (-0.3, -0.6))  # of red, green and blue
    clouds = np.stack([light + a * warm + b * green for a, b in mixed])
    clouds /= clouds.std(axis=(1, 2), keepdims=True)
    return clouds


def demo_pixels(
    class_name: str, *, number: int, split: str = "train", seed: int = 0
) -> NDArray[np.uint8]:
    """Draw picture `number` of a class in "train" or "val", which share none.

    It is uint8 of shape (375, 500, 3) or, for a quarter of the pictures, (500, 375, 3).
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
    # A soft step at the marks' edges: 0 within, 1 outside, over a twelfth of a period.
    texture = np.clip(_TEXTURES[class_name](u, v) * 12.0 + 0.5, 0.0, 1.0)

    low, high = rng.uniform(15, 110, 3), rng.uniform(145, 245, 3)
    if rng.random() < 0.5:
        low, high = high, low
    low, high = low.astype(np.float32), high.astype(np.float32)
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
        contrast = high[channel] - low[channel]
        surface = low[channel] + contrast * texture + 8.0 * clouds[channel]
        backdrop = base[channel] + 38.0 * clouds[channel]
        value = (backdrop + (surface - backdrop) * inside) * lighting + grain
        pixels[..., channel] = np.clip(value, 0.0, 255.0)
    return pixels


def demo_jpeg(class_name: str, *, number: int, split: str = "train", seed: int = 0) -> bytes:
    """Draw a picture (see `demo_pixels`) as a JPEG, 4:2:0, of about 110 KB."""
    pixels = demo_pixels(class_name, number=number, split=split, seed=seed)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    return file.getvalue()


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSet:
    """Size and seed of a demo set, which decide every byte: 2 to 12 classes, pictures of each."""

    num_classes: int = 6
    train_per_class: int = 64
    val_per_class: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("num_classes", 2, len(CLASS_NAMES)),
            ("train_per_class", 1, 100_000),
            ("val_per_class", 1, 100_000),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"must be from {low} to {high}, got {value}", argument=name)

    @property
    def total(self) -> int:
        """Pictures in the set."""
        return self.num_classes * (self.train_per_class + self.val_per_class)

    def pictures(self) -> Iterator[tuple[str, str, str, int]]:
        """The path within the folder, split, class name and number of every picture."""
        for split, count in (("train", self.train_per_class), ("val", self.val_per_class)):
            for class_name in CLASS_NAMES[: self.num_classes]:
                for number in range(count):
                    path = f"{split}/{class_name}/{class_name}-{number:05d}.jpg"
                    yield path, split, class_name, number


def write_demo_set(
    folder: Path, demo: DemoSet, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> bool:
    """Write a demo set: `train/<class>/*.jpg` and `val/<class>/*.jpg`; False if it was there.

    `progress` is called with (pictures done, pictures in all) after each picture. If the folder has
    something else, a DatasetError names it, and it stays.
    """
    refuse_unusable_path(folder, room=_ROOM)
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise DatasetError(f"{folder} is a file; name a folder for the demo set")
    if folder.is_dir() and (name := next((path.name for path in folder.iterdir()), None)):
        if _has_set(folder, demo):
            return False
        raise DatasetError(
            f"{folder} is not empty ({name}), and not a whole demo set of {demo.num_classes} "
            f"classes, {demo.train_per_class} + {demo.val_per_class} images of each, seed "
            f"{demo.seed}",
            hint="name a new folder or an empty one",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    for partial in folder.parent.glob(f".{folder.name}.partial-*"):  # of runs that were killed
        pid = partial.name.rpartition("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            _remove(partial)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    partial.mkdir(exist_ok=True)
    try:
        size = 0
        for done, (name, split, class_name, number) in enumerate(demo.pictures(), start=1):
            path = partial / name
            if number == 0:
                path.parent.mkdir(parents=True)
            data = demo_jpeg(class_name, number=number, split=split, seed=demo.seed)
            path.write_bytes(data)
            size += len(data)
            progress(done, demo.total)
        marker = {"version": _VERSION, "set": asdict(demo), "bytes": size}
        (partial / _MARKER).write_bytes(f"{json.dumps(marker)}\n".encode())
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        _remove(partial)
    return True


def _remove(partial: Path) -> None:
    """Remove an incomplete set, unless others put files there."""
    remove_owned(partial, rf"{re.escape(_MARKER)}|({'|'.join(_SPLITS)})/[^/]+/[a-z]+-\d{{5}}\.jpg")
    with contextlib.suppress(OSError):
        partial.rmdir()


def _has_set(folder: Path, demo: DemoSet) -> bool:
    """Return True if a folder has a whole set, by its marker and the sizes of its files."""
    try:
        marker = json.loads((folder / _MARKER).read_text())
        size = sum((folder / name).stat().st_size for name, *_ in demo.pictures())
    except (OSError, ValueError):
        return False
    return bool(marker == {"version": _VERSION, "set": asdict(demo), "bytes": size})
