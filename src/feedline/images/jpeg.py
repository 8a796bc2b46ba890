"""JPEG bytes to RGB: the part that is wanted, without decoding the rest where that can be.

Guarantees: the pixels that a decode of the whole gives, to the last bit, whichever way it goes;
an image that ends before its last pixel is an ImageError, but for one that only looks whole and
lacks what is not wanted; the header's pixel count is checked before anything of that size is
reserved.

Relies on: `_jpeg`, compiled, which decodes a part by the libjpeg-turbo that Pillow brings. What
that leaves (where it was not compiled, Pillow brings none, the file warns of anything) simplejpeg
decodes whole, and what that leaves Pillow does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, _imaging, features
from simplejpeg import decode_jpeg, decode_jpeg_header

from feedline.errors import ImageError
from feedline.images.crops import Part, cut
from feedline.images.headers import jpeg_orientation
from feedline.images.pillow import check_pixels, decode_with_pillow, upright

try:
    from feedline.images import _jpeg as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["Pixels", "Scratch", "Wanted", "decode_whole_or_part"]

Pixels: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

_KEPT_BYTES = 64 << 20
# How much more than the part `_jpeg` may need, down and across.
_MARGIN_ROWS, _MARGIN_COLUMNS = 2, 40
_SOUND = (3, 0)
"""Earlier versions of libjpeg-turbo have errors in what decodes parts, says its ChangeLog.md."""

_LOSSLESS = b"\xff\xc3"
"""Begins a lossless JPEG's header. libjpeg-turbo 3 decodes such, and falsely claims to scale."""

_FAST_COLOURS = frozenset(("YCbCr", "Gray", "RGB"))
_TRUNCATED = ("Premature end of JPEG file", "premature end of data segment")


def _libjpeg_turbo() -> tuple[int, ...]:
    """The version of the libjpeg-turbo that Pillow has; () where it has another libjpeg."""
    said = features.version("libjpeg_turbo") or ""
    return tuple(int(number) for number in said.split(".") if number.isdigit())


class Wanted(NamedTuple):
    """What of a JPEG is to be decoded.

    Args:
        by: 1, 2, 4 or 8: the image comes out smaller by that, each side rounded up.
        part: which part of what comes out; None for all.
    """

    by: int = 1
    part: Part | None = None


class Scratch(threading.local):
    """What is kept from one image to the next: memory and a decoder. Each thread has its own.

    Reusing memory saves the page faults of fresh memory, 18% of a decode. It grows to the largest
    image met, up to 64 MiB; larger ones get memory of their own.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(1 << 20, np.uint8)
        self.decoder: compiled.Decoder | None = None
        if compiled is not None and _libjpeg_turbo() >= _SOUND:
            # Pillow may have its libjpeg inside, where nobody finds the functions.
            with contextlib.suppress(OSError):
                self.decoder = compiled.Decoder(_imaging.__file__)

    def reserve(self, size_bytes: int) -> Pixels:
        """Give at least `size_bytes`."""
        if size_bytes > len(self._buffer):
            if size_bytes > _KEPT_BYTES:
                return np.empty(size_bytes, np.uint8)
            self._buffer = np.empty(size_bytes, np.uint8)
        return self._buffer


def decode_whole_or_part(
    data: bytes,
    scratch: Scratch,
    *,
    max_pixels: int,
    exif: bool,
    wanted: Callable[[int, int], Wanted] | None,
) -> Pixels:
    """Decode a JPEG's bytes; the arguments, the result and the errors are those of `decode`."""
    pixels: Pixels
    orientation = jpeg_orientation(data) if exif else 1
    decoder = scratch.decoder
    size = decoder.open(data) if decoder and orientation == 1 else None
    height, width = size or _read_header(data)
    if not height:
        pixels = decode_with_pillow(data, "JPEG", max_pixels=max_pixels, exif=False)
        return upright(pixels, orientation)
    check_pixels(width, height, max_pixels)
    want = Wanted()
    if wanted is not None:
        want = wanted(width, height) if orientation >= 5 else wanted(height, width)
    by, part = want
    if decoder and size and not (by > 1 and _LOSSLESS in data):
        top, left, rows, columns = part or (0, 0, -(-height // by), -(-width // by))
        buffer = scratch.reserve((rows + _MARGIN_ROWS) * (columns + _MARGIN_COLUMNS) * 3)
        place = decoder.read(buffer, by, top, left, rows, columns)
        if place:
            first, stride = place
            pixels = np.ndarray((rows, columns, 3), np.uint8, buffer, first, (stride, 3, 1))
            return pixels
    pixels = _decode_whole(data, height, width, by, scratch, max_pixels)
    if pixels.shape[:2] != (-(-height // by), -(-width // by)):
        raise ImageError(f"its header announces {width} x {height} pixels, which it has not")
    return cut(upright(pixels, orientation), part)


def _read_header(data: bytes) -> tuple[int, int]:
    """Height and width; zeros for what simplejpeg cannot decode."""
    try:
        height, width, colours, _ = decode_jpeg_header(data)
    except ValueError:
        return 0, 0
    return (int(height), int(width)) if colours in _FAST_COLOURS else (0, 0)


def _decode_whole(
    data: bytes, height: int, width: int, by: int, scratch: Scratch, max_pixels: int
) -> Pixels:
    """Decode a JPEG of one or three colours, smaller by `by`."""
    pixels: Pixels
    buffer = scratch.reserve(height * width * 3)
    try:
        if by > 1 and _LOSSLESS in data:
            raise ValueError("lossless")
        if by == 1:
            pixels = decode_jpeg(data, "RGB", buffer=buffer, strict=True)
        else:
            # simplejpeg takes the smallest scale that is no smaller than this, and it also has odd
            # eighths, which are slower than a full decode: ask for the exact size.
            pixels = decode_jpeg(
                data,
                "RGB",
                min_height=-(-height // by),
                min_width=-(-width // by),
                buffer=buffer,
                strict=True,
            )
    except ValueError as error:
        reason = str(error)
        if reason.endswith(_TRUNCATED):
            raise ImageError(
                f"the JPEG ends before its last pixel ({reason}): "
                "an interrupted copy or download, or a damaged disk"
            ) from None
        pixels = decode_with_pillow(data, "JPEG", max_pixels=max_pixels, exif=False)
        if by > 1:
            pixels = np.array(Image.fromarray(pixels).reduce(by), np.uint8)
    return pixels
