"""The limit: what bare processes reach that only read, decode, crop and resize.

As many processes as workers go through the same images again and again with crops that were
drawn beforehand and the quickest calls that libraries have, to within 0.3 grey levels on average of
torchvision's pixels, each into a batch of memory of its own that it writes over and over. Nothing
is drawn, checked, reported or handed on.

`limit_own.py` is the same by the calls that feedline makes.
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

Step = tuple[Any, Any]  # a path or number, the crop as a Box
_EPOCHS = 8


def _sources(work: Work) -> list[tuple[Any, int, int]]:
    """Every image's path or number, height and width."""
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
    """Some epochs of shuffled images and their crops."""
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
    """For how long to work, or None at the end."""
    try:
        seconds: float = pipe.recv()
    except EOFError:
        return None
    return seconds


def _libraries() -> Callable[[Any, Any, Any], None]:
    """A part into a row by the quickest that libraries have: OpenCV where it grows, else torch."""
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
    """Bare processes, started once; they end with this one."""

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
        """Images made in about `seconds`, and the seconds that it took."""
        for pipe in self._pipes:
            pipe.send(seconds)
        made = [pipe.recv() for pipe in self._pipes]
        # They end apart: each one's own rate is what it would keep up without end.
        rate = sum(images / took_s for images, took_s in made)
        took_s = max(took_s for _, took_s in made)
        return round(rate * took_s), took_s


def bare(work: Work, own: bool = False) -> Bare:
    return Bare(work, own)
