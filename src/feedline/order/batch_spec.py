"""Specification of a batch, its rows and their layout, and its division into tasks.

The engine and a row source share only `Field` and `Item`: the engine does not depend on images, and
a source does not depend on buffer slots.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.order.schedule import Phase
from feedline.order.seeds import mix

NO_SAMPLE_INDEX = -(1 << 63)
"""Sample index that replaces a sampler's key that is not an integer."""

TASK_NS = 50_000_000
"""Default duration of a task, in ns. Sending its message takes 0.2 ms, 0.4% of that."""

MAX_ROWS_PER_TASK = 256
"""Upper limit of rows per task, which keeps messages small."""


class BatchSpec(NamedTuple):
    """Specification of one batch of one rank.

    Args:
        epoch: epoch, counted from 0.
        step: step within the epoch, counted from 0; the same on every rank.
        phase: phase of the schedule.
        image_size: side of the square images, in pixels; None if no size is set.
        samples: sample indices, shape (rows,), int64.
        padding: number of rows at the end that repeat samples of other rows.
        epoch_seed: 64 bits, the same on every rank.
        first_position: position of the first row in the epoch's order.
        stride: distance between the positions of adjacent rows; 0 if row seeds ignore positions.
        rank: rank of the process that loads the batch.
        is_sampled: True if a sampler defines the batch, instead of a planned order.
        keys: keys from the sampler: the arguments of the dataset's `__getitem__`; None if planned.
    """

    epoch: int
    step: int
    phase: Phase
    image_size: int | None
    samples: NDArray[np.int64]
    padding: int
    epoch_seed: int
    rank: int = 0
    is_sampled: bool = False
    keys: object = None
    first_position: int = 0
    stride: int = 0

    @property
    def dataset_keys(self) -> Any:
        """Keys of the batch for its dataset: the sampler's keys, or the sample indices."""
        return self.keys if self.is_sampled else self.samples.tolist()

    @property
    def seed(self) -> int:
        """64 bits, the same on every rank. A row's seed is mix(seed, sample), or, if a sample may
        occur twice, mix(seed, sample, first_position + row * stride).
        """
        return mix(self.epoch_seed, self.step) if self.is_sampled else self.epoch_seed

    @property
    def batch_seed(self) -> int:
        """Seed of random choices for the batch as a whole, 64 bits."""
        return self.batch_seeds(1)[0]

    def batch_seeds(self, count: int) -> list[int]:
        """Batch seeds of this step and of the following ones, of the same epoch."""
        base, rank, steps = self.epoch_seed, self.rank, range(self.step, self.step + count)
        if self.is_sampled:
            return [mix(mix(base, step), step, rank) for step in steps]
        return [mix(base, step, rank) for step in steps]

    @property
    def rows(self) -> int:
        """Number of rows of the batch on this rank."""
        return len(self.samples)

    def without(self, rows: Collection[int]) -> BatchSpec:
        """Return the specification without some rows, which could not be loaded."""
        kept = [row for row in range(self.rows) if row not in rows]
        keys = self.keys
        if isinstance(keys, (list, tuple)):
            keys = [keys[row] for row in kept]
        padding = sum(row >= self.rows - self.padding for row in kept)
        return self._replace(samples=self.samples[kept], padding=padding, keys=keys)


class Field(NamedTuple):
    """Layout of one array of a batch, for one row.

    Args:
        name: name of the array, e.g. "image".
        dtype: numpy dtype string, e.g. "uint8".
        shape: shape of one row; () for a scalar.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class Item(NamedTuple):
    """Request for one row.

    Args:
        sample: sample index, in 0 .. len(source) - 1.
        image_size: side of the square image, in pixels; None if no size is set.
        seed: 64 bits derived from (seed, epoch, sample). Every random choice for the row follows
            from it, so a row is the same in every worker, however often it is made.
        strength: augmentation strength, 0 (none) to 1 (as configured in the transform).
    """

    sample: int
    image_size: int | None
    seed: int
    strength: float

    @property
    def required_image_size(self) -> int:
        """Image size in pixels, for sources of images: their items always have one."""
        assert self.image_size is not None
        return self.image_size


class Items(NamedTuple):
    """Requests for several rows of one image size.

    Args:
        samples: sample indices, int64 (n).
        image_size: side of the square images, in pixels; None if no size is set.
        seeds: of each row, uint64 (n).
        strength: augmentation strength, 0 to 1.
    """

    samples: NDArray[np.int64]
    image_size: int | None
    seeds: NDArray[np.uint64]
    strength: float

    def each(self) -> list[Item]:
        """The requests one by one."""
        return [
            Item(sample, self.image_size, seed, self.strength)
            for sample, seed in zip(self.samples.tolist(), self.seeds.tolist(), strict=True)
        ]


def rows_per_task(
    batch_rows: int, workers: int, row_ns: float, batches: int = 1, task_ns: int = TASK_NS
) -> int:
    """Number of rows per task: about `task_ns` of work, and few enough to occupy every worker.

    For fast rows the overhead of a task (message, wake-up) dominates, so tasks are as long as
    possible. With few workers and several batches in the queue a task may be a whole batch: then
    every worker still has a current task and another in the queue.
    """
    workers = max(1, workers)
    share = max(-(-batch_rows // workers), batch_rows * batches // (workers + 1))
    target = round(task_ns / max(1.0, row_ns))
    return max(1, min(batch_rows, share, target, MAX_ROWS_PER_TASK))


def divide_rows(rows: int, task_rows: int) -> list[tuple[int, int]]:
    """Divide `rows` rows into nearly equal tasks: (start, count) of each, count <= task_rows."""
    tasks = -(-rows // task_rows)
    edges = [rows * k // tasks for k in range(tasks + 1)] if tasks else []
    return [(start, stop - start) for start, stop in pairwise(edges)]
