"""The limit: the rate of bare processes that only read, decode, crop and resize.

One process per worker repeats the same images with crops drawn beforehand, using the fastest
library calls within 0.3 grey levels (mean) of torchvision's pixels, each into one batch of memory
that is reused. Nothing is drawn, checked, reported or handed over.

`limit_own.py` is the same with feedline's own calls.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from typing import Any

from peers.work import RATIO, SCALE, Work

NAME = "the limit (bare processes)"
NEEDS = ("feedline", "torch", "cv2", "simplejpeg")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "raw")

Step = tuple[Any, Any]  # path or number, and crop
_EPOCHS = 8


def _sources(work: Work) -> list[tuple[Any, int, int]]:
    """Path or number, height and width of every image."""
    import numpy as np
    import simplejpeg

    if work.kind == "raw":
        count, height, width, _ = np.load(f"{work.folder}/images.npy", mmap_mode="r").shape
        return [(number, height, width) for number in range(count)]
    sources = []
    for path, _ in work.files():
        with open(path, "rb") as file:
            data = file.read()
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        sources.append((os.fsencode(path), height, width))
    return sources


def _steps(work: Work) -> list[Step]:
    """Some epochs of shuffled images with their crops."""
    from feedline import TrainCrop
    from feedline.order.seeds import RandomStream

    crop, order, sources = TrainCrop(scale=SCALE, ratio=RATIO), random.Random(0), _sources(work)
    steps: list[Step] = []
    for _ in range(_EPOCHS):
        order.shuffle(sources)
        for what, height, width in sources:
            steps.append((what, crop.box(height, width, RandomStream(order.getrandbits(64)))))
    return steps


def _order(pipe: Any) -> float | None:
    """Seconds to work, or None at the end."""
    try:
        seconds: float = pipe.recv()
    except EOFError:
        return None
    return seconds


def _libraries() -> Callable[[Any, Any, Any], None]:
    """Resize function of the fastest libraries: OpenCV for enlarging, otherwise torch."""
    import cv2
    import torch

    cv2.setNumThreads(1)
    antialiased = torch._C._nn._upsample_bilinear2d_aa

    def resize(row: Any, part: Any, crop: Any) -> None:
        height, width, flip = crop.height, crop.width, crop.flip
        size = len(row)
        if height == size and width == size:
            row[...] = part
        elif height <= size and width <= size:
            cv2.resize(part, (size, size), dst=row, interpolation=cv2.INTER_LINEAR)
        else:
            source = torch.from_numpy(part[None]).permute(0, 3, 1, 2)
            target = torch.from_numpy(row[None]).permute(0, 3, 1, 2)
            antialiased(source, [size, size], False, None, None, out=target)
        if flip:
            cv2.flip(row, 1, dst=row)

    return resize


def _run(pipe: Any, steps: list[Step], work: Work, own: bool) -> None:
    import numpy as np
    import torch
    from bare_row import DecodeState, decode_crop, decode_crop_with_libraries

    from feedline.images.crops import cut
    from feedline.images.resize import fill

    torch.set_num_threads(1)
    resize = fill if own else _libraries()
    decode = decode_crop if own else decode_crop_with_libraries
    state = DecodeState()
    size = work.size
    rows = np.zeros((work.batch_size, size, size, 3), np.uint8)
    raw = None
    if work.kind == "raw":
        raw = np.asarray(np.load(f"{work.folder}/images.npy", mmap_mode="c"))

    def make(what: Any, crop: Any, row: Any) -> None:
        part = decode(what, crop, state) if raw is None else cut(raw[what], crop.part)
        resize(row, part, crop)

    k = 0
    pipe.send("ready")
    while (seconds := _order(pipe)) is not None:
        start = now = time.perf_counter()
        first = k
        while now - start < seconds:
            for _ in range(8):
                make(*steps[k % len(steps)], rows[k % len(rows)])
                k += 1
            now = time.perf_counter()
        pipe.send((k - first, now - start))


class Bare:
    """Bare processes, started once; they end with this process."""

    def __init__(self, work: Work, own: bool) -> None:
        context = multiprocessing.get_context("spawn")
        steps = _steps(work)
        self._pipes = []
        for number in range(work.workers):
            ours, theirs = context.Pipe()
            share = steps[number :: work.workers]
            context.Process(target=_run, args=(theirs, share, work, own), daemon=True).start()
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.recv()

    def rate(self, seconds: float) -> tuple[int, float]:
        """Run for about `seconds`; return the images and the seconds."""
        for pipe in self._pipes:
            pipe.send(seconds)
        made = [pipe.recv() for pipe in self._pipes]
        # Processes end at different times: add up their own rates.
        rate = sum(images / took_s for images, took_s in made)
        took_s = max(took_s for _, took_s in made)
        return round(rate * took_s), took_s


def bare(work: Work, own: bool = False) -> Bare:
    return Bare(work, own)
