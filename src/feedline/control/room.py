"""Memory for workers and for the batches that they make ahead, both together.

Guarantees: pure. A crew and its depth are looked at as one: workers x batches ahead x bytes of a
batch, and each worker's own memory, never exceed what may be taken.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Room"]

_NO_END = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What may be taken besides what is held now.

    Args:
        free: bytes that may be taken.
        workers: that there are now,
        ahead: and whole batches that each of them makes ahead; 0 for batches of rows, which have
            their memory in any case.
        worker_bytes: of a worker.
        batch_bytes: of a whole batch; 0 where that is not known, or for batches of rows.
    """

    free: int
    workers: int
    ahead: int
    worker_bytes: int
    batch_bytes: int

    def fits(self, workers: int, ahead: int) -> bool:
        """Whether there is memory for so many workers with so many batches ahead for each."""
        batches = workers * ahead - self.workers * self.ahead
        more = (workers - self.workers) * self.worker_bytes + batches * self.batch_bytes
        return more <= max(0, self.free)

    def most_workers(self, ahead: int) -> int:
        """The largest crew that fits with so many batches ahead for each worker; 0 for none."""
        each = self.worker_bytes + ahead * self.batch_bytes
        return self._whole // each if each else _NO_END

    def most_batches(self) -> int | None:
        """How many whole batches more fit beside the workers; None: no end is known."""
        return max(0, self.free) // self.batch_bytes if self.batch_bytes else None

    @property
    def _whole(self) -> int:
        """Bytes that may be held, with what is held now."""
        held = self.workers * (self.worker_bytes + self.ahead * self.batch_bytes)
        return held + max(0, self.free)
