"""The bytes of an image file to RGB pixels.

Guarantees: JPEGs come out as libjpeg-turbo decodes them, which is what Pillow and so
torchvision's loader give, to the last bit (`jpeg.py`); everything else comes from Pillow
(`pillow.py`). Formats are told by their bytes, never by a file name. The pixel count in the header
is checked before any decoding. A JPEG that ends early is an ImageError, also where an end marker
was put behind the missing part (Pillow fills that with grey); but not where only rows above that
are wanted, or parts between restart markers, and `_jpeg` decodes them. Any bytes give an image or
an ImageError.
"""

from __future__ import annotations

import threading

from feedline.errors import ImageError, UsageError
from feedline.images.headers import sniff
from feedline.images.jpeg import JpegDecoder
from feedline.images.pillow import decode_with_pillow, upright
from feedline.images.placement import Part, cut
from feedline.stores.store import Pixels

__all__ = ["DEFAULT_MAX_PIXELS", "Decoder", "ThreadsDecoder", "checked_decoding"]

DEFAULT_MAX_PIXELS = 178_956_970
"""Twice 0.25 GiB of RGB pixels: from here on Pillow, by default, refuses an image too."""


def checked_decoding(decode: object, max_pixels: object) -> bool:
    """Whether JPEGs are decoded smaller, as a user's `decode` and `max_pixels` say.

    Raises:
        UsageError: one of them cannot be used.
    """
    if decode not in ("exact", "scaled"):
        raise UsageError(f'decode must be "exact" or "scaled", got {decode!r}')
    if isinstance(max_pixels, bool) or not isinstance(max_pixels, int) or max_pixels < 1:
        raise UsageError(f"max_pixels must be a whole number above 0, got {max_pixels!r}")
    return decode == "scaled"


class Decoder:
    """Decodes images one after the other, in one thread: `open`, then `read`.

    Args:
        max_pixels: the most pixels that a header may announce.
        exif: turn images upright by their Exif orientation.
    """

    def __init__(self, *, max_pixels: int = DEFAULT_MAX_PIXELS, exif: bool = False) -> None:
        self._max_pixels = max_pixels
        self._exif = exif
        self._jpeg = JpegDecoder(max_pixels=max_pixels, exif=exif)
        # What `read` takes from: the JPEG, or the image, where it was decoded at once.
        self._opened: JpegDecoder | Pixels | None = None

    def open(self, data: bytes) -> tuple[int, int]:
        """Look at the bytes of a file, all of them.

        Returns:
            The image's height and width in pixels, upright.

        Raises:
            ImageError: the bytes are no image that can be decoded, or one too large. The message
                does not name the file, which is not known here.
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
        """Whether the opened image can be decoded smaller: JPEGs, but for a few odd ones."""
        return self._opened is self._jpeg

    def read(self, by: int = 1, part: Part | None = None) -> Pixels:
        """Decode the opened image, once.

        Args:
            by: 1, 2, 4 or 8, and only 1 unless it is `reducible`: the image comes out smaller by
                that, each side rounded up.
            part: which part of what comes out; None for all.

        Returns:
            uint8 of shape (height, width, 3), RGB, writable, valid until another image is opened.
            The pixels of a row follow one another; the rows of a part need not.

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
    """A decoder for each thread: `decoder` is the calling thread's own."""

    def __init__(self, *, max_pixels: int, exif: bool) -> None:
        self.decoder = Decoder(max_pixels=max_pixels, exif=exif)


def _stranger(data: bytes) -> str:
    """Say what a file that is no image seems to be."""
    if not data:
        return "the file is empty (0 bytes): an interrupted copy or download"
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
