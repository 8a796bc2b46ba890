"""How far a loader may go, by cores, by memory, and by what its user has stated.

Guarantees: pure; never more workers than there are seats for, and at least one.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.engine.board import MAX_SEATS

__all__ = ["Limits"]

_FOR_EACH_CORE = 4
"""Workers of a core at most, where nearly all of their work is waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a loader has to do with.

    Args:
        cores: that the training process and its workers may use.
        more: workers that there is memory for, besides those there are; None where not known.
        for_each: whole batches that the user lets each worker make ahead; 0 where batches are made
            of rows: as many as there is memory for are ahead in any case.
        batches: that there is memory for, besides those that may be ahead; None where not known.
    """

    cores: int
    more: int | None = None
    for_each: int = 0
    batches: int | None = None

    def most(self, workers: int, blocked_share: float) -> int:
        """How many workers there may be.

        One for each core, where they compute. Where they wait for a disk or a server for most of
        their work, as many more as leave the cores busy.

        Args:
            workers: that there are now.
            blocked_share: of their work, 0 to 1.
        """
        computing = max(1.0 / _FOR_EACH_CORE, 1.0 - blocked_share)
        cores = max(1, self.cores)
        most = int(cores / computing) if blocked_share > 0.5 else cores
        if self.more is not None:
            most = min(most, max(workers, 1) + max(0, self.more))
        return max(1, min(most, MAX_SEATS))

    def deepest(self, prefetch: int, workers: int, blocked_share: float) -> int:
        """How many whole batches may be ahead: those of the largest crew that there may be.

        Args:
            prefetch: how many may be now.
            workers: that there are now.
            blocked_share: of their work, 0 to 1.
        """
        deepest = self.for_each * self.most(workers, blocked_share)
        return deepest if self.batches is None else min(deepest, prefetch + self.batches)
