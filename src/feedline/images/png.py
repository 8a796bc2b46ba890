"""PNG bytes to pixels: only the rows down to the required part, inflated by ISA-L.

Guarantees: the pixels and errors of Pillow, which decodes whatever is not certain here: interlaced
files, palettes, other than 8 bits, animations, a wrong checksum of the pixels, invalid or missing
data, chunks after the pixels that Pillow might reject or that hold an orientation. Damage below the
part is not noticed, as with Pillow when it decodes the first rows. Exception: a part of invalid
deflate data with a right checksum, which zlib rejects and ISA-L may accept.

Relies on: Pillow's reader for all chunks before the pixels. `_png`, compiled, for the filters.
ISA-L (package `isal`), or Python's zlib, for inflating no more than the required rows; both check
the whole data's Adler-32 when they reach its end. Chunks are as in https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from typing import Any

import numpy as np
from PIL import Image

from feedline.images.codec_base import DecodedPixels, DecodeOptions, find_orientation, upright
from feedline.images.crops import Part
from feedline.sources.store import Pixels

inflater: Any = zlib
with contextlib.suppress(ImportError):  # no wheel for this platform
    from isal import isal_zlib as inflater
try:
    from feedline.images import _png as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
"""By Pillow's raw mode of the pixels."""

_MAX_WINDOW = 7
"""Largest window in the data's header (RFC 1950, CINFO), which ISA-L does not check."""

_HARMLESS = (b"tEXt", b"tIME")
"""Chunks after the pixels that Pillow accepts with any content of moderate size."""


def decode_png(
    data: bytes, reader: Any, options: DecodeOptions, part: Part | None
) -> DecodedPixels | None:
    """Decode a part of a PNG, or all; None if Pillow, whose class `reader` is, must decode it."""
    try:
        return _decode(data, reader, options, part) if compiled else None
    except MemoryError:
        return None


def _decode(
    data: bytes, reader: Any, options: DecodeOptions, part: Part | None
) -> DecodedPixels | None:
    found = data.find(b"IDAT")
    if options.mode == "I;16" or data.find(b"acTL", 0, found) >= 0:
        return None
    try:
        image = reader(io.BytesIO(data))
        ((decoder, extents, at, mode, *_),) = image.tile
    except Exception:  # Pillow raises it again
        return None
    channels, (width, height) = _CHANNELS.get(mode), image.size
    is_plain = decoder == "zip" and extents == (0, 0, width, height) and at == found + 4
    if channels is None or not is_plain or image.info.get("interlace"):
        return None
    top, left, rows, columns = part or (0, 0, height, width)
    stop, right = top + rows, left + columns
    # A second header may have another size than the one that was checked.
    if not 0 < width * height <= options.max_pixels or stop > height or right > width:
        return None
    content = _pixel_chunks(data, at, is_whole=stop == height, may_turn=options.exif)
    filtered = content and _inflate(content, stop * (1 + width * channels), is_whole=stop == height)
    if not filtered:
        return None
    colours = 1 if channels < 3 and options.mode == "L" else 3
    pixels: Pixels = np.empty((rows, right, colours), np.uint8)
    if not compiled.unfilter(filtered, pixels, width, channels, top):
        return None
    pixels = pixels[:, left:]
    if options.mode == "L" and colours == 3:
        grey = Image.fromarray(np.ascontiguousarray(pixels)).convert("L")
        pixels = np.array(grey)[..., None]
    return DecodedPixels(upright(pixels, find_orientation(image.info) if options.exif else 1))


def _inflate(content: bytes, size: int, *, is_whole: bool) -> bytes | None:
    """First `size` bytes of deflated data, checked to its end if `is_whole`; None if damaged."""
    if content[0] >> 4 > _MAX_WINDOW:
        return None
    inflate = inflater.decompressobj()
    try:
        filtered: bytes = inflate.decompress(content, size)
    except inflater.error:
        return None
    return filtered if len(filtered) == size and (inflate.eof or not is_whole) else None


def _pixel_chunks(data: bytes, at: int, *, is_whole: bool, may_turn: bool) -> bytes | None:
    """Content of the chunks from `at` on that hold pixels; None if one is damaged.

    If `is_whole`, those after them must be harmless; if `may_turn`, a text may hold an orientation.
    """
    view, contents, name = memoryview(data), [], b"IDAT"
    while name == b"IDAT":
        length = int.from_bytes(data[at - 8 : at - 4], "big")
        stop = at + length
        checksum = data[stop : stop + 4]
        if len(checksum) < 4:
            return None
        if inflater.crc32(view[at - 4 : stop]) != int.from_bytes(checksum, "big"):
            return None
        contents.append(view[at:stop])
        at = stop + 12
        name = data[at - 4 : at]
    while is_whole and name != b"IEND":
        at += int.from_bytes(data[at - 8 : at - 4], "big") + 12
        if name not in _HARMLESS or at > len(data) or may_turn:
            return None
        name = data[at - 4 : at]
    return b"".join(contents)
