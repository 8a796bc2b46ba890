"""The bytes of an image file to RGB pixels.

Guarantees: JPEGs come out as libjpeg-turbo decodes them, which is what Pillow and so
torchvision's loader give, to the last bit (`jpeg.py`); everything else comes from Pillow
(`pillow.py`). Formats are told by their bytes, never by a file name. The pixel count in the header
is checked before any decoding. A JPEG that ends early is an ImageError, also where an end marker
was put behind the missing part (Pillow fills that with grey) unless only rows above it are wanted.
Any bytes give an image or an ImageError.
"""

from __future__ import annotations

from collections.abc import Callable

from feedline.errors import ImageError
from feedline.images.headers import sniff
from feedline.images.jpeg import Pixels, Scratch, Wanted, decode_whole_or_part
from feedline.images.pillow import decode_with_pillow

__all__ = ["DEFAULT_MAX_PIXELS", "decode"]

DEFAULT_MAX_PIXELS = 178_956_970
"""Twice 0.25 GiB of RGB pixels: from here on Pillow, by default, refuses an image too."""


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
        wanted: asked with the (upright) height and width of a JPEG, says what is needed of it;
            that is the result. Other formats are decoded whole and it is not asked, nor about a
            JPEG that only Pillow decodes, such as one of four colours.

    Returns:
        uint8 of shape (height, width, 3), writable, RGB. The pixels of a row follow one another;
        the rows of a part of an image need not.

    Raises:
        ImageError: the bytes are no image that can be decoded, or one too large. The message
            does not name the file, which is not known here.
    """
    if data[:3] == b"\xff\xd8\xff":
        return decode_whole_or_part(data, scratch, max_pixels=max_pixels, exif=exif, wanted=wanted)
    if not data:
        raise ImageError("the file is empty (0 bytes): an interrupted copy or download")
    kind = sniff(data)
    if kind is None:
        raise ImageError(_stranger(data))
    return decode_with_pillow(data, kind, max_pixels=max_pixels, exif=exif)


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
