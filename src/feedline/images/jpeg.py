"""JPEG bytes to pixels: only the required part, if the rest need not be decoded.

Guarantees: the pixels of a complete decode, bit for bit, by any of the decoders; the header's pixel
count is checked before memory of that size is allocated. A file without an end marker raises an
ImageError. So does one with data missing before its end marker, except if the gap is below the
part, or separated from it by restart markers, or if Pillow decodes the image.

Relies on: `_jpeg`, compiled, which decodes a part with the libjpeg-turbo 3 that wheels of feedline
contain, or with Pillow's. Without it simplejpeg decodes whole images, if it is installed. Pillow
decodes what remains, e.g. CMYK, whatever libjpeg warns of, and lossless files at a reduced size. On
ITU T.81 annex B for the positions of numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from PIL import Image, _imaging

from feedline.errors import ImageError
from feedline.images.codec_base import DecodeOptions, check_pixels, find_orientation, upright
from feedline.images.crops import Part, cut
from feedline.images.pillow_codecs import PILLOW_JPEG, converted
from feedline.sources.store import Pixels

try:
    from feedline.images import _jpeg as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

_KEPT_BYTES = 64 << 20
_FAST_COLOURS = frozenset(("YCbCr", "Gray", "RGB"))
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_TRUNCATED = ("Premature end of JPEG file", "premature end of data segment")


def compiled_decoder() -> compiled.Decoder | None:
    """Decoder of parts; None if not compiled, without libjpeg-turbo of its own and of Pillow's."""
    if compiled is not None:
        # Pillow may have another libjpeg, or one inside it, where the functions cannot be found.
        with contextlib.suppress(OSError):
            return compiled.Decoder(_imaging.__file__)
    return None


