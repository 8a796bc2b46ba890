"""Limits on workers and batches ahead, from cores, memory and the user's settings.

Guarantees: pure; at least one worker, and never more than there are worker ids. Workers and batches
ahead are budgeted together: workers x batches ahead x bytes of a batch, plus each worker's own
memory, never exceed the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.throughput.thresholds import THRESHOLDS

__all__ = ["MAX_WORKERS", "MemoryBudget", "WorkerLimits"]

MAX_WORKERS = 512
"""Most workers of a pool: each has a line of the heartbeat table and a page of stage timings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """Resources of a loader."""

    cores: int  # for the training process and its workers
    more: int | None = None  # additional workers that fit in memory; None if unknown
    for_each: int = 0
    """Whole batches the user lets each worker make ahead; 0 for batches made of rows, of which
    memory always holds the full number ahead."""
    batches: int | None = None  # additional batches ahead that fit in memory; None if unknown

    def most(self, workers: int, blocked_share: float) -> int:
        """Maximum number of workers, from their current number.

        One per core if they compute. If they spend most of their work waiting for a disk or a
        server (`blocked_share`, 0 to 1), as many more as leave the cores busy.
        """
        most = max(1, self.cores)
        if blocked_share > THRESHOLDS.mostly_blocked:
            most = int(min(THRESHOLDS.workers_per_core, 1 / max(1e-9, 1 - blocked_share)) * most)
        if self.more is not None:
            most = min(most, max(workers, 1) + max(0, self.more))
        return max(1, min(most, MAX_WORKERS))

    def deepest(self, prefetch: int, workers: int, blocked_share: float) -> int:
        """Maximum number of whole batches ahead, from the current one and that of workers.

        It is that of the largest allowed worker pool; see `most`.
        """
        deepest = self.for_each * self.most(workers, blocked_share)
        return deepest if self.batches is None else min(deepest, prefetch + self.batches)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBudget:
    """Memory available in addition to what is in use now."""

    free: int  # bytes
    workers: int  # current number
    ahead: int  # whole batches that each makes ahead; 0 for rows, whose memory stays allocated
    worker_bytes: int  # memory of a worker
    batch_bytes: int  # memory of a whole batch; 0 if unknown, or for batches of rows

    def fits(self, workers: int, ahead: int) -> bool:
        """Return True if this many workers, each with this many batches ahead, fit in memory."""
        return workers <= self.most_workers(ahead)

    def most_workers(self, ahead: int) -> int:
        """Largest number of workers that fit with this many batches ahead each; 0 if none fits."""
        in_use = self.workers * (self.worker_bytes + self.ahead * self.batch_bytes)
        each = self.worker_bytes + ahead * self.batch_bytes
        return (in_use + max(0, self.free)) // each if each else MAX_WORKERS

    def most_batches(self) -> int | None:
        """Additional whole batches that fit; None if there is no known limit."""
        return max(0, self.free) // self.batch_bytes if self.batch_bytes else None
