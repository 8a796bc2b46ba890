"""Memory budget for workers and the batches they make ahead.

Guarantees: pure. Workers and batches ahead are budgeted together: workers x batches ahead x bytes
of a batch, plus each worker's own memory, never exceed the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Room"]

_NO_END = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Memory available in addition to what is in use now.

    Args:
        free: bytes available.
        workers: current number of workers,
        ahead: and whole batches each makes ahead; 0 for batches of rows, whose memory is always
            allocated.
        worker_bytes: memory of a worker.
        batch_bytes: memory of a whole batch; 0 if unknown, or for batches of rows.
    """

    free: int
    workers: int
    ahead: int
    worker_bytes: int
    batch_bytes: int

    def fits(self, workers: int, ahead: int) -> bool:
        """Return True if this many workers, each with this many batches ahead, fit in memory."""
        batches = workers * ahead - self.workers * self.ahead
        more = (workers - self.workers) * self.worker_bytes + batches * self.batch_bytes
        return more <= max(0, self.free)

    def most_workers(self, ahead: int) -> int:
        """Largest number of workers that fit with this many batches ahead each; 0 if none fits."""
        each = self.worker_bytes + ahead * self.batch_bytes
        return self._whole // each if each else _NO_END

    def most_batches(self) -> int | None:
        """Additional whole batches that fit; None if there is no known limit."""
        return max(0, self.free) // self.batch_bytes if self.batch_bytes else None

    @property
    def _whole(self) -> int:
        """Total budget in bytes, including memory in use now."""
        held = self.workers * (self.worker_bytes + self.ahead * self.batch_bytes)
        return held + max(0, self.free)