class JpegDecoder:
    """Decodes JPEGs, one after the other, in one thread, into reused memory; without a `decoder`
    of parts by simplejpeg.

    Reusing memory saves the page faults of fresh memory, 18% of a decode. It grows to the largest
    part, or image, up to 64 MiB; larger ones get their own memory.
    """

    def __init__(self, options: DecodeOptions, decoder: compiled.Decoder | None) -> None:
        self._options, self._compiled = options, decoder
        self._buffer = np.empty(1 << 20, np.uint8)
        self._data = b""
        self._size = 0, 0
        self._orientation = 1

    def open(self, data: bytes) -> tuple[int, int] | None:
        """Read the header of a file's bytes.

        Returns its height and width, upright; None if Pillow must decode it.
        """
        if self._compiled is None:
            size = _read_header(data)
        else:
            size = self._compiled.open(data)
            _raise_if_truncated(self._compiled.warning)
        if size is None or self._options.mode == "I;16":
            return None
        height, width = size
        check_pixels(height, width, self._options.max_pixels)
        self._data, self._size = data, size
        self._orientation = jpeg_orientation(data) if self._options.exif else 1
        return (width, height) if self._orientation >= 5 else (height, width)

    def read(self, reduction: int, part: Part | None) -> Pixels:
        """Decode the opened image, once, as in `codec_registry.Decoder.read`."""
        pixels = self._read(reduction, part)
        if self._options.mode == "L":
            return converted(Image.fromarray(np.ascontiguousarray(pixels)), "L")
        return pixels

    def _read(self, reduction: int, part: Part | None) -> Pixels:
        """Decode the opened image to RGB."""
        data, self._data = self._data, b""
        height, width = self._size
        whole = None
        # libjpeg-turbo 3 decodes lossless files, and falsely claims to scale them.
        if reduction == 1 or not jpeg_is_lossless(data):
            if self._compiled is None:
                buffer = self._reserve(height * width * 3)
                whole = _decode_whole(data, height, width, reduction, buffer)
            else:
                # Parts are in upright coordinates: a rotated image is cut after its rotation.
                is_upright = self._orientation == 1
                pixels = self._decode(self._compiled, reduction, part if is_upright else None)
                if pixels is not None and is_upright:
                    return pixels
                if pixels is None:
                    pixels = self._decode_again(self._compiled, data, reduction)
                whole = pixels
        if whole is None:
            whole = PILLOW_JPEG.decode(data, DecodeOptions(self._options.max_pixels), None).pixels
            if reduction > 1:
                whole = np.array(Image.fromarray(whole).reduce(reduction), np.uint8)
        if whole.shape[:2] != (-(-height // reduction), -(-width // reduction)):
            raise ImageError(
                f"its header announces {width} x {height} pixels, but the data has fewer"
            )
        return cut(upright(whole, self._orientation), part)

    def _decode(
        self, decoder: compiled.Decoder, reduction: int, part: Part | None
    ) -> Pixels | None:
        """Decode a part of the opened image; None if another decoder must."""
        height, width = self._size
        everything = 0, 0, -(-height // reduction), -(-width // reduction)
        top, left, rows, columns = part or everything
        more_rows, more_columns = compiled.MARGINS
        buffer = self._reserve((rows + more_rows) * (columns + more_columns) * 3)
        place = decoder.read(buffer, reduction, top, left, rows, columns)
        if place is None:
            return None
        first, stride = place
        pixels: Pixels = np.ndarray((rows, columns, 3), np.uint8, buffer, first, (stride, 3, 1))
        return pixels

    def _decode_again(
        self, decoder: compiled.Decoder, data: bytes, reduction: int
    ) -> Pixels | None:
        """Decode all of an image by libjpeg alone, which tells what is wrong with it.

        None if Pillow must decide, ImageError if truncated.
        """
        reads_codes, decoder.reads_codes = decoder.reads_codes, False
        try:
            decoder.open(data)
            pixels = self._decode(decoder, reduction, None)
        finally:
            decoder.reads_codes = reads_codes
        _raise_if_truncated(decoder.warning)
        return pixels

    def _reserve(self, size_bytes: int) -> Pixels:
        """Return memory of at least `size_bytes`."""
        if size_bytes > len(self._buffer):
            if size_bytes > _KEPT_BYTES:
                return np.empty(size_bytes, np.uint8)
            self._buffer = np.empty(size_bytes, np.uint8)
        return self._buffer


def _raise_if_truncated(warning: str) -> None:
    if warning.endswith(_TRUNCATED):
        raise ImageError(
            f"the JPEG ends before its last pixel ({warning}), e.g. from an interrupted copy or "
            "download, or a damaged disk"
        )


def _read_header(data: bytes) -> tuple[int, int] | None:
    """Height and width; None if simplejpeg is missing or cannot decode the image."""
    try:
        from simplejpeg import decode_jpeg_header  # only needed without `_jpeg`

        height, width, colours, _ = decode_jpeg_header(data)
    except (ImportError, ValueError, KeyError):  # KeyError: a nameless chroma layout, such as 4:4:1
        return None
    return (int(height), int(width)) if colours in _FAST_COLOURS else None


def _decode_whole(
    data: bytes, height: int, width: int, reduction: int, buffer: Pixels
) -> Pixels | None:
    """Decode by simplejpeg; None if Pillow must decide, ImageError if truncated."""
    from simplejpeg import decode_jpeg

    # simplejpeg uses the smallest scale that is no smaller than the request, and it also has odd
    # eighths, which are slower than a full decode: request the exact size.
    exact = (
        {"min_height": -(-height // reduction), "min_width": -(-width // reduction)}
        if reduction > 1
        else {}
    )
    try:
        pixels: Pixels = decode_jpeg(data, "RGB", buffer=buffer, strict=True, **exact)
        return pixels
    except ValueError as error:
        _raise_if_truncated(str(error))
        return None


def jpeg_orientation(data: bytes) -> int:
    """Orientation, 1 to 8, of a JPEG by Exif or XMP; 1 (upright) if it has none."""
    info: dict[str, bytes] = {}
    for marker, start, stop in _segments(data):
        if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            info["exif"] = info.get("exif", b"") + data[start + 6 : stop]
        elif marker == 0xE1 and data.startswith(_XMP, start, stop):
            info["xmp"] = data[start + len(_XMP) : stop]
    return find_orientation(info)


def jpeg_is_lossless(data: bytes) -> bool:
    """Return True if a JPEG's frame header is lossless (ITU T.81, table B.1: SOF3)."""
    return any(marker == 0xC3 for marker, _, _ in _segments(data))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Segments before the pixels of a JPEG: markers, and the positions of their content."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in (0xD9, 0xDA):  # the pixels begin
            return
        else:
            stop = at + 2 + (data[at + 2] << 8 | data[at + 3])
            yield marker, at + 4, stop
            at = stop
