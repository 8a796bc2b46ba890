"""What the engine asks of whatever makes batches.

A `Source` makes rows of a known size, which all workers write side by side into one batch: an
image folder, a cache. A `BatchSource` makes whole batches of a size that is not known ahead, one
worker each: any dataset with any way of collating it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from feedline.engine.messages import BatchTask
from feedline.engine.space import Space
from feedline.plan.row import Field, Item

__all__ = ["AnySource", "BatchSource", "Given", "Row", "Source", "packs"]

Row = tuple[NDArray[np.generic], ...]


class Source(Protocol):
    """Makes rows. Pickled once, mapped by every worker, called from its main thread only.

    The order of calls in a worker: `open`, if there is such a method, with the worker's number and
    how many there are; then `load` any number of times. Before the rows of a piece are loaded comes
    `prepare(samples, image_size)`, if there is such a method: what it raises is passed over, as
    `load` says what is wrong with a row, and the time it takes is no work of the piece. `fields`,
    `name` and `fingerprint` are called in the training process as well. Everything must depend on
    the arguments alone: a row may be made twice, by different workers, and must come out the
    same.
    """

    def __len__(self) -> int:
        """How many samples there are."""

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """The arrays of a batch at an image size (pixels), described by one row each.

        None asks for the size that the samples have by themselves.
        """

    def load(self, item: Item, row: Row) -> None:
        """Fill one row: arrays of the fields' shapes and dtypes, to be written in place.

        Raises:
            Exception: any; it is reported with the sample's name.
        """

    def name(self, sample: int) -> str:
        """What a user calls the sample: its path, where it has one."""

    def fingerprint(self) -> str:
        """A short text that differs where the samples or their order differ."""


class BatchSource(Protocol):
    """Makes whole batches. Called from a worker's main thread only."""

    def open(self, worker: int, workers: int) -> None:
        """A worker begins: its number, and how many there are. Called once, before `pack`."""

    def pack(self, keys: bytes, task: BatchTask, space: Space, at: Callable[[int], None]) -> int:
        """Make a batch and lay it into `space`; what goes wrong with it is laid there as well.

        Args:
            keys: which samples, as the trainer wrote them.
            task: at which size and strength, with which seeds.
            space: where the batch goes, its parts first, then how they are put together.
            at: to be told which of the samples, counted from 0, is being made.

        Returns:
            How many of the last bytes in `space` say how the batch is put together.
        """


@runtime_checkable
class Given(Protocol):
    """A source that holds what a user gave to the loader, under names of its own."""

    def given(self) -> dict[str, object]:
        """What a user gave, by the names of the loader's arguments."""


AnySource: TypeAlias = "Source | BatchSource"


def packs(source: AnySource) -> bool:
    """Whether a source makes whole batches."""
    return hasattr(source, "pack")
