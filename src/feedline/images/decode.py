"""Decoding of image files to RGB pixels.

Guarantees: JPEGs are decoded like by libjpeg-turbo, Pillow and so torchvision's loader, bit for bit
(`jpeg.py`); everything else by Pillow (`pillow.py`). The format is detected from the bytes, never
from the file name. The pixel count in the header is checked before any decoding. A truncated JPEG
raises an ImageError, also if an end marker was added after the missing part (Pillow fills that with
grey); but not if only rows above that are needed, or parts between restart markers, and `_jpeg`
decodes them. Any bytes give an image or an ImageError.
"""

from __future__ import annotations

import threading

from feedline.errors import ImageError, UsageError
from feedline.images.headers import sniff
from feedline.images.jpeg import JpegDecoder
from feedline.images.pillow import decode_with_pillow, upright
from feedline.images.placement import Part, cut
from feedline.sources.store import Pixels

__all__ = ["DEFAULT_MAX_PIXELS", "Decoder", "ThreadsDecoder", "checked_decoding"]

DEFAULT_MAX_PIXELS = 178_956_970
"""Twice 0.25 GiB of RGB pixels, Pillow's default limit."""


def checked_decoding(decode: object, max_pixels: object) -> bool:
    """Check a user's `decode` and `max_pixels`. Return True if JPEGs are decoded at a reduced size.

    Raises:
        UsageError: one of them is invalid.
    """
    if decode not in ("exact", "scaled"):
        raise UsageError(f'decode must be "exact" or "scaled", got {decode!r}')
    if isinstance(max_pixels, bool) or not isinstance(max_pixels, int) or max_pixels < 1:
        raise UsageError(f"max_pixels must be a whole number above 0, got {max_pixels!r}")
    return decode == "scaled"


class Decoder:
    """Decodes images one after the other, in one thread: `open`, then `read`.

    Args:
        max_pixels: maximum number of pixels in a header.
        exif: rotate images by their Exif orientation.
    """

    def __init__(self, *, max_pixels: int = DEFAULT_MAX_PIXELS, exif: bool = False) -> None:
        self._max_pixels = max_pixels
        self._exif = exif
        self._jpeg = JpegDecoder(max_pixels=max_pixels, exif=exif)
        # What `read` takes from: the JPEG, or the image, where it was decoded at once.
        self._opened: JpegDecoder | Pixels | None = None

    def open(self, data: bytes) -> tuple[int, int]:
        """Open a file from all of its bytes.

        Returns:
            The image's height and width in pixels, upright.

        Raises:
            ImageError: the bytes are not a supported image, or too large. The message does not name
                the file, which is unknown here.
        """
        self._opened = None
        kind = sniff(data)
        if kind is None:
            raise ImageError(_stranger(data))
        if kind == "JPEG":
            size = self._jpeg.open(data)
            if size is not None:
                self._opened = self._jpeg
                return size
            whole = decode_with_pillow(data, kind, max_pixels=self._max_pixels, exif=False)
            whole = upright(whole, self._jpeg.orientation)
        else:
            whole = decode_with_pillow(data, kind, max_pixels=self._max_pixels, exif=self._exif)
        self._opened = whole
        height, width = whole.shape[:2]
        return height, width

    @property
    def reducible(self) -> bool:
        """True if the opened image can be decoded at a reduced size: JPEGs, with few exceptions."""
        return self._opened is self._jpeg

    def read(self, by: int = 1, part: Part | None = None) -> Pixels:
        """Decode the opened image, once.

        Args:
            by: reduction factor, 1, 2, 4 or 8 (only 1 unless it is `reducible`); each side is
                rounded up.
            part: part of the result; None for all.

        Returns:
            uint8 of shape (height, width, 3), RGB, writable, valid until another image is opened.
            The pixels of a row are contiguous; the rows of a part need not be.

        Raises:
            ImageError: the image cannot be decoded.
            ValueError: the part does not lie in the image, or none is open.
        """
        opened, self._opened = self._opened, None
        if opened is None:
            raise ValueError("no image is open")
        if isinstance(opened, JpegDecoder):
            return opened.read(by, part)
        return cut(opened, part)


class ThreadsDecoder(threading.local):
    """A decoder per thread: `decoder` is the calling thread's."""

    def __init__(self, *, max_pixels: int, exif: bool) -> None:
        self.decoder = Decoder(max_pixels=max_pixels, exif=exif)


def _stranger(data: bytes) -> str:
    """Guess the real type of a file that is not an image, for the error message."""
    if not data:
        return "the file is empty (0 bytes), e.g. from an interrupted copy or download"
    head = bytes(data[:512]).lstrip().lower()
    if not any(data[:512]):
        guess = "only zeros, e.g. an unfinished copy or a damaged disk"
    elif head.startswith((b"<!doctype", b"<html", b"<?xml", b"<svg")):
        guess = "a web page or SVG text, e.g. from a failed download"
    elif data[4:8] == b"ftyp":
        guess = "HEIC, AVIF or a video, which are not supported: convert it to JPEG"
    elif head.startswith(b"version https://git-lfs"):
        guess = "a Git LFS pointer: run `git lfs pull`"
    else:
        guess = f"starting with {bytes(data[:8])!r}"
    return (
        f"it is not a supported image (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM): {len(data)} bytes, "
        f"{guess}"
    )
