"""The limit: what bare processes reach that only read, decode, crop and resize.

Each process goes through its share of the same samples in the same order, with the same crops
(drawn beforehand), the same library calls and a batch of memory of its own that it writes over
and over. No header is parsed, nothing is drawn, checked, reported or handed on. With `draw` the
processes parse the header and draw the crop themselves, by feedline's own code: then they do all
that decides about pixels, and what is left is the price of handing batches over. Only JPEGs of
one or three colours take part.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch

from feedline.images.crops import Box, TrainCrop
from feedline.images.folder import ImageFolder
from feedline.plan.batches import Plan
from feedline.plan.row import Item
from feedline.plan.seeds import mix

__all__ = ["Limit"]

_resize = torch.ops.aten._upsample_bilinear2d_aa.out
Work = list[tuple[bytes, Box]]


def one_image(
    path: bytes, box: Box, buffer: Any, row: Any, size: int, transform: TrainCrop | None = None
) -> None:
    """Read, decode, crop and resize one image with the calls that feedline makes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    if transform is not None:
        high, wide, _, _ = simplejpeg.decode_jpeg_header(data)
        box = transform.place(high, wide, Item(0, size, mix(0, box.top, box.left, high), 1.0))
    image = simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, strict=True)
    top, left, height, width, flip = box
    crop = image[top : top + height, left : left + width]
    if height == size and width == size:
        row[...] = crop
    elif height <= size and width <= size:
        cv2.resize(crop, (size, size), dst=row, interpolation=cv2.INTER_LINEAR)
    else:
        source = torch.from_numpy(crop[None]).permute(0, 3, 1, 2)
        target = torch.from_numpy(row[None]).permute(0, 3, 1, 2)
        _resize(source, [size, size], False, None, None, out=target)
    if flip:
        cv2.flip(row, 1, dst=row)


def draw(data: ImageFolder, plan: Plan, size: int, epoch: int) -> list[tuple[bytes, Box]]:
    """Paths and crops of an epoch, in order, exactly those that a loader of `plan` makes."""
    shapes: dict[int, tuple[int, int]] = {}
    work = []
    for step in range(plan.steps(epoch)):
        batch = plan.batch(epoch, step)
        for sample in batch.samples.tolist():
            if sample not in shapes:
                with open(data.path(sample), "rb") as file:
                    shapes[sample] = simplejpeg.decode_jpeg_header(file.read())[:2]
            item = Item(sample, size, mix(batch.seed, sample), 1.0)
            box = data.transform.place(*shapes[sample], item)
            assert isinstance(box, Box)
            work.append((os.fsencode(data.path(sample)), box))
    return work


def _run(pipe: Any, batch_size: int, crop: TrainCrop | None) -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    buffer = np.empty(64 << 20, np.uint8)
    while (order := pipe.recv()) is not None:
        work, size = order
        rows = np.zeros((batch_size, size, size, 3), np.uint8)
        pipe.send("ready")
        pipe.recv()
        for k, (path, box) in enumerate(work):
            one_image(path, box, buffer, rows[k % batch_size], size, crop)
        pipe.send("done")


class Limit:
    """Bare processes, started once.

    Args:
        processes: how many.
        batch_size: rows of the memory that each writes.
        crop: draws crops in the processes; None takes those drawn beforehand.
    """

    def __init__(self, processes: int, batch_size: int, crop: TrainCrop | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        self._processes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(theirs, batch_size, crop), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def rate(self, work: Sequence[tuple[bytes, Box]], size: int) -> float:
        """Images per second over `work`, dealt out evenly."""
        share = len(self._pipes)
        for k, pipe in enumerate(self._pipes):
            pipe.send((work[k::share], size))
        for pipe in self._pipes:
            pipe.recv()
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("go")
        ends = []
        for pipe in self._pipes:
            pipe.recv()
            ends.append(time.perf_counter() - start)
        # Processes end apart; their mean rate is what they would keep up without end.
        return len(work) / (sum(ends) / share)

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()
