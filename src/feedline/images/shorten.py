"""A JPEG made to end below the rows that a crop needs.

The rows of a JPEG follow one another in one stream, so those above a crop have to be decoded to
get at it, and those below need not: with a smaller height in the frame header (ITU T.81,
B.2.2) the decoder stops there by itself.

Guarantees: the wanted rows come out to the last bit as from the whole file. Where that is not
certain, or would not repay the copy of the bytes, nothing is shortened. Any bytes get an answer.

Relies on: libjpeg looking at most one row of chroma beyond the row that it makes (a row of
chroma is two of the image); its saying of the bytes that are left over, first and only, that
they are `LEFT_OVER`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["LEFT_OVER", "Frame", "baseline_frame", "shorten"]

LEFT_OVER = "extraneous bytes before marker"
"""libjpeg's warning about bytes between the last row and the next marker."""

_CONTEXT_ROWS = 2
# Decoding a pixel takes about 6 ns, shortening about 10 us: from here on it repays.
_LEAST_PIXELS = 4096

_BASELINE = frozenset((0xC0, 0xC1))
_SCAN = 0xDA
# Tables, application data, comments. No restart intervals: their markers hide what is broken.
_HARMLESS = frozenset((0xC4, 0xDB, 0xFE, *range(0xE0, 0xF0)))
_FRAME_HEADER = struct.Struct(">HBHHB")  # length, bits a sample, height, width, components
_SCAN_HEADER = struct.Struct(">BBHB")  # 0xFF, marker, length, components


class Frame(NamedTuple):
    """What the frame header of a baseline JPEG says, where all its rows follow in one scan.

    Args:
        height: in pixels.
        width: likewise.
        colours: 1 to 4.
        height_at: where in the file the height stands.
    """

    height: int
    width: int
    colours: int
    height_at: int


def baseline_frame(data: bytes) -> Frame | None:
    """Read the frame header; None for progressive JPEGs and for whatever else is unusual."""
    at, frame_at = 2, 0
    try:
        while data[at] == 0xFF:
            marker = data[at + 1]
            if marker == _SCAN:
                break
            if marker in _BASELINE and not frame_at:
                frame_at = at
            elif marker not in _HARMLESS:
                return None
            at += 2 + (data[at + 2] << 8 | data[at + 3])
        # A single scan holds as many components as the frame; a height may yet follow if it is 0.
        _, marker, _, scanned = _SCAN_HEADER.unpack_from(data, at)
        _, bits, height, width, colours = _FRAME_HEADER.unpack_from(data, frame_at + 2)
    except (IndexError, struct.error):
        return None
    if not frame_at or marker != _SCAN or bits != 8 or scanned != colours or not height:
        return None
    return Frame(height, width, colours, frame_at + 5)


def shorten(data: bytes, frame: Frame, rows: int) -> tuple[bytearray, int] | None:
    """Give the bytes of a JPEG of fewer rows.

    Args:
        data: the whole file.
        frame: its frame header.
        rows: how many are wanted, from the top.

    Returns:
        The bytes, and how many rows they now announce, which is a few more than `rows`; or None
        where it would not repay.
    """
    kept = rows + _CONTEXT_ROWS
    if (frame.height - kept) * frame.width < _LEAST_PIXELS:
        return None
    shortened = bytearray(data)
    shortened[frame.height_at] = kept >> 8
    shortened[frame.height_at + 1] = kept & 0xFF
    return shortened, kept
