"""A JPEG made to end below the rows that a crop needs.

The rows of a JPEG follow one another in one stream, so those above a crop have to be decoded to
get at it, and those below need not: with a smaller height in the frame header (ITU T.81,
B.2.2) the decoder stops there by itself.

Guarantees: the wanted rows come out to the last bit as from the whole file. Where that is not
certain, or would not repay the copy of the bytes, nothing is shortened.

Relies on: libjpeg looking at most one row of chroma beyond the row that it makes (a row of
chroma is two of the image); its saying of the bytes that are left over, first and only, that
they are `LEFT_OVER`.
"""

from __future__ import annotations

__all__ = ["LEFT_OVER", "shorten"]

LEFT_OVER = "extraneous bytes before marker"
"""libjpeg's warning about bytes between the last row and the next marker."""

_CONTEXT_ROWS = 2
# Decoding a pixel takes about 6 ns, shortening about 10 us: from here on it repays.
_LEAST_PIXELS = 4096

_BASELINE = frozenset((0xC0, 0xC1))
_SCAN = 0xDA
# Tables, application data, comments. No restart intervals: their markers hide what is broken.
_HARMLESS = frozenset((0xC4, 0xDB, 0xFE, *range(0xE0, 0xF0)))


def shorten(data: bytes, height: int, width: int, rows: int) -> tuple[bytearray, int] | None:
    """Give the bytes of a JPEG of fewer rows.

    Args:
        data: the whole file.
        height: in pixels, as its header says.
        width: likewise.
        rows: how many are wanted, from the top.

    Returns:
        The bytes, and how many rows they now announce, which is a few more than `rows`; or None
        where the file is to be decoded as it is.
    """
    kept = rows + _CONTEXT_ROWS
    if (height - kept) * width < _LEAST_PIXELS:
        return None
    at = _height_offset(data)
    if not at or data[at] << 8 | data[at + 1] != height:
        return None
    shortened = bytearray(data)
    shortened[at] = kept >> 8
    shortened[at + 1] = kept & 0xFF
    return shortened, kept


def _height_offset(data: bytes) -> int:
    """Where the frame header holds the height; 0 unless all rows follow in a single scan."""
    at, height_at = 2, 0
    try:
        while data[at] == 0xFF:
            marker = data[at + 1]
            if marker in _BASELINE:
                height_at = at + 5
            elif marker == _SCAN:
                # Of one scan, if it has as many components as the frame.
                return height_at if data[at + 4] == data[height_at + 4] else 0
            elif marker not in _HARMLESS:
                return 0
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    except IndexError:
        pass
    return 0
