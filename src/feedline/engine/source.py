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

    A worker first calls the optional `open(worker_id, workers)`. For each task it calls the
    optional `prepare(samples, image_size)`, then `load` for each row. Errors of `prepare` are
    ignored, because `load` reports them, and its time does not count as work. The trainer also
    calls `fields`, `name` and `fingerprint`. Results must depend on the arguments alone: a row may
    be made twice, by different workers, and must be equal.
    """

    def __len__(self) -> int:
        """Number of samples."""

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Fields of a row at an image size in pixels; None is the samples' own size."""

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
        """Make a batch and write it, or its error, to `space`.

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
