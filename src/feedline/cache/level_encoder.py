"""Resizes an image to its copies, one per resolution, and encodes them.

Guarantees: copies are made from the original, not from each other. Downscaling is antialiased.
Equal images give equal bytes. An image that is not larger than a resolution is stored without loss:
JPEG, PNG and WebP files unchanged if they need no rotation, everything else as PNG.

Relies on: torch's antialiased bicubic resize of uint8, which equals Pillow's within 0.003 grey
levels; Pillow's JPEG encoder with restart markers, which uses libjpeg's accurate transform. Of
Pillow's filters bicubic keeps a crop of a copy closest to the same crop of the original; the
figures are in docs/explanation/measurements.md under "Caches".
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.errors import ImageError
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import Decoder, codec_of
from feedline.images.crops import Box
from feedline.images.resize import fill
from feedline.order.pixel_layout import MODES, PixelLayout
from feedline.sources.manifest import Level, level_size
from feedline.sources.store import Pixels

_bicubic: Any = torch._C._nn._upsample_bicubic2d_aa
DEFAULT_JPEG_QUALITY = 95
RESTARTS = 4
"""Blocks of 16 x 16 pixels between two restart markers (ITU T.81), which allow decoding only a
crop: 2, 4 and 6 were equally fast."""
_UNCHANGED = ("JPEG", "PNG", "WEBP")
_MAX_EXTRA_BYTES = 1 << 16
"""Bytes, more than its pixels have, of a file that is stored unchanged: it may be an animation."""
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
        self._layout = MODES[options.mode]
        self._decoder = Decoder(options)
        self._reader = Decoder(replace(options, exif=False)) if options.exif else None

    def make_copies(self, image: bytes | Pixels) -> ResizedCopies:
        """Copy an image, encoded or pixels (height, width, channels); raises an ImageError."""
        if isinstance(image, np.ndarray):
            pixels = image
        else:
            self._decoder.open(image)
            # An original that is stored unchanged is decoded, too, to find broken ones now.
            pixels = np.ascontiguousarray(self._decoder.read())
        height, width = pixels.shape[:2]
        if PixelLayout(pixels.shape[2], pixels.dtype.name) != self._layout:
            raise ImageError(f"expected {self._layout}, got {pixels.dtype} of shape {pixels.shape}")
        copies, lossless = [], b""
        for level in self._levels:
            if level.quality is not None and min(height, width) <= level.side:
                lossless = lossless or self._encode_lossless(image, pixels)
                copies.append(lossless)
            else:
                copies.append(_encode(pixels, level))
        return ResizedCopies(height, width, tuple(copies))

    def _encode_lossless(self, image: bytes | Pixels, pixels: Pixels) -> bytes:
        """Return an image's file, if a cache's reader decodes it to the same pixels, or a PNG."""
        if not isinstance(image, np.ndarray):
            codec = codec_of(image)
            is_usual = codec is not None and codec.name in _UNCHANGED
            is_small = len(image) <= pixels.nbytes + _MAX_EXTRA_BYTES
            if is_usual and is_small and not self._decoder.is_clipped:
                if self._reader is None:
                    return image
                self._reader.open(image)
                if np.array_equal(self._reader.read(), pixels):
                    return image
        return _encoded(pixels, "PNG")


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
    return _encoded(
        small, "JPEG", quality=level.quality, subsampling="4:2:0", restart_marker_blocks=RESTARTS
    )


def _encoded(pixels: Pixels, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(
        file, format, **options
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
