"""Resizes an image to its copies, one per resolution, and encodes them.

Guarantees: copies are made from the original, not from each other. Downscaling is antialiased.
Equal images give equal bytes. An upright JPEG that is not larger than a resolution is stored
unchanged.

Relies on: torch's antialiased bicubic resize of uint8, which equals Pillow's within 0.003 grey
levels; Pillow's JPEG encoder with restart markers, which uses libjpeg's accurate transform. Of
Pillow's filters bicubic keeps a crop of a copy closest to the same crop of the original; the
figures are in docs/explanation/measurements.md under "Caches".
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.errors import ImageError
from feedline.images.codec_registry import DecodeOptions, Decoder
from feedline.images.crops import Box
from feedline.images.jpeg import jpeg_orientation
from feedline.images.resize import fill
from feedline.order.pixel_layout import MODES, PixelLayout
from feedline.sources.manifest import Level, level_size
from feedline.sources.store import Pixels

__all__ = ["DEFAULT_JPEG_QUALITY", "RESTARTS", "LevelEncoder", "ResizedCopies"]

_bicubic: Any = torch._C._nn._upsample_bicubic2d_aa
DEFAULT_JPEG_QUALITY = 95
RESTARTS = 4
"""Blocks of 16 x 16 pixels between two restart markers (ITU T.81), which allow decoding only a
crop: 2, 4 and 6 were equally fast."""
_MAX_JPEG_PX = 65_500  # libjpeg's JPEG_MAX_DIMENSION


@dataclass(frozen=True)
class ResizedCopies:
    """Height and width of an original in pixels, after Exif rotation if requested, and its encoded
    copies, one per resolution.
    """

    height: int
    width: int
    images: tuple[bytes, ...]


class LevelEncoder:
    """Makes copies of one image after another, in one thread."""

    def __init__(self, levels: Sequence[Level], options: DecodeOptions) -> None:
        self._levels = levels
        self._exif = options.exif
        self._layout = MODES[options.mode]
        self._decoder = Decoder(options)

    def make_copies(self, image: bytes | Pixels) -> ResizedCopies:
        """Make the copies of an image, encoded or as pixels (height, width, channels); raises an
        ImageError.
        """
        if isinstance(image, np.ndarray):
            pixels, unchanged = image, None
        else:
            self._decoder.open(image)
            upright = not self._exif or jpeg_orientation(image) == 1
            unchanged = image if self._decoder.reducible and upright else None
            # An original that is stored unchanged is decoded, too, to find broken ones now.
            pixels = np.ascontiguousarray(self._decoder.read())
        height, width = pixels.shape[:2]
        if PixelLayout(pixels.shape[2], pixels.dtype.name) != self._layout:
            raise ImageError(f"expected {self._layout}, got {pixels.dtype} of shape {pixels.shape}")
        copies = []
        for level in self._levels:
            if unchanged is not None and min(height, width) <= level.side and level.quality:
                copies.append(unchanged)
            else:
                copies.append(_encode(pixels, level))
        return ResizedCopies(height, width, tuple(copies))


def _encode(pixels: Pixels, level: Level) -> bytes:
    height, width = pixels.shape[:2]
    small = _resize(pixels, *level_size(height, width, level.side))
    if level.quality is None:
        return _npy_header(small.shape, small.dtype) + small.tobytes()
    if max(small.shape) > _MAX_JPEG_PX:
        raise ImageError(
            f"its copy of {small.shape[1]} x {small.shape[0]} pixels is too large for a JPEG, "
            f"at most {_MAX_JPEG_PX} pixels per side: split the image, or store raw pixels"
        )
    file = io.BytesIO()
    Image.fromarray(small[..., 0] if small.shape[2] == 1 else small).save(
        file,
        "JPEG",
        quality=level.quality,
        subsampling="4:2:0",
        restart_marker_blocks=RESTARTS,
    )
    return file.getvalue()


def _resize(pixels: Pixels, height: int, width: int) -> Pixels:
    if pixels.shape[:2] == (height, width):
        return np.ascontiguousarray(pixels)
    small = np.empty((height, width, pixels.shape[2]), pixels.dtype)
    if pixels.itemsize > 1:
        from_height, from_width = pixels.shape[:2]
        fill(small, pixels, Box(0, 0, from_height, from_width, False, filter="bicubic"))
        return small
    if not pixels.flags.writeable:  # torch would warn
        pixels = pixels.copy()
    _bicubic(
        torch.from_numpy(pixels[None]).permute(0, 3, 1, 2),
        [height, width],
        False,
        None,
        None,
        out=torch.from_numpy(small[None]).permute(0, 3, 1, 2),
    )
    return small


@functools.lru_cache(256)
def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the 128 bytes that NumPy writes before the pixels of an image of this size."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    form = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, form)
    return header.getvalue()
