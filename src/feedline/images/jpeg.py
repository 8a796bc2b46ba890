"""JPEG bytes to RGB: only the required part, if the rest need not be decoded.

Guarantees: the pixels of a complete decode, bit for bit, by any of the decoders; the header's pixel
count is checked before memory of that size is allocated. A file without an end raises an
ImageError. So does one that only looks complete, with an end mark after a gap, unless the gap is
below the part, or restart markers lie between them, and `_jpeg` decodes that.

Relies on: `_jpeg`, compiled, which decodes a part with Pillow's libjpeg-turbo. simplejpeg decodes
the rest completely: if `_jpeg` was not compiled or Pillow has no libjpeg-turbo 3, images to be
rotated, files without an end, and whatever libjpeg warns of. Pillow decodes what remains, and
lossless files at a reduced size.
"""

from __future__ import annotations

import contextlib

import numpy as np
from PIL import Image, _imaging
from simplejpeg import decode_jpeg, decode_jpeg_header

from feedline.errors import ImageError
from feedline.images.headers import jpeg_is_lossless, jpeg_orientation
from feedline.images.pillow import check_pixels, decode_with_pillow, upright
from feedline.images.placement import Part, cut
from feedline.sources.store import Pixels

try:
    from feedline.images import _jpeg as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["JpegDecoder", "compiled_decoder"]

_KEPT_BYTES = 64 << 20
_FAST_COLOURS = frozenset(("YCbCr", "Gray", "RGB"))
_TRUNCATED = ("Premature end of JPEG file", "premature end of data segment")


def compiled_decoder() -> compiled.Decoder | None:
    """Decoder of parts; None if it was not compiled or cannot use Pillow's libjpeg."""
    if compiled is not None:
        # Pillow may have another libjpeg, or one inside it, where the functions cannot be found.
        with contextlib.suppress(OSError):
            return compiled.Decoder(_imaging.__file__)
    return None


class JpegDecoder:
    """Decodes JPEGs one after the other, in one thread, into reused memory.

    Reusing memory saves the page faults of fresh memory, 18% of a decode. It grows to the largest
    part, or image, up to 64 MiB; larger ones get their own memory.

    The arguments are `Decoder`'s.
    """

    def __init__(self, *, max_pixels: int, exif: bool) -> None:
        self._max_pixels = max_pixels
        self._exif = exif
        self._buffer = np.empty(1 << 20, np.uint8)
        self._quick = compiled_decoder()
        self._is_quick = False  # the opened image is with it
        self._data = b""
        self._size = 0, 0
        self.orientation = 1
        """Exif orientation of the opened image, 1 to 8; 1 is upright."""

    def open(self, data: bytes) -> tuple[int, int] | None:
        """Read the header of a file's bytes; None if only Pillow can decode it.

        Otherwise as in `decode.Decoder.open`.
        """
        self._data = b""
        self.orientation = jpeg_orientation(data) if self._exif else 1
        # What is to be turned is decoded whole: which part is known when it stands upright.
        size = self._quick.open(data) if self._quick and self.orientation == 1 else None
        self._is_quick = size is not None
        height, width = self._size = size or _read_header(data)
        if not height:
            return None
        check_pixels(width, height, self._max_pixels)
        self._data = data
        return (width, height) if self.orientation >= 5 else (height, width)

    def read(self, by: int, part: Part | None) -> Pixels:
        """Decode the opened image, once, as in `decode.Decoder.read`."""
        data, self._data = self._data, b""
        height, width = self._size
        # libjpeg-turbo 3 decodes lossless files, and falsely claims to scale them.
        lossless = by > 1 and jpeg_is_lossless(data)
        if self._quick and self._is_quick and not lossless:
            top, left, rows, columns = part or (0, 0, -(-height // by), -(-width // by))
            more_rows, more_columns = compiled.MARGINS
            buffer = self._reserve((rows + more_rows) * (columns + more_columns) * 3)
            place = self._quick.read(buffer, by, top, left, rows, columns)
            if place:
                first, stride = place
                pixels: Pixels = np.ndarray(
                    (rows, columns, 3), np.uint8, buffer, first, (stride, 3, 1)
                )
                return pixels
        whole = None
        if not lossless:
            whole = _decode_fast(data, height, width, by, self._reserve(height * width * 3))
        if whole is None:
            whole = decode_with_pillow(data, "JPEG", max_pixels=self._max_pixels, exif=False)
            if by > 1:
                whole = np.array(Image.fromarray(whole).reduce(by), np.uint8)
        if whole.shape[:2] != (-(-height // by), -(-width // by)):
            raise ImageError(
                f"its header announces {width} x {height} pixels, but the data has fewer"
            )
        return cut(upright(whole, self.orientation), part)

    def _reserve(self, size_bytes: int) -> Pixels:
        """Return memory of at least `size_bytes`."""
        if size_bytes > len(self._buffer):
            if size_bytes > _KEPT_BYTES:
                return np.empty(size_bytes, np.uint8)
            self._buffer = np.empty(size_bytes, np.uint8)
        return self._buffer


def _read_header(data: bytes) -> tuple[int, int]:
    """Height and width; zeros if simplejpeg cannot decode it."""
    try:
        height, width, colours, _ = decode_jpeg_header(data)
    except ValueError:
        return 0, 0
    return (int(height), int(width)) if colours in _FAST_COLOURS else (0, 0)


def _decode_fast(data: bytes, height: int, width: int, by: int, buffer: Pixels) -> Pixels | None:
    """Decode a JPEG of one or three colours, reduced by `by`; None if Pillow must decide.

    Raises:
        ImageError: it is truncated.
    """
    # simplejpeg takes the smallest scale that is no smaller than what is asked for, and it also has
    # odd eighths, which are slower than a full decode: ask for the exact size.
    exact = {"min_height": -(-height // by), "min_width": -(-width // by)} if by > 1 else {}
    try:
        pixels: Pixels = decode_jpeg(data, "RGB", buffer=buffer, strict=True, **exact)
        return pixels
    except ValueError as error:
        reason = str(error)
        if reason.endswith(_TRUNCATED):
            raise ImageError(
                f"the JPEG ends before its last pixel ({reason}), e.g. from an interrupted copy or "
                "download, or a damaged disk"
            ) from None
        return None
