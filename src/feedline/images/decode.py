"""The bytes of an image file to RGB pixels.

Guarantees: JPEGs come out as libjpeg-turbo decodes them, which is what Pillow and so
torchvision's loader give, to the last bit; everything else comes from Pillow (`pillow.py`).
Formats are told by their bytes, never by a file name. The pixel count in the header is checked
before any decoding. A JPEG that ends early is an ImageError, also where an end marker was put
behind the missing part (Pillow fills that with grey) unless only rows above it are wanted. Any
bytes give an image or an ImageError.

Relies on: simplejpeg reporting in strict mode whatever libjpeg warns about. What it refuses or
warns about otherwise, and JPEGs of four colours, goes to Pillow, which decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from simplejpeg import decode_jpeg, decode_jpeg_header

from feedline.errors import ImageError
from feedline.images.headers import jpeg_orientation, sniff
from feedline.images.pillow import check_pixels, decode_with_pillow, upright
from feedline.images.shorten import LEFT_OVER, Frame, baseline_frame, shorten

__all__ = ["DEFAULT_MAX_PIXELS", "Pixels", "Scratch", "Wanted", "decode", "decode_upper"]

Pixels: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

DEFAULT_MAX_PIXELS = 178_956_970
"""Twice 0.25 GiB of RGB pixels: from here on Pillow, by default, refuses an image too."""

_KEPT_BYTES = 64 << 20
_FAST_COLOURS = frozenset(("YCbCr", "Gray", "RGB"))
_TRUNCATED = ("Premature end of JPEG file", "premature end of data segment")


class Wanted(NamedTuple):
    """What of a JPEG is to be decoded.

    Args:
        by: 1, 2, 4 or 8: the image comes out smaller by that, each side rounded up.
        rows: how many rows of what comes out are needed, from the top; None for all. More may
            come.
    """

    by: int = 1
    rows: int | None = None


class Scratch(threading.local):
    """Memory to decode into, kept from one image to the next; each thread has its own.

    Reusing it saves the page faults of fresh memory, 18% of a decode. It grows to the largest
    image met, up to 64 MiB; larger ones get memory of their own.
    """

    def __init__(self) -> None:
        self._buffer = np.empty(1 << 20, np.uint8)

    def reserve(self, size_bytes: int) -> Pixels | None:
        """Give at least `size_bytes`, or None where so much is not kept."""
        if size_bytes > len(self._buffer):
            if size_bytes > _KEPT_BYTES:
                return None
            self._buffer = np.empty(size_bytes, np.uint8)
        return self._buffer


def decode(
    data: bytes,
    scratch: Scratch,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    exif: bool = False,
    wanted: Callable[[int, int], Wanted] | None = None,
) -> Pixels:
    """Decode a file's bytes.

    Args:
        data: the whole file.
        scratch: where JPEGs are decoded to; the result may lie in it, until the next call.
        max_pixels: the most pixels the header may announce.
        exif: turn the image upright by its Exif orientation.
        wanted: asked with the (upright) height and width of a JPEG, says what is needed of it.
            Other formats are decoded whole and it is not asked.

    Returns:
        uint8 of shape (height, width, 3), C-contiguous, writable, RGB.

    Raises:
        ImageError: the bytes are no image that can be decoded, or one too large. The message
            does not name the file, which is not known here.
    """
    if data[:3] == b"\xff\xd8\xff":
        return _decode_jpeg(data, scratch, max_pixels, exif, wanted)
    if not data:
        raise ImageError("the file is empty (0 bytes): an interrupted copy or download")
    kind = sniff(data)
    if kind is None:
        raise ImageError(_stranger(data))
    return decode_with_pillow(data, kind, max_pixels=max_pixels, exif=exif)


def _decode_jpeg(
    data: bytes,
    scratch: Scratch,
    max_pixels: int,
    exif: bool,
    wanted: Callable[[int, int], Wanted] | None,
) -> Pixels:
    orientation = jpeg_orientation(data) if exif else 1
    frame = baseline_frame(data)
    if frame is not None:
        height, width = frame.height, frame.width
        fast = frame.colours in (1, 3)
    else:
        height, width, fast = _read_header(data)
    if fast:
        check_pixels(width, height, max_pixels)
        by, rows = 1, None
        if wanted is not None:
            by, rows = wanted(width, height) if orientation >= 5 else wanted(height, width)
        if rows is not None and frame is not None and orientation == 1:
            pixels = decode_upper(data, frame, by, rows, scratch)
            if pixels is not None:
                return pixels
        try:
            pixels = _decode_fast(data, height, width, by, scratch.reserve(height * width * 3))
            return pixels if orientation == 1 else upright(pixels, orientation)
        except ValueError as error:
            reason = str(error)
            if reason.endswith(_TRUNCATED):
                raise ImageError(
                    f"the JPEG ends before its last pixel ({reason}): "
                    "an interrupted copy or download, or a damaged disk"
                ) from None
    pixels = decode_with_pillow(data, "JPEG", max_pixels=max_pixels, exif=False)
    return upright(pixels, orientation)


def _read_header(data: bytes) -> tuple[int, int, bool]:
    """Height, width, and whether simplejpeg can decode it."""
    try:
        height, width, colours, _ = decode_jpeg_header(data)
    except ValueError:
        return 0, 0, False
    return height, width, colours in _FAST_COLOURS


def decode_upper(data: bytes, frame: Frame, by: int, rows: int, scratch: Scratch) -> Pixels | None:
    """Decode the upper rows of a baseline JPEG of one or three colours.

    Args:
        data: the whole file.
        frame: its frame header.
        by: 1, 2, 4 or 8: the image comes out smaller by that.
        rows: how many rows of what comes out are needed.
        scratch: where to decode to; the result lies in it, until the next call.

    Returns:
        uint8 (`rows` or a few more, width, 3), or None where the whole has to be decoded.
    """
    buffer = scratch.reserve(frame.height * frame.width * 3)
    shortened = shorten(data, frame, rows * by) if buffer is not None else None
    if buffer is None or shortened is None:
        return None
    upper, height = shortened
    try:
        return _decode_fast(upper, height, frame.width, by, buffer)
    except ValueError as error:
        # libjpeg tells of the first thing that is odd. If that is what lies below the last row,
        # all rows are there, and in the buffer.
        if LEFT_OVER not in str(error):
            return None
    height, width = -(-height // by), -(-frame.width // by)
    return buffer[: height * width * 3].reshape(height, width, 3)


def _decode_fast(
    data: bytes | bytearray, height: int, width: int, by: int, buffer: Pixels | None
) -> Pixels:
    """Decode a JPEG of one or three colours, smaller by `by`; ValueError at any warning."""
    pixels: Pixels
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
    return pixels


def _stranger(data: bytes) -> str:
    """Say what a file that is no image seems to be."""
    head = bytes(data[:512]).lstrip().lower()
    if not any(data[:512]):
        guess = "nothing but zeros: a copy that was never finished, or a damaged disk"
    elif head.startswith((b"<!doctype", b"<html", b"<?xml", b"<svg")):
        guess = "a web page or SVG text, as a failed download leaves"
    elif data[4:8] == b"ftyp":
        guess = "HEIC, AVIF or a video, which is not read: convert it to JPEG"
    elif head.startswith(b"version https://git-lfs"):
        guess = "a Git LFS pointer: run `git lfs pull`"
    else:
        guess = f"beginning with {bytes(data[:8])!r}"
    return (
        "it is no image of a kind that is read (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM): "
        f"{len(data)} bytes, {guess}"
    )
