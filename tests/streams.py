"""An iterable dataset for the tests. It pickles, and workers can import it."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import IterableDataset

__all__ = ["Stream"]


class Stream(IterableDataset[int]):
    """The numbers below `length`, in every worker."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))
