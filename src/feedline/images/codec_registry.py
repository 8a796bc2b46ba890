"""Registry of image formats, and decoding of files to pixels.

Formats without an entry are identified and decoded by Pillow. An entry in `PILLOW_CODECS` of
`pillow_codecs.py` also names the package that reads a format, and checks its header's size; for a
format with its own decoder, add a `Codec` to `CODECS`.

Guarantees: JPEGs are decoded like by libjpeg-turbo, Pillow and so torchvision's loader, bit for bit
(`jpeg.py`); everything else by Pillow (`pillow_codecs.py`), or to its pixels (`png.py`). The format
is detected from the bytes, never from the file name. The pixel count in the header is checked
before any decoding. A truncated JPEG raises an ImageError, also if an end marker was added after
the gap (Pillow fills the gap with grey). Exception: if `_jpeg` decodes only a part of an image,
data missing below that part, or beyond a restart marker, is not detected. Any bytes give an image
or an ImageError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, Literal, TypedDict

from feedline.errors import ImageError
from feedline.images.codec_base import DEFAULT_MAX_PIXELS, Codec, DecodeOptions, check_pixels
from feedline.images.crops import Part, check_part, check_value, cut
from feedline.images.jpeg import JpegDecoder, compiled_decoder
from feedline.images.pillow_codecs import (
    PILLOW_CODECS,
    PILLOW_JPEG,
    AddedFormat,
    added_formats,
    pillow_format,
)
from feedline.order.pixel_layout import MODES, PixelLayout
from feedline.sources.store import Pixels

CODECS: list[Codec] = [PILLOW_JPEG, *PILLOW_CODECS]
"""All formats, in the order of detection."""

_BUILT_IN = tuple(CODECS)


def register_codec(codec: Codec) -> None:
    """Add a format, in this process and in the workers of sources that are created or sent later.

    It replaces one of the same name, and is detected before the built-in ones.
    """
    CODECS[:] = [codec, *(each for each in CODECS if each.name != codec.name)]


def added_codecs() -> list[Codec]:
    """Formats that `register_codec` added, in the order in which to add them again, and those added
    to Pillow.
    """
    return [*(codec for codec in reversed(CODECS) if codec not in _BUILT_IN), *added_formats()]


def register_codecs(codecs: Iterable[Codec]) -> None:
    """Add formats that another process has, unless they are registered."""
    for codec in codecs:
        if isinstance(codec, AddedFormat):
            codec.register()
        elif codec not in CODECS:
            register_codec(codec)


def codec_of(data: bytes) -> Codec | None:
    """Format of a file, by its first bytes, or by Pillow if it is in no entry; None if unknown."""
    return next((codec for codec in CODECS if codec.matches(data)), None) or pillow_format(data)


class DecodeArguments(TypedDict, total=False):
    """A user's arguments for decoding; see `ImageFolder`."""

    mode: Literal["RGB", "L", "I;16"]
    decode: Literal["exact", "scaled"]
    exif: bool
    max_pixels: int


def decode_options(
    mode: object = "RGB",
    decode: object = "exact",
    exif: object = False,
    max_pixels: Any = DEFAULT_MAX_PIXELS,
) -> DecodeOptions:
    """Check a user's arguments for decoding; UsageError if one is invalid."""
    mode_layout(mode)
    check_value("decode", decode, decode in ("exact", "scaled"), '"exact" or "scaled"')
    is_number = isinstance(max_pixels, int) and not isinstance(max_pixels, bool) and max_pixels > 0
    check_value("max_pixels", max_pixels, is_number, "a whole number above 0")
    return DecodeOptions(max_pixels, bool(exif), str(mode), decode == "scaled")


def mode_layout(mode: Any) -> PixelLayout:
    """Pixel layout of a `mode`; UsageError if it is not in `MODES`."""
    is_mode = isinstance(mode, str) and mode in MODES
    check_value("mode", mode, is_mode, f"one of {', '.join(map(repr, MODES))}")
    return MODES[mode]


