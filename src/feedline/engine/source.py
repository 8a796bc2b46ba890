"""What the engine asks of whatever makes rows: an image folder, a cache, any dataset."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.plan.row import Field, Item

__all__ = ["Row", "Source"]

Row = tuple[NDArray[np.generic], ...]


class Source(Protocol):
    """Makes rows. Pickled once, mapped by every worker, called from its main thread only.

    The order of calls in a worker: `load` any number of times. `fields`, `name` and
    `fingerprint` are called in the training process as well. Everything must depend on the
    arguments alone: a row may be made twice, by different workers, and must come out the same.
    """

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def fields(self, image_size: int) -> tuple[Field, ...]:
        """The arrays of a batch at an image size (pixels), described by one row each."""
        ...

    def load(self, item: Item, row: Row) -> None:
        """Fill one row: arrays of the fields' shapes and dtypes, to be written in place.

        Raises:
            Exception: any; it is reported with the sample's name.
        """
        ...

    def name(self, sample: int) -> str:
        """What a user calls the sample: its path, where it has one."""
        ...

    def fingerprint(self) -> str:
        """A short text that differs where the samples or their order differ."""
        ...
