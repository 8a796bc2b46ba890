"""How far a crew may grow, by cores and memory.

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
    """What a crew has to do with.

    Args:
        cores: that the training process and its workers may use.
        more: workers that there is memory for, besides those there are; None where not known.
    """

    cores: int
    more: int | None = None

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
