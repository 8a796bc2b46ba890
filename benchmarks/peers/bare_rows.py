"""Processes that only do the work of workers, to measure the cost of handing over batches.

Each process repeatedly makes tasks of rows like a worker, with random crops and checksums, in its
own memory; together they use as much memory as the loader's batches. Nothing is handed over.
"""

from __future__ import annotations

import time

import numpy as np
from process_pool import ProcessPool, ProcessState

from feedline import ImageFolder, TrainCrop
from feedline.engine.buffers import batch_bytes
from feedline.engine.load_samples import Source, fill
from feedline.engine.messages import RowTask
from feedline.order.batch_spec import TASK_NS, rows_per_task
from feedline.profile.bench_loaders import PREFETCH
from peers.work import RATIO, SCALE, Work

NAME = "bare processes, feedline's rows"
NEEDS = ("torch", "feedline")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "cache")

_LEAD = 0.1  # share of the time, as the processes do not start and end at the same instant


class BareRows:
    """Processes that make rows without passing them on; they end with this process."""

    def __init__(self, work: Work) -> None:
        self._pool = ProcessPool(work.workers)
        source = ImageFolder(work.folder, TrainCrop(scale=SCALE, ratio=RATIO))
        rows = max(1, -(-work.batch_size * (PREFETCH + 1) // work.workers))
        self._pool.each(_hold_source, [(source, work.size, rows)] * work.workers)
        self._workers = work.workers

    def rate(self, seconds: float) -> tuple[int, float]:
        """Run for about `seconds`; return the images and the seconds."""
        share = self._workers
        turns = self._pool.each(_load_rows, [(k, share, seconds) for k in range(share)])
        images = sum(count for count, _ in turns)
        return images, images / sum(count / taken for count, taken in turns)


def bare(work: Work) -> BareRows:
    return BareRows(work)


def _hold_source(state: ProcessState, source: Source, size: int, rows: int) -> None:
    state |= {
        "source": source,
        "block": np.zeros(batch_bytes(source.fields(size), rows), np.uint8),
        "rows": rows,
        "size": size,
        "next": 0,
        "row_ns": TASK_NS,
        # Reading memory in order would be faster than a loader's random order.
        "order": np.random.default_rng(0).permutation(len(source)),
    }


def _load_rows(state: ProcessState, first: int, step: int, seconds: float) -> tuple[int, float]:
    held = state
    source, block, rows, order = held["source"], held["block"], held["rows"], held["order"]
    line = np.zeros(8, np.int64)
    lead_s = _LEAD * seconds

    def make(until: float, least: int) -> int:
        made = 0
        while made < least or time.perf_counter() < until:
            start = held["next"] % rows
            count = min(rows_per_task(rows, 1, held["row_ns"]), rows - start)
            places = first + step * np.arange(held["next"], held["next"] + count)
            task = RowTask(
                id=1,
                samples=order[places % len(order)],
                slot_bytes=len(block),
                batch_rows=rows,
                start=start,
                image_size=held["size"],
                seed=held["next"],
            )
            # Failed rows, of images that were removed since, count: the loader skips them, too.
            report = fill(task, source, block, line, 0)
            held["row_ns"] = (report.ended_ns - report.started_ns) / count
            held["next"] += count
            made += count
        return made

    make(time.perf_counter() + lead_s, 1)
    start = time.perf_counter()
    images = make(start + seconds, 1)
    end = time.perf_counter()
    make(end + lead_s, 0)
    return images, end - start
