"""Format, size and orientation of an image file, from its first bytes.

Guarantees: reads a few bytes and never decodes pixels; never raises, for any bytes (returns None or
1 if they make no sense).

Relies on: JPEG (ITU T.81 annex B), GIF89a, the WebP container specification (RFC 9649) and Exif
2.32 section 4.6 for the positions of the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["canvas", "exif_orientation", "jpeg_is_lossless", "jpeg_orientation", "sniff"]

_MAGICS = (
    ("JPEG", b"\xff\xd8\xff"),
    ("PNG", b"\x89PNG\r\n\x1a\n"),
    ("GIF", (b"GIF87a", b"GIF89a")),
    ("BMP", b"BM"),
    ("TIFF", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
)

_EXIF_ORIENTATION_TAG = 0x0112
_JPEG_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))


def sniff(data: bytes) -> str | None:
    """Format of a file by its first bytes, in Pillow's terms, or None.

    The file extension may be wrong: ImageNet contains a PNG named .JPEG.
    """
    for name, magics in _MAGICS:
        if data.startswith(magics):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if len(data) > 2 and data[:1] == b"P" and data[1:2] in b"123456fy":
        return "PPM"
    return None


def canvas(data: bytes, kind: str) -> tuple[int, int] | None:
    """Width and height in pixels of a GIF or WebP, or None if the header is truncated.

    Only for these formats, whose Pillow readers allocate memory before they return the size. A GIF
    includes its first frame, which may be larger than its screen.
    """
    try:
        if kind == "GIF":
            return _gif_canvas(data)
        if kind == "WEBP":
            return _webp_canvas(data)
    except (IndexError, struct.error):
        pass
    return None


def _gif_canvas(data: bytes) -> tuple[int, int]:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while data[at] != 0x2C:
        if data[at] != 0x21:  # Pillow skips stray bytes between blocks, and so do we.
            at += 1
            continue
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, at + 1)
    return max(width, left + frame_width), max(height, top + frame_height)


def _webp_canvas(data: bytes) -> tuple[int, int] | None:
    chunk = data[12:16]
    if chunk == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        return width, int.from_bytes(data[27:30], "little") + 1
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def jpeg_orientation(data: bytes) -> int:
    """Exif orientation, 1 to 8, of a JPEG; 1 (upright) if it has none."""
    for marker, start, stop in _jpeg_segments(data):
        if marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            return exif_orientation(data[start:stop])
    return 1


def jpeg_is_lossless(data: bytes) -> bool:
    """Return True if a JPEG's frame header is lossless (ITU T.81, table B.1: SOF3)."""
    return any(marker == 0xC3 for marker, _, _ in _jpeg_segments(data))


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Segments before the pixels of a JPEG: markers, and the positions of their content."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _JPEG_STANDALONE:
            at += 2
        elif marker in (0xD9, 0xDA):  # the pixels begin
            return
        else:
            stop = at + 2 + (data[at + 2] << 8 | data[at + 3])
            yield marker, at + 4, stop
            at = stop


def exif_orientation(exif: bytes) -> int:
    """Orientation, 1 to 8, in an Exif block; 1 (upright) if it has none.

    Args:
        exif: the block, with or without "Exif\\0\\0" before it.
    """
    if exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (at,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, at)
        for entry in range(entries):
            tag, kind, _, value = struct.unpack_from(order + "HHIH", exif, at + 2 + 12 * entry)
            if tag == _EXIF_ORIENTATION_TAG:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
