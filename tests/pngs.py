"""PNG files of any filters and chunks, which Pillow does not write."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGB_ALPHA: 4}


def chunk(name: bytes, content: bytes = b"", crc: int | None = None) -> bytes:
    checksum = zlib.crc32(name + content) if crc is None else crc
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def header(width: int, height: int, colour: int, depth: int = 8, interlaced: bool = False) -> bytes:
    numbers = (width, height, depth, colour, 0, 0, interlaced)
    return chunk(b"IHDR", struct.pack(">IIBBBBB", *numbers))


def random_rows(
    width: int, height: int, colour: int, filters: Iterable[int], seed: int = 0, depth: int = 8
) -> bytes:
    """Random bytes, with the filters repeated: any bytes are valid rows."""
    dice, count = np.random.default_rng(seed), -(-width * CHANNELS[colour] * depth // 8)
    rows = dice.integers(0, 256, (height, 1 + count), np.uint8)
    if colour == PALETTE:
        rows %= 2
    rows[:, 0] = np.resize(list(filters), height)
    return rows.tobytes()


def png(
    start: bytes,
    deflated: bytes,
    *,
    before: bytes = b"",
    after: bytes = chunk(b"IEND"),
    cuts: Iterable[int] = (),
) -> bytes:
    """A file.

    Args:
        start: IHDR.
        deflated: content of the IDAT chunks.
        before, after: chunks before and after them.
        cuts: positions at which the content is split.
    """
    places = [0, *cuts, len(deflated)]
    chunks = b"".join(chunk(b"IDAT", deflated[begin:end]) for begin, end in pairwise(places))
    return b"\x89PNG\r\n\x1a\n" + start + before + chunks + after


def random_png(width: int, height: int, colour: int, filters: Iterable[int] = range(5)) -> bytes:
    rows = random_rows(width, height, colour, filters)
    return png(header(width, height, colour), zlib.compress(rows, 1))
