"""PNGs of any filters and chunks, valid baseline JPEGs with random codes, and damage to them.

Encoders of JPEGs only write few samplings, tables of one shape and likely coefficients. These files
have any sampling, any code tree up to 16 bits, values up to 15 bits, shared or separate tables, and
restart intervals that do not divide a row. They show noise.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from itertools import pairwise, product

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


END, RUN = 0x00, 0xF0  # the symbols for the end of a block, and for 16 zeros
LAST = 63
_SURPLUS = b"\xff", b"\xff\xff", b"\x55", b"\xff\xd0", b"\xff\xff\0"


def random_jpeg(dice: np.random.Generator) -> bytes:
    """A JPEG of up to 4 x 4 MCUs that a decoder must accept."""
    sampling = _sampling(dice)
    single = len(sampling) == 1
    wide, tall = (1, 1) if single else np.max(sampling, axis=0)  # in blocks
    width, height = int(dice.integers(1, 32 * wide + 1)), int(dice.integers(1, 32 * tall + 1))
    across, mcus = -(-width // (8 * wide)), -(-width // (8 * wide)) * -(-height // (8 * tall))
    interval = int(dice.choice([0, 0, 1, 2, 3, across, across + 1, mcus, 65535]))
    dc, ac = {}, {}
    for number in dice.integers(0, 4, 2).tolist():
        dc[number] = _Codes(dice, dice.permutation(16)[: dice.integers(1, 17)].tolist())
    for number in dice.integers(0, 4, 2).tolist():
        count = int(dice.choice([1, 5, 50, 200]))
        # With a run of no zeros every block can be filled.
        ac[number] = _Codes(dice, [*{1, RUN, *dice.permutation(256)[:count].tolist()}])
    tables = [(int(dice.choice([*dc])), int(dice.choice([*ac]))) for _ in sampling]
    frame, scan = bytes((8, *divmod(height, 256), *divmod(width, 256), len(sampling))), b""
    for k, (h, v) in enumerate(sampling):
        frame += bytes((k, h << 4 | v, 0))
        scan += bytes((k, tables[k][0] << 4 | tables[k][1]))
    data = b"\xff\xd8" + _segment(0xDB, bytes((0, *dice.integers(1, 9, 64).tolist())))
    for kind, codes_of in ((0, dc), (0x10, ac)):
        for number, codes in codes_of.items():
            data += _segment(0xC4, bytes((kind | number,)) + codes.table)
    data += _segment(0xC1, frame) + _segment(0xDD, interval.to_bytes(2, "big"))
    data += _segment(0xDA, bytes((len(scan) // 2,)) + scan + b"\0\x3f\0")
    bits = ""
    for mcu in range(mcus):
        if interval and mcu and mcu % interval == 0:
            data += _packed(bits) + bytes((0xFF, 0xD0 | (mcu // interval - 1) % 8))
            bits = ""
        for k in range(len(sampling)):
            for _ in range(1 if single else int(np.prod(sampling[k]))):
                bits += _block(dice, dc[tables[k][0]], ac[tables[k][1]])
    return data + _packed(bits) + b"\xff\xd9"


def damaged(data: bytes, dice: np.random.Generator) -> bytes:
    """The same with one to three faults, mostly in the codes and at the restart markers."""
    broken, first = bytearray(data), data.index(b"\xff\xda") + 2
    for _ in range(int(dice.integers(1, 4))):
        marks = [at for at in range(first, len(broken) - 1) if broken[at] == 0xFF]
        at = int(dice.integers(first if dice.random() < 0.7 else 2, len(broken)))
        if dice.random() < 0.3 and marks:
            at = int(dice.choice(marks)) + int(dice.integers(2))
        choice = int(dice.integers(5))
        if choice == 0:
            broken[at] ^= 1 << int(dice.integers(8))
        elif choice == 1:
            broken[at] = dice.choice([0, 0xFF, 0xD0, 0xD1, 0xD9])
        elif choice == 2:
            del broken[at : at + int(dice.integers(1, 5))]
        elif choice == 3:
            broken[at:at] = _SURPLUS[dice.integers(len(_SURPLUS))]
        else:
            broken[at : at + 2] = broken[at : at + 2] * 2
        if len(broken) < first + 8:
            break
    return bytes(broken)


def _sampling(dice: np.random.Generator) -> list[tuple[int, int]]:
    """Blocks across and down of each component in an MCU, at most 10 in total."""
    while True:
        most = dice.integers(1, 5, 2).tolist()
        if dice.random() < 0.2:
            return [(most[0], most[1])]
        # libjpeg takes only divisors of the most.
        divisors = [[d for d in range(1, n + 1) if n % d == 0] for n in most]
        others = [*product(*divisors)]
        found = [(most[0], most[1]), *(others[k] for k in dice.integers(len(others), size=2))]
        if sum(h * v for h, v in found) <= 10:
            return [found[k] for k in dice.permutation(3)]


class _Codes:
    """A tree of codes for some symbols: its table, and each symbol's code in bits."""

    def __init__(self, dice: np.random.Generator, symbols: list[int]) -> None:
        lengths, deep = [1, 1], dice.random() < 0.5
        while len(lengths) <= len(symbols):
            free = [k for k, length in enumerate(lengths) if length < 16]
            length = lengths.pop(
                free[-1] if deep and dice.random() < 0.8 else int(dice.choice(free))
            )
            lengths += [length + 1, length + 1]
        lengths = sorted(lengths)[:-1]  # no code is all ones
        symbols = dice.permutation(symbols).tolist()
        self.table = bytes(lengths.count(k) for k in range(1, 17)) + bytes(symbols)
        self.bits, code, before = {}, 0, lengths[0]
        for symbol, length in zip(symbols, lengths, strict=True):
            code <<= length - before
            self.bits[symbol], before = f"{code:0{length}b}", length
            code += 1
        self.symbols = symbols


def _value(dice: np.random.Generator, size: int) -> str:
    return f"{int(dice.integers(1 << size)):0{size}b}" if size else ""


def _block(dice: np.random.Generator, dc: _Codes, ac: _Codes) -> str:
    symbol = int(dice.choice(dc.symbols))
    bits, at = dc.bits[symbol] + _value(dice, symbol), 0
    is_full = dice.random() < 0.3
    symbols = [s for s in ac.symbols if s & 15 or s == RUN or not is_full]
    while at < LAST:
        symbol = int(dice.choice(symbols))
        ends = symbol & 15 == 0 and symbol != RUN
        if not ends and at + (symbol >> 4) + 1 > LAST:
            symbol = END + 1
        bits += ac.bits[symbol] + _value(dice, symbol & 15)
        at = LAST if ends else at + (symbol >> 4) + 1
    return bits


def _packed(bits: str) -> bytes:
    """Pack bits to bytes, padded with ones, with a zero after each 0xFF."""
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")


def _segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body