class Decoder:
    """Decodes images one after the other, in one thread: `open`, then `read`."""

    def __init__(self, options: DecodeOptions | None = None) -> None:
        self._options = options or DecodeOptions()
        self._read: Callable[[int, Part | None], Pixels] | None = None
        self.reducible = False
        """True if the opened image can be decoded at a reduced size: JPEGs, with few exceptions."""
        self.is_clipped = False
        """True if the last image read has 16 bits of grey, which the mode clipped to 8."""

    @cached_property
    def _jpegs(self) -> JpegDecoder:
        """Decoder of JPEGs that need not be decoded by Pillow."""
        return JpegDecoder(self._options, compiled_decoder())

    def open(self, data: bytes) -> tuple[int, int]:
        """Open a file from all of its bytes.

        Returns:
            The image's height and width in pixels, upright.

        Raises:
            ImageError: the bytes are not a supported image, or too large. The message does not name
                the file, which is unknown here.
        """
        self._read, self.reducible, self.is_clipped = None, False, False
        codec, options = codec_of(data), self._options
        if codec is None:
            raise ImageError(_unknown_format(data))
        if codec is PILLOW_JPEG:
            size = self._jpegs.open(data)
            if size is not None:
                self._read, self.reducible = self._jpegs.read, True
                return size
        size = codec.size(data)
        if size is not None:
            check_pixels(*size, options.max_pixels)
            # With exif=True the upright size is known only after decoding, so the whole is decoded.
            if codec.decodes_parts and not options.exif:
                self._read = partial(self._decode_part, codec, data, size)
                return size
        pixels = self._decode(codec, data, None)
        self._read = lambda reduction, part: cut(pixels, part)
        return pixels.shape[0], pixels.shape[1]

    def read(self, reduction: int = 1, part: Part | None = None) -> Pixels:
        """Decode the opened image, once.

        Args:
            reduction: factor, 1, 2, 4 or 8 (only 1 unless it is `reducible`); each side is
                rounded up.
            part: part of the result; None for all.

        Returns:
            (height, width, channels) in the mode's layout, writable, valid until another image is
            opened. The pixels of a row are contiguous; the rows of a part need not be.

        Raises:
            ImageError: the image cannot be decoded.
            ValueError: the part does not lie in the image, or none is open.
        """
        read, self._read = self._read, None
        if read is None:
            raise ValueError("no image is open")
        return read(reduction, part)

    def _decode_part(
        self, codec: Codec, data: bytes, size: tuple[int, int], reduction: int, part: Part | None
    ) -> Pixels:
        check_part(part, *size)
        return self._decode(codec, data, part)

    def _decode(self, codec: Codec, data: bytes, part: Part | None) -> Pixels:
        pixels, self.is_clipped = codec.decode(data, self._options, part)
        return pixels


class ThreadDecoder(threading.local):
    """A decoder per thread: `decoder` is the calling thread's."""

    def __init__(self, options: DecodeOptions) -> None:
        self.decoder = Decoder(options)


def _unknown_format(data: bytes) -> str:
    """Guess the real type of a file that is not an image, for the error message."""
    if not data:
        return "the file is empty (0 bytes), e.g. from an interrupted copy or download"
    head = bytes(data[:512]).lstrip().lower()
    if not any(data[:512]):
        guess = "only zeros, e.g. an unfinished copy or a damaged disk"
    elif head.startswith((b"<!doctype", b"<html", b"<?xml", b"<svg")):
        guess = "a web page or SVG text, e.g. from a failed download"
    elif data[4:8] == b"ftyp":
        guess = "a video, or another ISO media file"
    elif data.startswith(b"\0\5\x16\7"):
        guess = "macOS's metadata of another file: remove files named ._*"
    elif head.startswith(b"version https://git-lfs"):
        guess = "a Git LFS pointer: run `git lfs pull`"
    else:
        guess = f"starting with {bytes(data[:8])!r}"
    names = ", ".join(codec.name for codec in CODECS)
    return (
        f"it is not a supported image ({names}, or any other format of Pillow): {len(data)} bytes, "
        f"{guess}"
    )
