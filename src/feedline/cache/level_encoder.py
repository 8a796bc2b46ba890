"""An image to its copies, one for each level.

Guarantees: copies are made of the original, not of one another; downscaling is antialiased; the
same image gives the same bytes. An image that is not larger than a level is kept as it is, where it
is a JPEG that stands upright: its bytes are the original's.

Relies on: torch's antialiased bicubic resize of uint8, which is Pillow's within 0.003 grey levels;
Pillow's JPEGs, which may have restart markers and are made by libjpeg's accurate transform. Of
Pillow's filters bicubic leaves a crop of a copy nearest to the same crop of the original; how
near, docs/explanation/measurements.md says under "Caches".
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
from feedline.images.decode import Decoder
from feedline.images.headers import jpeg_orientation
from feedline.stores.cache_layout import Level, level_size
from feedline.stores.store import Pixels

__all__ = ["RESTARTS", "Copies", "LevelEncoder", "Opened"]

_bicubic: Any = torch._C._nn._upsample_bicubic2d_aa
_SUBSAMPLING = "4:2:0"
RESTARTS = 4
"""Blocks of 16 x 16 pixels between two restart markers (ITU T.81), so that only a crop's codes are
read: 2, 4 and 6 were measured equally quick."""
_LONGEST_PX = 65_500  # of a JPEG: libjpeg's JPEG_MAX_DIMENSION


@dataclass(frozen=True)
class Copies:
    """What was made of an image.

    Args:
        height: of the original, in pixels, upright where that was asked for.
        width: of the original.
        images: its bytes in each level, as files.
    """

    height: int
    width: int
    images: tuple[bytes, ...]


@dataclass(frozen=True)
class Opened:
    """A decoded original.

    Args:
        pixels: uint8 (height, width, 3), RGB, valid until the encoder opens another image.
        as_it_is: its own bytes, where a level that it is not larger than keeps these; else None.
    """

    pixels: Pixels
    as_it_is: bytes | None


class LevelEncoder:
    """Makes copies, one image after the other, in one thread.

    Args:
        levels: which.
        exif: turn images upright by their Exif orientation.
        max_pixels: an image whose header announces more is an ImageError.
    """

    def __init__(self, levels: Sequence[Level], *, exif: bool, max_pixels: int) -> None:
        self._levels = levels
        self._exif = exif
        self._decoder = Decoder(max_pixels=max_pixels, exif=exif)

    def copies(self, image: bytes | Pixels) -> Copies:
        """The copies of an image, encoded or as pixels, uint8 (height, width, 3), RGB.

        Raises:
            ImageError: it cannot be decoded, or is too long for a JPEG.
        """
        opened = self.open(image)
        height, width = opened.pixels.shape[:2]
        return Copies(height, width, tuple(self.copy(opened, level) for level in self._levels))

    def open(self, image: bytes | Pixels) -> Opened:
        """Decode an image, of which copies are then made; raises as `copies` does."""
        if isinstance(image, np.ndarray):
            return Opened(image, None)
        self._decoder.open(image)
        as_it_is = self._decoder.reducible and not (self._exif and jpeg_orientation(image) != 1)
        # An original that is kept is decoded all the same, so that a broken one is found now.
        pixels = np.ascontiguousarray(self._decoder.read())
        return Opened(pixels, image if as_it_is else None)

    def copy(self, opened: Opened, level: Level) -> bytes:
        """One copy of an image, as a file.

        Raises:
            ImageError: it would be too long for a JPEG.
        """
        keeps = min(opened.pixels.shape[:2]) <= level.side and level.quality is not None
        if keeps and opened.as_it_is is not None:
            return opened.as_it_is
        return self._made(opened.pixels, level)

    def _made(self, pixels: Pixels, level: Level) -> bytes:
        height, width = pixels.shape[:2]
        small = _resized(pixels, *level_size(height, width, level.side))
        if level.quality is None:
            return npy_header(*small.shape[:2]) + small.tobytes()
        if max(small.shape) > _LONGEST_PX:
            raise ImageError(
                f"its copy of {small.shape[1]} x {small.shape[0]} pixels cannot be a JPEG, whose "
                f"sides have at most {_LONGEST_PX}: cut the image up, or keep raw pixels"
            )
        file = io.BytesIO()
        Image.fromarray(small).save(
            file,
            "JPEG",
            quality=level.quality,
            subsampling=_SUBSAMPLING,
            restart_marker_blocks=RESTARTS,
        )
        return file.getvalue()


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    if pixels.shape[:2] == (height, width):
        return np.ascontiguousarray(pixels)
    small = np.empty((height, width, 3), np.uint8)
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
def npy_header(height: int, width: int) -> bytes:
    """What numpy writes before the pixels of an image of this size: 128 bytes."""
    header = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": (height, width, 3)}
    np.lib.format.write_array_header_1_0(header, form)
    return header.getvalue()
