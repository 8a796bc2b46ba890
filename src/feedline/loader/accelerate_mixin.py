"""A loader's side of Hugging Face Accelerate.

Guarantees: `accelerator.prepare(loader)` gives back the same loader, `save_state` and
`load_state` keep its state, and Accelerate knows which batch of an epoch is the last.
Relies on: Accelerate leaving a loader alone that says it is prepared, which it then tells so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from feedline.errors import UsageError

__all__ = ["TOLD_BY_ACCELERATE", "Accelerated"]

T = TypeVar("T")

TOLD_BY_ACCELERATE = frozenset({"_gradients", "end_of_dataloader", "remainder"})
"""Attributes of a loader that are of one run: a copy has to be prepared itself."""


class Accelerated:
    """For a loader with `dataset`, `batch_size`, `drop_last`, `device` and `ranks`.

    `accumulate` and `gather_for_metrics` read `end_of_dataloader` and `remainder` of the loader
    under way: whether the batch handed out is the epoch's last, and how many rows of the last
    batch over all ranks are no repetitions (0: as many as there are; -1: not known).
    """

    dataset: Any
    batch_size: int | None
    drop_last: bool
    device: Any

    @property
    def ranks(self) -> int:
        """How many processes the loader shares its samples among."""
        raise NotImplementedError

    use_stateful_dataloader = True  # save_state and load_state ask for this name
    end_of_dataloader = False
    remainder = -1
    _gradients: Any = None  # Accelerate's GradientState, from `prepare` on

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate would else build a stock loader from this one's parts."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """What `Accelerator.prepare` does to each loader it keeps."""
        state = sys.modules["accelerate.state"]
        ranks = state.PartialState().num_processes
        if prepared and ranks != self.ranks:
            raise UsageError(
                f"the loader shares its samples among {self.ranks} and Accelerate runs {ranks} "
                "processes; give the loader a seed, by which it shares them out itself, and build "
                "it after the Accelerator, or pass rank and world_size"
            )
        self._gradients = state.GradientState() if prepared else None

    def watched(self, batches: Iterator[T], left: Callable[[], int]) -> Iterator[T]:
        """The batches, told to Accelerate once it prepared this loader.

        Args:
            batches: the iteration.
            left: how many batches the epoch under way still has, as of now.
        """
        return batches if self._gradients is None else self._told(batches, left)

    def _told(self, batches: Iterator[T], left: Callable[[], int]) -> Generator[T, None, None]:
        state, send = sys.modules["accelerate.state"], sys.modules["accelerate.utils"]
        target = state.PartialState().device
        self.end_of_dataloader, self.remainder = False, self._unpadded()
        self._gradients._add_dataloader(self)
        try:
            for batch in batches:
                self.end_of_dataloader = left() == 0
                there = self.device or target.type == "cpu"
                yield batch if there else send.send_to_device(batch, target)
        finally:
            self._gradients._remove_dataloader(self)

    def _unpadded(self) -> int:
        if self.batch_size is None:
            return -1
        if self.drop_last:
            return 0
        rows = len(self.dataset) % (self.batch_size * self.ranks)
        # Accelerate cuts off the end of what it gathered, rank by rank, where each of the last
        # `missing` ranks has one repeated row at its own end: right for one such rank alone.
        missing = -rows % self.ranks
        return rows if missing < 2 else 0
