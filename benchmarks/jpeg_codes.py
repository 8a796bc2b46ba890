"""Measure the gain from feedline's Huffman decoder and from restart markers in JPEGs.

    python benchmarks/jpeg_codes.py FOLDER --side 256 --quality 95

Method: on one core, crops of 25 to 100% of the area of each image are decoded with the Huffman
codes read by libjpeg and by feedline, alternately: of the originals, and of copies written by
Pillow with a shorter side of `--side` pixels, without and with the restart markers of a cache's
copies. Each round decodes all images in all variants; the first round is discarded. Ratios are
computed per round: time with feedline over time with libjpeg on the copies without markers, or on
the originals.

Caveats: images are in memory; nothing is resized.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import time
from pathlib import Path

import numpy as np
from copies import small
from PIL import _imaging
from report import describe_processor, machine, spread

from feedline.cache.level_encoder import RESTARTS
from feedline.images import _jpeg
from feedline.images.crops import TrainCrop
from feedline.order.batch_spec import Item


def copy(jpeg: bytes, side: int, quality: int, restarts: int) -> bytes:
    file = io.BytesIO()
    small(io.BytesIO(jpeg), side).save(
        file, "JPEG", quality=quality, subsampling="4:2:0", restart_marker_blocks=restarts
    )
    return file.getvalue()


def microseconds(decoder: _jpeg.Decoder, jpegs: list[bytes], memory: np.ndarray) -> float:
    """Mean time per crop, with fixed crops."""
    crop, took = TrainCrop(scale=(0.25, 1.0)), 0
    for number, jpeg in enumerate(jpegs):
        began = time.perf_counter_ns()
        size = decoder.open(jpeg)
        took += time.perf_counter_ns() - began
        if size is None:
            raise SystemExit(f"image {number} is left to another decoder")
        box = crop.place(*size, Item(number, 224, number * 7919 + 1, 1.0))
        part = box.top, box.left, box.height, box.width
        began = time.perf_counter_ns()
        done = decoder.read(memory, 1, *part)
        took += time.perf_counter_ns() - began
        assert done is not None
    return took / len(jpegs) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs, searched recursively")
    parser.add_argument(
        "--side", type=int, default=256, help="shorter side of the copies, in pixels"
    )
    parser.add_argument("--quality", type=int, default=95, help="JPEG quality of the copies")
    parser.add_argument("--images", type=int, default=200, help="maximum number of images")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    paths = sorted(each for each in options.folder.rglob("*") if each.is_file())
    random.Random(1).shuffle(paths)
    decoder = _jpeg.Decoder(_imaging.__file__)
    originals = [path.read_bytes() for path in paths[: options.images]]
    originals = [each for each in originals if decoder.open(each) is not None]
    plain, marked = (
        [copy(each, options.side, options.quality, restarts) for each in originals]
        for restarts in (0, RESTARTS)
    )
    memory = np.empty(64 << 20, np.uint8)
    ways = {
        "originals, by libjpeg": (originals, False),
        "originals, by feedline": (originals, True),
        "copies, by libjpeg": (plain, False),
        "copies, by feedline": (plain, True),
        "copies with markers, by libjpeg": (marked, False),
        "copies with markers, by feedline": (marked, True),
    }
    results: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, (jpegs, ours) in ways.items():
            decoder.reads_codes = ours
            took = microseconds(decoder, jpegs, memory)
            if number:
                results[name].append(took)
    sizes = [sum(map(len, each)) for each in (plain, marked)]
    print(f"markers take {100 * (sizes[1] / sizes[0] - 1):.1f}% of the bytes")
    for name, took in results.items():
        base = results["originals, by libjpeg" if "originals" in name else "copies, by libjpeg"]
        ratios = [one / other for one, other in zip(took, base, strict=True)]
        print(f"{name:34} {spread(took, 0)} us, ratio {spread(ratios, 2)}")


if __name__ == "__main__":
    main()
