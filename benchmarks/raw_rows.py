"""Compare a worker's CPU time per row of a raw cache: rows of a task together, and one by one.

    python benchmarks/raw_rows.py CACHE --size 112

Method: one process makes tasks of `--rows` random rows like a worker, with random crops of 25 to
100% of the area and checksums, into eight batch buffers in turn. Both variants alternate for
`--rounds` rounds. Prints the fastest pass over the cache, in us of CPU time per row.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import describe_processor, machine

from feedline import ImageFolder, TrainCrop
from feedline.engine.buffers import batch_bytes
from feedline.engine.load_samples import fill
from feedline.engine.messages import RowTask

BATCHES = 8


class OneByOne:
    """A source without `load_rows`."""

    def __init__(self, source: ImageFolder) -> None:
        self.fields, self.load = source.fields, source.load


def cpu_us(source: Any, tasks: list[RowTask], memory: Any) -> float:
    """CPU time per row of the tasks, in us."""
    line, start = np.zeros(8, np.int64), time.process_time()
    for task in tasks:
        assert not fill(task, source, memory, line, 0).failures
    return (time.process_time() - start) / sum(len(task.samples) for task in tasks) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--size", type=int, required=True, help="image size, in pixels")
    parser.add_argument("--rows", type=int, default=64, help="rows per task")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)
    source = ImageFolder(options.cache, TrainCrop(scale=(0.25, 1.0)))
    order = np.random.default_rng(0).permutation(len(source))
    nbytes = batch_bytes(source.fields(options.size), options.rows)
    memory = np.zeros(nbytes * BATCHES, np.uint8)
    tasks = [
        RowTask(
            id=1,
            samples=order[first : first + options.rows],
            offset=number % BATCHES * nbytes,
            slot_bytes=nbytes,
            batch_rows=options.rows,
            image_size=options.size,
            seed=number,
        )
        for number, first in enumerate(range(0, len(order), options.rows))
    ]
    passes: dict[str, list[float]] = {"together": [], "one by one": []}
    for _ in range(options.rounds + 1):  # the first pass is a warm-up
        passes["together"].append(cpu_us(source, tasks, memory))
        passes["one by one"].append(cpu_us(OneByOne(source), tasks, memory))
    for name, times in passes.items():
        print(f"{name}: {min(times[1:]):.1f} us per row")


if __name__ == "__main__":
    main()
