"""Call the native modules with random arguments, valid and invalid, and compare their results.

    python tests/native/fuzz.py SECONDS           new cases for some time, with a new seed
    python tests/native/fuzz.py --case NUMBER     repeat one case

`make fuzz` runs it against modules built with AddressSanitizer and UndefinedBehaviorSanitizer.
Cases run in a child process; if it dies, the number of its case is printed.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import xxhash
from PIL import Image, _imaging

from feedline.errors import ImageError
from feedline.images import _jpeg, _lut, _photometric, _png, _resample, png
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import Decoder

sys.path.insert(0, str(Path(__file__).parents[1]))
from image_files import CHANNELS, PALETTE, chunk, damaged, header, random_jpeg, random_rows
from image_files import png as png_file

REFUSALS = (ValueError, BufferError, OverflowError, MemoryError, TypeError)
SPECIAL = (0.0, -0.0, 0.5, 1.0, -1.0, 255.0, 1e9, 1e39, 1e300, 5e-324, np.inf, np.nan)
Dice = np.random.Generator


def chance(dice: Dice, share: float) -> bool:
    return bool(dice.random() < share)


def size(dice: Dice, most: int = 200) -> int:
    """A size of any order of magnitude."""
    return int(dice.integers(1, 2 + int(most ** dice.random())))


def real(dice: Dice, low: float = -2.0, high: float = 3.0) -> float:
    if chance(dice, 0.2):
        return float(dice.choice(SPECIAL)) * (1 if chance(dice, 0.7) else -1)
    value = float(dice.uniform(low, high))
    return float(np.nextafter(round(value), dice.choice([-9, 9]))) if chance(dice, 0.2) else value


def pixels(dice: Dice, *shape: int) -> np.ndarray:
    return dice.integers(0, 256, shape or (size(dice), size(dice), 3), dtype=np.uint8)


def spoiled(dice: Dice, array: np.ndarray) -> np.ndarray:
    """The array, or a view or copy of it that most functions must refuse."""
    if chance(dice, 0.9) or not array.size:
        return array
    frozen = array.copy()
    frozen.flags.writeable = False
    unaligned = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    others = [
        *(frozen, unaligned, array[::-1], array[..., ::-1], array[..., ::2], array[::2]),
        *(array[:0], array.T, array[..., None], array[0], array[1:]),
        *(array.astype(np.float64), array.astype(np.int8)),
        np.lib.stride_tricks.as_strided(
            array, (2**32 + 1, *array.shape[1:]), (0, *array.strides[1:]), writeable=False
        ),
    ]
    return others[dice.integers(len(others))]


def fuzz_resample(dice: Dice) -> None:
    channels = int(dice.choice([3, 3, 3, 1, 2, 4, 8, 9]))
    image = pixels(dice, size(dice, 400), size(dice, 400), channels)
    rows, columns = size(dice, 60), size(dice, 60)
    to = [n + int(dice.integers(0, 1 + size(dice, 4200))) for n in (rows, columns)]
    corner = [int(dice.integers(-1 if chance(dice, 0.05) else 0, t + 1)) for t in to]
    if chance(dice, 0.9):
        corner = [min(c, t - n) for c, t, n in zip(corner, to, (rows, columns), strict=True)]
    passes = int(dice.integers(0, 4))
    filter = int(dice.integers(-1 if chance(dice, 0.05) else 0, 5))
    numbers = (*to, *corner, chance(dice, 0.5), passes, filter)
    box: tuple = ()
    if chance(dice, 0.6):
        sides = [n if chance(dice, 0.9) else 2 * n for n in image.shape[:2]]
        last = [np.nextafter(n, 0) for n in sides]
        first = [min(real(dice, 0, n), n) if chance(dice, 0.7) else n for n in last]
        extents = [
            (n - f) * float(dice.choice([1, 1, 1e-9, dice.random()]))
            for n, f in zip(sides, first, strict=True)
        ]
        box = ((*first, *extents),)
    if chance(dice, 0.3):
        image = image[size(dice, 9) - 1 :, size(dice, 9) - 1 :]
    image = spoiled(dice, image)
    found = []
    for path in _resample.PATHS:
        _resample.use_path(path)
        row = np.full((rows, columns, channels), 99, np.uint8)
        found.append((_resample.resample(image, row, *numbers, *box), row))
    for taken, row in found:
        assert taken == found[0][0]
        assert np.array_equal(row, found[0][1])
        assert taken or (row == 99).all()
    _resample.resample(image, spoiled(dice, row), *numbers, *box)


def fuzz_rows(dice: Dice) -> None:
    """Crops of images of any size, and placements that nothing has checked."""
    count, header, side = size(dice, 9), int(dice.choice([0, 128, size(dice)])), size(dice, 40)
    shapes = [(size(dice), size(dice)) for _ in range(count)]
    images = tuple(
        None if chance(dice, 0.05) else bytes(header + 3 * height * width + chance(dice, 0.05))
        for height, width in shapes
    )
    sizes = np.array([(height + size(dice), width, height, width) for height, width in shapes])
    if chance(dice, 0.1):
        sizes.flat[dice.integers(sizes.size)] = dice.choice([0, -1, 1 << 40, 1 << 62])
    seeds = dice.integers(0, 1 << 63, count, np.uint64)
    placements = np.zeros((count, 16))
    numbers = tuple(real(dice, 0.0, 1.0) for _ in range(8))
    filter = int(dice.integers(5))
    _resample.place_crops(
        *(spoiled(dice, array) for array in (seeds, sizes, placements)), numbers, side, filter
    )
    for _ in range(int(dice.choice([0, 0, 1, 3]))):
        placements.flat[dice.integers(placements.size)] = real(dice, -1.0, 90.0)
    checks = np.empty((0, 2), np.uint64)
    if chance(dice, 0.5):
        checks = np.array(
            [(1, 0 if each is None else xxhash.xxh3_64_intdigest(each, 1)) for each in images],
            np.uint64,
        )
    rows = np.zeros((count, side, side, 3), np.uint8)
    arrays = (spoiled(dice, array) for array in (placements, checks, rows))
    _resample.resample_rows(images, header, *arrays, None, None, None)


def fuzz_lut(dice: Dice) -> None:
    image, dtype = pixels(dice), dice.choice(["u1", "f2", "f4", "f8", "c16"])
    tables = spoiled(dice, pixels(dice, 3, 256).astype(dtype))
    target = spoiled(dice, np.zeros((3, *image.shape[:2]), dtype))
    image = spoiled(dice, image)
    _lut.apply_lut(image, tables, target)
    for channel in range(3):
        assert np.array_equal(target[channel], tables[channel][image[..., channel]])


def fuzz_photometric(dice: Dice) -> None:
    image = pixels(dice)
    target = image if chance(dice, 0.1) else np.zeros_like(image)
    image, target = spoiled(dice, image), spoiled(dice, target)
    choice = int(dice.integers(7))
    if choice == 0:
        _photometric.adjust(image, target, int(dice.integers(-1, 6)), real(dice, -0.6, 0.6))
    elif choice == 1:
        across, down = (
            spoiled(dice, np.array([real(dice) for _ in range(size(dice, 129) // 2 * 2 + 1)], "f4"))
            for _ in range(2)
        )
        _photometric.blur(image, target, across, down)
    elif choice == 2:
        _photometric.look_up(image, target, bytes(int(dice.choice([767, 768, 768]))))
    elif choice == 3:
        _photometric.count(image, spoiled(dice, np.zeros((3, 256), np.uint32)))
    elif choice == 4:
        _photometric.sharpen(image, target, real(dice))
    elif choice == 5:
        _photometric.blur_boxes(image, target, real(dice, -0.5, 6), real(dice, -0.5, 6))
    else:
        matrix = [real(dice) for _ in range(6)]
        for at in (2, 5):
            matrix[at] *= size(dice, 40000)
        if chance(dice, 0.4):
            matrix[1] = matrix[3] = 0.0
        target = np.zeros((size(dice), size(dice), 3), np.uint8)
        _photometric.warp(image, spoiled(dice, target), tuple(matrix), int(dice.integers(0, 4)))


def valid_jpeg(dice: Dice) -> bytes:
    if chance(dice, 0.5):
        file, shape = io.BytesIO(), (size(dice, 120), size(dice, 120), 3)
        image = Image.fromarray(pixels(dice, *shape) // int(dice.choice([1, 9, 255])))
        image.convert(str(dice.choice(["RGB", "RGB", "L", "CMYK"]))).save(
            *(file, "JPEG"),
            quality=int(dice.integers(1, 101)),
            progressive=chance(dice, 0.2),
            subsampling=int(dice.integers(3)),
            optimize=chance(dice, 0.3),
            restart_marker_blocks=int(dice.integers(0, 9)),
        )
        return file.getvalue()
    return random_jpeg(dice)


def maybe_damaged(dice: Dice, data: bytes) -> bytes:
    if chance(dice, 0.4):
        data = damaged(data, dice)
    if chance(dice, 0.3):
        broken = bytearray(data)
        for _ in range(size(dice, 20)):
            broken[dice.integers(len(broken))] = dice.integers(256)
        data = bytes(broken)
    return data[: dice.integers(len(data))] if chance(dice, 0.05) else data


DECODERS = [_jpeg.Decoder(_imaging.__file__) for _ in range(2)]
DECODERS[1].reads_codes = False


def fuzz_jpeg(dice: Dice) -> None:
    data = valid_jpeg(dice)
    for _ in range(30):  # a valid one takes long to make
        with contextlib.suppress(REFUSALS):
            fuzz_decoder(dice, maybe_damaged(dice, data))


def fuzz_decoder(dice: Dice, data: bytes) -> None:
    """Whatever is decoded has the pixels that libjpeg gives on its own."""
    by = int(dice.choice([1, 2, 4, 8, 3], p=[0.6, 0.1, 0.1, 0.1, 0.1]))
    opened = [decoder.open(data) for decoder in DECODERS]
    assert opened[0] == opened[1]
    if opened[0] is None or opened[0][0] * opened[0][1] > 1 << 22:
        return
    sides = [-(-n // by) for n in opened[0]]
    height, width = (int(dice.integers(0 if chance(dice, 0.02) else 1, n + 1)) for n in sides)
    top, left = (
        int(dice.integers(0, 1 + max(0, n - k + chance(dice, 0.02))))
        for n, k in zip(sides, (height, width), strict=True)
    )
    rows, columns = _jpeg.MARGINS
    count = (height + rows) * (width + columns) * 3
    found = []
    for decoder in DECODERS:
        memory = np.empty(size(dice, count) if chance(dice, 0.05) else count, np.uint8)
        place = decoder.read(memory, by, top, left, height, width)
        if place is not None:
            found.append(
                np.ndarray((height, width, 3), np.uint8, memory, place[0], (place[1], 3, 1)).copy()
            )
    if len(found) == 2:
        assert np.array_equal(*found)


def fuzz_unfilter(dice: Dice) -> None:
    """Arguments of any kind; valid ones give the same pixels for each part of the rows."""
    width, height, channels = size(dice), size(dice), int(dice.integers(1, 5))
    rows = pixels(dice, height, 1 + width * channels)
    rows[:, 0] = dice.choice([4, *range(6)], height, p=[0.5, *[0.099] * 5, 0.005])
    colours = 1 if channels < 3 and chance(dice, 0.5) else 3
    whole = np.zeros((height, width, colours), np.uint8)
    is_known = _png.unfilter(rows, whole, width, channels, 0)
    assert is_known == (rows[:, 0] < 5).all()
    top, columns = int(dice.integers(height)), int(dice.integers(1, width + 1))
    part = np.full((height - top, columns, colours), 99, np.uint8)
    if _png.unfilter(rows, part, width, channels, top) and is_known:
        assert np.array_equal(part, whole[top:, :columns])
    odd = [n + int(dice.integers(-1, 2)) * chance(dice, 0.1) for n in (width, channels, top)]
    _png.unfilter(spoiled(dice, rows), spoiled(dice, part), *odd)


def maybe_damaged_png(dice: Dice, data: bytes) -> bytes:
    broken = bytearray(data)
    if chance(dice, 0.5):
        for _ in range(size(dice, 20)):
            broken[dice.integers(len(broken))] = dice.integers(256)
    return bytes(broken[: dice.integers(len(broken))] if chance(dice, 0.1) else broken)


def random_png(dice: Dice) -> bytes:
    width, height, colour = size(dice, 90), size(dice, 90), int(dice.choice([*CHANNELS]))
    depth = 8 if chance(dice, 0.9) else int(dice.choice([1, 2, 4, 16]))
    filters = dice.integers(0, 5, height) if chance(dice, 0.5) else [4]
    rows = random_rows(width, height, colour, filters, int(dice.integers(1 << 30)), depth)
    if chance(dice, 0.5):  # compressible
        rows = bytes(byte if byte < 5 else byte & 3 for byte in rows)
    level, strategy = int(dice.integers(10)), int(dice.integers(5))
    deflate = zlib.compressobj(level, zlib.DEFLATED, int(dice.integers(9, 16)), 9, strategy)
    data = deflate.compress(rows) + deflate.flush()
    if chance(dice, 0.4):  # damaged, with a right checksum
        broken = bytearray(data)
        for _ in range(size(dice, 6)):
            broken[dice.integers(min(len(broken), 80))] = dice.integers(256)
        data = bytes(broken)
    text = chunk(b"tEXt", b"a\0b") * chance(dice, 0.2)
    return png_file(
        header(width, height, colour, depth, interlaced=chance(dice, 0.05)),
        data,
        before=(chunk(b"PLTE", bytes(6)) if colour == PALETTE else b"") + text,
        after=text + chunk(b"IEND"),
        cuts=sorted(dice.integers(0, len(data), size(dice, 5)).tolist()),
    )


def decoded_png(data: bytes, part: tuple | None, mode: str) -> np.ndarray | str:
    decoder = Decoder(DecodeOptions(1 << 20, mode=mode))
    try:
        decoder.open(data)
        return np.array(decoder.read(part=part))
    except ImageError as error:
        return str(error)


def fuzz_png(dice: Dice) -> None:
    """Pixels or errors of Pillow. Only if the data is damaged despite a right checksum, and not
    read to its end, a part may have other pixels, or pixels instead of an error.
    """
    data = random_png(dice)
    for _ in range(5):
        file = maybe_damaged_png(dice, data)
        part = None
        with contextlib.suppress(ImageError):
            height, width = Decoder(DecodeOptions(1 << 20)).open(file)
            if chance(dice, 0.5):
                part = int(dice.integers(height)), int(dice.integers(width)), 1, 1
        found, png.compiled = [], _png
        mode = "L" if chance(dice, 0.3) else "RGB"
        for png.compiled in (_png, None):
            found.append(decoded_png(file, part, mode))
        png.compiled = _png
        assert part or np.array_equal(*found)


CASES = (fuzz_resample, fuzz_rows, fuzz_lut, fuzz_photometric, fuzz_jpeg, fuzz_unfilter, fuzz_png)


def run_case(number: int) -> None:
    dice = np.random.default_rng(number)
    with contextlib.suppress(REFUSALS):
        CASES[dice.integers(len(CASES))](dice)


def run_child(first: int, seconds: float, shared: str) -> None:
    with open(shared, "r+b") as file, mmap.mmap(file.fileno(), 8) as number:
        end, case = time.monotonic() + seconds, first
        while time.monotonic() < end:
            number[:] = case.to_bytes(8, "little")
            run_case(case)
            case += 1


def main() -> None:
    warnings.simplefilter("ignore")  # of numpy, for values and types that do not fit
    if sys.argv[1] == "--case":
        run_case(int(sys.argv[2]))
        return
    if sys.argv[1] == "--child":
        run_child(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
        return
    first = int(np.random.default_rng().integers(1 << 62))
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(8))
        file.flush()
        child = [sys.executable, __file__, "--child", str(first), sys.argv[1], file.name]
        status = subprocess.run(child).returncode
        file.seek(0)
        case = int.from_bytes(file.read(), "little")
    if status:
        sys.exit(f"case {case} failed with status {status}; repeat it with --case {case}")
    print(f"{case - first + 1} cases from {first} on: no fault found")


main()
