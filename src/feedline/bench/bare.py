"""The ceiling of the machine: bare processes that only make rows.

As many processes as workers call `source.load` over and over into memory of their own, in a
shuffled order as a loader does. No process waits for a batch and nothing is handed over, so
loader / bare is what handing over costs.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from feedline.bench.pool import Keep, Pool, Tell
from feedline.bench.rate import Turn
from feedline.engine.layout import arrays, batch_bytes
from feedline.engine.source import Source
from feedline.errors import SampleError
from feedline.plan.row import Item
from feedline.plan.seeds import extend, mix

__all__ = ["Bare", "bare_rows"]

_LEAD = 0.1  # of the time: the processes do not start and end at one instant


def bare_rows(batch_size: int, slots: int, processes: int) -> int:
    """Rows of each process's memory, for all together to write as much as the loader does."""
    return max(1, -(-batch_size * slots // processes))


class Bare:
    """A source, loaded by the processes of a pool.

    Args:
        pool: the processes.
        source: makes the rows.
        name: what to call it; unlike other sources in the pool.
        size: of the rows, in pixels.
        rows: rows of each process's memory.
    """

    def __init__(self, pool: Pool, source: Source, *, name: str, size: int, rows: int) -> None:
        self.name = name
        self.first_batch_s: float | None = None  # it makes no batches
        self._pool = pool
        pool.each(_hold, [(name, source, size, rows)] * len(pool))

    def turn(self, seconds: float) -> Turn:
        """Count images for about this long."""
        share = len(self._pool)
        turns = self._pool.each(_load, [(self.name, k, share, seconds) for k in range(share)])
        images = sum(turn.images for turn in turns)
        rate = sum(turn.images_per_s for turn in turns)
        return Turn(images=images, seconds=images / rate, cpu_s=sum(turn.cpu_s for turn in turns))


def _hold(keep: Keep, tell: Tell, name: str, source: Source, size: int, rows: int) -> None:
    fields = source.fields(size)
    block = np.zeros(batch_bytes(fields, rows), np.uint8)
    keep[name] = {
        "source": source,
        "views": arrays(block, fields, rows),
        "size": size,
        "next": 0,
        # Memory is read quicker in order than across.
        "order": np.random.default_rng(0).permutation(len(source)),
    }


def _load(keep: Keep, tell: Tell, name: str, first: int, step: int, seconds: float) -> Turn:
    held: dict[str, Any] = keep[name]
    source, views, size, order = held["source"], held["views"], held["size"], held["order"]
    rows, length, seed = len(views[0]), len(source), mix(0)
    lead_s = _LEAD * seconds

    def make(until: float, least: int) -> int:
        made = 0
        while made < least or time.perf_counter() < until:
            k = held["next"]
            held["next"] += 1
            sample = int(order[(first + k * step) % length])
            item = Item(sample, size, extend(seed, first + k * step), 1.0)
            with contextlib.suppress(SampleError):  # removed since; the loader skips it too
                source.load(item, tuple([view[k % rows, ...] for view in views]))
            made += 1
        return made

    make(time.perf_counter() + lead_s, 1)
    start, used_s = time.perf_counter(), time.process_time()
    images = make(start + seconds, 1)
    end, cpu_s = time.perf_counter(), time.process_time() - used_s
    make(end + lead_s, 0)
    return Turn(images=images, seconds=end - start, cpu_s=cpu_s)
