"""Limits on workers and batches ahead, from cores, memory and the user's settings.

Guarantees: pure; at least one worker, and never more than there are worker ids.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_WORKERS", "WorkerLimits"]

MAX_WORKERS = 512
"""Most workers of a pool: each has a line of the heartbeat table and a page of stage timings."""

_FOR_EACH_CORE = 4
"""Maximum number of workers per core, if nearly all of their work is waiting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """Resources of a loader.

    Args:
        cores: cores for the training process and its workers.
        more: additional workers that fit in memory; None if unknown.
        for_each: whole batches the user lets each worker make ahead; 0 for batches made of rows, of
            which memory always holds the full number ahead.
        batches: additional batches ahead that fit in memory; None if unknown.
    """

    cores: int
    more: int | None = None
    for_each: int = 0
    batches: int | None = None

    def most(self, workers: int, blocked_share: float) -> int:
        """Maximum number of workers.

        One per core if they compute. If they spend most of their work waiting for a disk or a
        server, as many more as leave the cores busy.

        Args:
            workers: current number of workers.
            blocked_share: share of their work spent blocked, 0 to 1.
        """
        computing = max(1.0 / _FOR_EACH_CORE, 1.0 - blocked_share)
        cores = max(1, self.cores)
        most = int(cores / computing) if blocked_share > 0.5 else cores
        if self.more is not None:
            most = min(most, max(workers, 1) + max(0, self.more))
        return max(1, min(most, MAX_WORKERS))

    def deepest(self, prefetch: int, workers: int, blocked_share: float) -> int:
        """Maximum number of whole batches ahead: that of the largest allowed worker pool.

        Args:
            prefetch: current maximum.
            workers: current number of workers.
            blocked_share: share of their work spent blocked, 0 to 1.
        """
        deepest = self.for_each * self.most(workers, blocked_share)
        return deepest if self.batches is None else min(deepest, prefetch + self.batches)
