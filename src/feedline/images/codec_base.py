"""Base class of image formats, settings for decoding, and conversions that formats share.

Positions of numbers in an Exif block are from Exif 2.32 section 4.6.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags

from feedline.errors import ImageError
from feedline.images.crops import Part
from feedline.sources.store import Pixels

DEFAULT_MAX_PIXELS = 178_956_970
"""Twice 0.25 GiB of RGB pixels, Pillow's default limit."""

_EXIF_WHOLE_NUMBERS = {3: "H", 4: "I", 8: "h", 9: "i"}
_EXIF_PREFIX = re.compile(rb"^(?:Exif\0\0){1,2}")
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of a decoder.

    Args:
        max_pixels: maximum number of pixels in a header.
        exif: rotate images as `PIL.ImageOps.exif_transpose`, by the orientation in Exif or XMP.
        mode: Pillow's mode of the result, one of `pixel_layout.MODES`.
        scaled: decode a JPEG at a reduced size if the part still has the row's size.
    """

    max_pixels: int = DEFAULT_MAX_PIXELS
    exif: bool = False
    mode: str = "RGB"
    scaled: bool = False

    @property
    def decode(self) -> str:
        """A user's `decode` argument."""
        return "scaled" if self.scaled else "exact"


class DecodedPixels(NamedTuple):
    """A decoded image.

    Args:
        pixels: (height, width, channels) of the mode's dtype, C-contiguous, writable.
        is_clipped: True if the file has 16 bits of grey, and the mode clips them to 8.
    """

    pixels: Pixels
    is_clipped: bool = False


@dataclass(frozen=True)
class Codec:
    """An image format: a subclass needs `decode`, all else is optional.

    Args:
        name: name in messages, Pillow's.
        extensions: usual file extensions, in lower case.
        signatures: first bytes of a file, one of them.
        decodes_parts: True if decoding a part takes less time than all, and `size` is known.
    """

    name: str
    extensions: tuple[str, ...]
    signatures: tuple[bytes, ...] = ()
    decodes_parts: bool = False

    def matches(self, data: bytes) -> bool:
        """Return True if a file has this format. Extensions may be wrong, as in ImageNet."""
        return data.startswith(self.signatures)

    def size(self, data: bytes) -> tuple[int, int] | None:
        """Height and width in pixels from the header; None if `decode` checks them itself."""
        return None

    def decode(self, data: bytes, options: DecodeOptions, part: Part | None) -> DecodedPixels:
        """Decode a file for which `matches` returned True.

        `part` selects a rectangle; None, as always without `decodes_parts`, is the whole image.

        Raises:
            ImageError: it cannot be decoded, or is too large.
        """
        raise NotImplementedError


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Raise an ImageError if an image is too large, before it is decoded."""
    if width * height > max_pixels:
        raise ImageError(
            f"its header announces {width} x {height} = {width * height} pixels, more than "
            f"max_pixels={max_pixels}: a damaged header, a decompression bomb or a very large "
            "image (then raise max_pixels)"
        )


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Rotate pixels (height, width, channels) by an Exif orientation, 1 to 8.

    5 to 8 exchange height and width. The result is C-contiguous; 1 returns `pixels` itself.
    """
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def find_orientation(info: Mapping[Any, object]) -> int:
    """Orientation, 1 to 8, in Pillow's `info` of an image; 1 (upright) if it has none.

    As `ImageOps.exif_transpose`, it reads the Exif block or PNG's text profile, and XMP if these
    have no orientation. Damaged blocks have none.
    """
    exif, profile = info.get("exif"), info.get("Raw profile type exif")
    if exif is None and isinstance(profile, str):
        with contextlib.suppress(ValueError):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
    found = _exif_orientation(exif) if isinstance(exif, bytes) else None
    if found is None:
        xmp = info.get("XML:com.adobe.xmp") or info.get("xmp")
        xmp = xmp.encode() if isinstance(xmp, str) else xmp
        match = _XMP_ORIENTATION.search(xmp) if isinstance(xmp, bytes) else None
        found = int(match[1]) if match else 1
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """First value of the orientation in an Exif block, with or without "Exif\\0\\0" before it.

    0 if it is not a whole number; None if there is none.
    """
    exif = _EXIF_PREFIX.sub(b"", exif)
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return None
    with contextlib.suppress(struct.error):
        (at,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * entries, 12):
            tag, kind, count, _ = struct.unpack_from(order + "HHII", exif, entry)
            if tag == ExifTags.Base.Orientation and count:
                form = _EXIF_WHOLE_NUMBERS.get(kind)
                return int(struct.unpack_from(order + form, exif, entry + 8)[0]) if form else 0
    return None
