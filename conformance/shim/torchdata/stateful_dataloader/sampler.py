"""Samplers that the suites import."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler

__all__ = ["RandomSampler", "StatefulDistributedSampler"]


class StatefulDistributedSampler(DistributedSampler):
    """A DistributedSampler that counts its indices and can resume from a count."""

    _EPOCH, _YIELDED = "epoch", "yielded"

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.yielded = 0
        self.next_yielded: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        for index in islice(super().__iter__(), self.yielded, None):
            self.yielded += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of yielded indices."""
        return {self._EPOCH: self.epoch, self._YIELDED: self.yielded}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Set the epoch and the number of indices that the next iteration skips."""
        count = state_dict.get(self._YIELDED, -1)
        if count < 0:
            raise ValueError(f"a state needs {self._YIELDED!r}, at least 0; this is {state_dict}")
        self.next_yielded = count
        self.set_epoch(state_dict.get(self._EPOCH, self.epoch))
