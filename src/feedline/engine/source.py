"""Protocols of batch sources.

A `Source` makes rows of a known size, which all workers write side by side into one batch: an image
folder, a cache. A `BatchSource` makes whole batches of unknown size, one worker each: any dataset
with any `collate_fn`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feedline.engine.buffers import Space
from feedline.engine.messages import BatchTask
from feedline.order.batch_spec import Field, Item

__all__ = ["AnySource", "BatchSource", "Given", "Row", "Source", "makes_whole_batches"]

Row = tuple[NDArray[np.generic], ...]


class Source(Protocol):
    """Makes rows. Pickled once, mapped by every worker, called from its main thread only.

    Order of calls in a worker: `open`, if it exists, with the worker id and the number of workers;
    then `load` any number of times. Before the rows of a task comes `prepare(samples, image_size)`,
    if it exists: its errors are ignored, because `load` reports what is wrong with a row, and its
    time does not count as work of the task. `fields`, `name` and `fingerprint` are called in the
    training process as well. Everything must depend on the arguments alone: a row may be made
    twice, by different workers, and must be the same.
    """

    def __len__(self) -> int:
        """Number of samples."""

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a batch at an image size (pixels), described by one row each.

        None is the samples' own size.
        """

    def load(self, item: Item, row: Row) -> None:
        """Fill one row: arrays of the fields' shapes and dtypes, to be written in place.

        Raises:
            Exception: any; it is reported with the sample's name.
        """

    def name(self, sample: int) -> str:
        """Name of a sample for the user: its path, if it has one."""

    def fingerprint(self) -> str:
        """Short text that differs if the samples or their order differ."""


class BatchSource(Protocol):
    """Makes whole batches. Called from a worker's main thread only."""

    def open(self, worker: int, workers: int) -> None:
        """Start a worker with its id and the number of workers. Called once, before `pack`."""

    def pack(self, keys: bytes, task: BatchTask, space: Space, at: Callable[[int], None]) -> int:
        """Make a batch, or catch its errors, and write it to `space`.

        Args:
            keys: sample keys, as the trainer wrote them.
            task: size, strength and seeds.
            space: memory for the batch: first its tensors, then its structure.
            at: called with the index of each sample before it is made, counted from 0.

        Returns:
            Number of bytes at the end of `space` that describe the structure.
        """


@runtime_checkable
class Given(Protocol):
    """A source that holds the user's objects under its own names."""

    def given(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""


AnySource: TypeAlias = "Source | BatchSource"


def makes_whole_batches(source: AnySource) -> bool:
    """Return True if a source makes whole batches."""
    return hasattr(source, "pack")
