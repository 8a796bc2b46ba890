"""Measure the overhead of ImageFolder.load over the library calls that it makes.

    python benchmarks/images_load.py FOLDER --size 224 --rounds 9

Method: on one core, `--rounds` times, every image of a folder (at most `--images`) is loaded with
`ImageFolder.load` and with bare calls, in alternating order per image. The bare calls do the same
work on the same crops, drawn beforehand: os.open, read and close, decoding the crop into a reused
buffer, resizing into the row. Prints the ratio bare / load as median and range over the rounds, and
from the fastest time of each image, which other load affects least. 1 means no overhead.

Caveats: files are in the page cache, as in the second epoch of a dataset that fits into memory.
Only JPEGs with 1 or 3 channels are used. Other load affects both sides, and the ratios less than
the rates.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import simplejpeg
import torch
from bare_row import DecodeState, decode_crop
from report import describe_processor, machine

from feedline.images.crops import TrainCrop
from feedline.images.folder import ImageFolder
from feedline.images.resize import fill
from feedline.order.batch_spec import Item


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="image folder with one sub-folder per class")
    parser.add_argument("--size", type=int, default=224, help="image size, in pixels")
    parser.add_argument("--images", type=int, default=500, help="maximum number of images")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions")
    parser.add_argument(
        "--scale", type=float, default=0.25, help="minimum share of the image area in a crop"
    )
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)
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
    times = times[1:] * 1e6  # the first round warms up the page cache and buffers
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
