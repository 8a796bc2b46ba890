"""How much ImageFolder.load costs above the library calls it makes.

Method: on one core, `--rounds` times: every image of a folder (at most `--images`) through
`ImageFolder.load` and through the bare calls, in alternating order from image to image. The
bare calls do the same work on the same crops, drawn beforehand: os.open, read and close, the
decode of the crop into a kept buffer, the resize into the row. The ratio
bare / load is printed as median and range over the rounds, and once more from the fastest time of
each image over all rounds, which neighbours on the machine move least; 1 means that load adds
nothing.

Caveats: files come from the page cache, as the second epoch of a dataset that fits into memory
would find them. Only JPEGs of one or three colours take part. Neighbours on the machine move
both sides; the ratios suffer less than the rates.

    python benchmarks/images_load.py FOLDER --size 224 --rounds 9
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import simplejpeg
import torch
from bare_row import DecodeState, decode_crop

from feedline.images.crops import TrainCrop
from feedline.images.folder import ImageFolder
from feedline.images.resize import fill
from feedline.order.batch_spec import Item


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="image folder with one sub-folder per class")
    parser.add_argument("--size", type=int, default=224, help="side of the row, px")
    parser.add_argument("--images", type=int, default=500, help="how many images at most")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions")
    parser.add_argument("--scale", type=float, default=0.25, help="smallest share of the area")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    crop = TrainCrop(scale=(options.scale, 1.0))
    data = ImageFolder(options.folder, crop)
    size = options.size
    work = []
    for sample in range(min(len(data), options.images)):
        item = Item(sample, size, sample * 7919 + 1, 1.0)
        with open(data.path(sample), "rb") as file:
            contents = file.read()
        height, width, colours, _ = simplejpeg.decode_jpeg_header(contents)
        if colours in ("YCbCr", "Gray"):
            box = crop.place(height, width, item)
            work.append((item, os.fsencode(data.path(sample)), box))
    state = DecodeState()
    row = np.zeros((size, size, 3), np.uint8)
    label = np.zeros((), np.int64)

    times = np.zeros((options.rounds + 1, 2, len(work)))  # seconds: load, bare
    for turn in range(options.rounds + 1):
        for number, (item, path, box) in enumerate(work):
            first = time.perf_counter()
            if (number + turn) % 2:
                data.load(item, (row, label))
                middle = time.perf_counter()
                fill(row, decode_crop(path, box, state), box)
                times[turn, :, number] = middle - first, time.perf_counter() - middle
            else:
                fill(row, decode_crop(path, box, state), box)
                middle = time.perf_counter()
                data.load(item, (row, label))
                times[turn, :, number] = time.perf_counter() - middle, middle - first
    times = times[1:] * 1e6  # the first round warms the page cache and the buffers
    load, plain = times.mean(axis=2).T
    ratios = plain / load
    fastest_load, fastest_plain = times.min(axis=0).mean(axis=1)
    print(
        f"{len(work)} images at {size} px, {options.rounds} rounds: "
        f"load {np.median(load):.1f} us, bare calls {np.median(plain):.1f} us, bare / load "
        f"{np.median(ratios):.4f} ({ratios.min():.4f} to {ratios.max():.4f}); fastest of each "
        f"image: {fastest_load:.1f} us, {fastest_plain:.1f} us, {fastest_plain / fastest_load:.4f}"
    )


if __name__ == "__main__":
    main()
