"""Pillow image whose pixels are an array, until something needs them in Pillow's memory.

Guarantees: functions of RGB Pillow images give the same bytes as for any other image. They do not
write to its pixels.

Relies on: `images._photometric` for affine maps, because a round trip to Pillow takes as long as
such a map; on torchvision's and timm's functions changing no image in place; on the attributes of
Pillow's images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from feedline.sources.store import Pixels

try:
    from feedline.images import _photometric as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["ArrayImage", "pixels_of"]

_TAPS: dict[int, int] = {Image.Resampling.NEAREST: 1, Image.Resampling.BILINEAR: 2}


class ArrayImage(Image.Image):
    """An RGB image.

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
            made = np.zeros((size[1], size[0], 3), np.uint8)
            if fillcolor is not None:
                # Bytes are repeated ten times as fast as numpy spreads three of them.
                colour = bytearray(Image.new("RGB", (1, 1), fillcolor).tobytes())
                if any(colour):
                    made.data.cast("B")[:] = colour * (made.size // 3)
            try:
                compiled.warp(self.pixels, made, tuple(data), taps)
                return ArrayImage(made)
            except (TypeError, ValueError):  # which Pillow may take, or refuse in its own words
                pass
        return super().transform(size, method, data, resample, fill, fillcolor)


def pixels_of(image: Image.Image) -> Pixels:
    """Pixels of an RGB image of either kind, C-contiguous."""
    return image.pixels if isinstance(image, ArrayImage) else np.asarray(image)
