"""Operations on pixels, each equal to Pillow's or timm's function of that name, byte for byte.

Guarantees: pixels are (height, width, 3) uint8, RGB and C-contiguous, before and after. The result
is written in place if the input is writable and the operation keeps the position of each pixel.
Functions of RGB Pillow images give the same bytes for an `ArrayImage`; they do not write to its
pixels.

Relies on numpy for operations of one pass over the bytes, and on `images._photometric` for the
rest: without that these are not available. On torchvision's and timm's functions changing no image
in place; on the attributes of Pillow's images.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image

from feedline.sources.store import Pixels

try:
    from feedline.images import _photometric as photometric
except ImportError:
    photometric = None  # type: ignore[assignment]

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "GREY",
    "HUE",
    "SATURATION",
    "ArrayImage",
    "adjust",
    "auto_contrast",
    "blur",
    "equalize",
    "horizontal_flip",
    "invert",
    "pixels_of",
    "posterize",
    "sharpness",
    "solarize",
    "solarize_add",
    "vertical_flip",
]

BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY = range(5)
_LEVELS = np.arange(256)


def _output(pixels: Pixels) -> Pixels:
    """Output array: the input itself if it is writable."""
    return pixels if pixels.flags.writeable else np.empty_like(pixels)


def horizontal_flip(pixels: Pixels) -> Pixels:
    """Mirror left and right."""
    # np.ascontiguousarray would keep the negative stride of one column, which torch rejects.
    return pixels[:, ::-1].copy()  # type: ignore[no-any-return]


def vertical_flip(pixels: Pixels) -> Pixels:
    """Flip top and bottom."""
    return pixels[::-1].copy()  # type: ignore[no-any-return]


def invert(pixels: Pixels) -> Pixels:
    """Subtract each grey level from 255."""
    output = _output(pixels)
    np.invert(pixels, out=output)
    return output


def posterize(pixels: Pixels, bits: int) -> Pixels:
    """Keep the upper 1 to 8 bits of each grey level."""
    output = _output(pixels)
    np.bitwise_and(pixels, np.uint8(256 - (1 << (8 - bits))), out=output)
    return output


def solarize(pixels: Pixels, threshold: float) -> Pixels:
    """Invert the grey levels that are not below a threshold, as for NaN."""
    if threshold > 255:
        return pixels
    first = np.uint8(math.ceil(threshold) if threshold > 0 else 0)
    # All bits of the levels to invert.
    mask = np.negative((pixels >= first).view(np.uint8))
    output = _output(pixels)
    np.bitwise_xor(pixels, mask, out=output)
    return output


def adjust(pixels: Pixels, kind: int, factor: float) -> Pixels:
    """Change brightness, contrast, saturation or hue, or convert to grey, by a factor."""
    output = _output(pixels)
    photometric.adjust(pixels, output, kind, factor)
    return output


def sharpness(pixels: Pixels, factor: float) -> Pixels:
    """Smooth with a factor below 1, sharpen with one above."""
    output = np.empty_like(pixels)
    photometric.sharpen(pixels, output, factor)
    return output


def blur(pixels: Pixels, taps: tuple[int, int], sigmas: tuple[float, float]) -> Pixels:
    """Blur by torchvision's Gaussian kernel, of this width and height, within one grey level."""
    output = _output(pixels)
    across, down = map(_gaussian, taps, sigmas)
    photometric.blur(pixels, output, across, down)
    return output


def _gaussian(taps: int, sigma: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Weights of the torchvision kernel in one direction."""
    half = (taps - 1) / 2
    weights = np.exp(-0.5 * (np.linspace(-half, half, taps) / sigma) ** 2)
    return (weights / weights.sum()).astype(np.float32)  # type: ignore[no-any-return]


def solarize_add(pixels: Pixels, add: int, thresh: int = 128) -> Pixels:
    """Add to the levels below a threshold, up to 255: timm's function."""
    table = np.where(thresh > _LEVELS, np.minimum(_LEVELS + add, 255), _LEVELS)
    return _look_up(pixels, [table] * 3)


def auto_contrast(pixels: Pixels) -> Pixels:
    """Stretch each channel's levels over the full range."""
    tables = []
    for counts in _histogram(pixels):
        levels = counts.nonzero()[0]
        low, high = int(levels[0]), int(levels[-1])
        if high <= low:
            tables.append(_LEVELS)
            continue
        scale = 255.0 / (high - low)
        tables.append(np.clip((_LEVELS * scale + -low * scale).astype(np.int64), 0, 255))
    return _look_up(pixels, tables)


def equalize(pixels: Pixels) -> Pixels:
    """Equalise the histogram of each channel."""
    tables = []
    for counts in _histogram(pixels):
        positive = counts[counts > 0]
        step = int(positive.sum() - positive[-1]) // 255
        if len(positive) <= 1 or not step:
            tables.append(_LEVELS)
            continue
        below = np.cumsum(counts, dtype=np.int64) - counts
        tables.append(np.minimum((step // 2 + below) // step, 255))
    return _look_up(pixels, tables)


def _histogram(pixels: Pixels) -> np.ndarray[Any, np.dtype[np.uint32]]:
    counts = np.empty((3, 256), np.uint32)
    photometric.count(pixels, counts)
    return counts


def _look_up(pixels: Pixels, tables: list[np.ndarray[Any, Any]]) -> Pixels:
    output = _output(pixels)
    table = b"".join(each.astype(np.uint8).tobytes() for each in tables)
    photometric.look_up(pixels, output, table)
    return output


_TAPS: dict[int, int] = {Image.Resampling.NEAREST: 1, Image.Resampling.BILINEAR: 2}


class ArrayImage(Image.Image):
    """RGB Pillow image whose pixels are an array until something needs them in Pillow's memory.

    A round trip to Pillow takes as long as an affine map, so `_photometric` does such maps.

    Args:
        pixels: uint8 (height, width, 3), C-contiguous.
    """

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.pixels = pixels
        self._mode = "RGB"
        self._size = pixels.shape[1], pixels.shape[0]

    @property
    def im(self) -> Any:
        """Image core that Pillow's own functions work on."""
        if self._core is None:
            self._core = Image.fromarray(self.pixels).im
        return self._core

    @im.setter
    def im(self, core: Any) -> None:  # Pillow's __init__ sets it in versions before 11
        self._core = core

    _core: Any = None

    def copy(self) -> Image.Image:
        """Copy the image."""
        return ArrayImage(self.pixels)

    def transform(
        self,
        size: tuple[int, int],
        method: Any,
        data: Any = None,
        resample: int = Image.Resampling.NEAREST,
        fill: int = 1,
        fillcolor: Any = None,
    ) -> Image.Image:
        """Like Pillow's `transform`."""
        taps = _TAPS.get(resample)
        if method == Image.Transform.AFFINE and taps is not None and fill == 1:
            output = np.zeros((size[1], size[0], 3), np.uint8)
            if fillcolor is not None:
                # Bytes are repeated ten times as fast as numpy spreads three of them.
                colour = bytearray(Image.new("RGB", (1, 1), fillcolor).tobytes())
                if any(colour):
                    output.data.cast("B")[:] = colour * (output.size // 3)
            try:
                photometric.warp(self.pixels, output, tuple(data), taps)
                return ArrayImage(output)
            except (TypeError, ValueError):  # which Pillow may accept, or refuse in its own words
                pass
        return super().transform(size, method, data, resample, fill, fillcolor)


def pixels_of(image: Image.Image) -> Pixels:
    """Pixels of an RGB image, C-contiguous."""
    return image.pixels if isinstance(image, ArrayImage) else np.asarray(image)
