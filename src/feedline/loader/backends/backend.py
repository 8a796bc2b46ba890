"""Base class of a loader's engines, as the session uses them.

Three classes derive from it:
    WorkerBackend     rows or whole batches made by feedline's workers
    InProcessBackend  no workers: batches are made in this process, on request
    TorchBackend      torch's own engine, for IterableDataset
"""

from __future__ import annotations

from typing import Any, TypeAlias

from feedline.engine.live_settings import LiveSettings
from feedline.loader.backends.worker_handle import WorkerHandle
from feedline.order.batch_spec import BatchSpec
from feedline.trace.stage_timings import StageTimings

__all__ = ["IDLE", "Backend", "Skipped"]

Skipped: TypeAlias = tuple[str, str]
"""A skipped sample: its name and the reason."""


class Backend:
    """Makes the batches from a position on, and moves the position.

    The methods of this class are those of an engine without workers and without prefetch.
    """

    def __init__(self) -> None:
        self.batch: BatchSpec | None = None  # what was planned for the batch that `next` gave last
        self.skipped: list[Skipped] = []  # samples left out so far

    @property
    def memory_bytes(self) -> int:
        """Memory allocated for batches."""
        return 0

    @property
    def batch_bytes(self) -> int:
        """Mean memory of one batch; 0 if unknown."""
        return 0

    @property
    def live(self) -> LiveSettings | None:
        """Settings that `apply` changes; None if none can be changed."""
        return None

    @property
    def shares_batches(self) -> bool:
        """True if all workers share each batch; otherwise a batch is made by one worker."""
        return False

    @property
    def workers(self) -> int:
        """Target number of worker processes."""
        return 0

    @property
    def under_way(self) -> int:
        """Number of batches in flight."""
        return 0

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the workers that have started, by worker id."""
        return {}

    @property
    def handles(self) -> list[Any]:
        """Processes by worker id: torch's objects, or objects with the same methods."""
        pids = self.pids
        count = max(self.workers, 1 + max(pids, default=-1))
        return [WorkerHandle(pids.get(worker_id)) for worker_id in range(count)]

    @property
    def deaths(self) -> list[str]:
        """Causes of death of replaced workers."""
        return []

    def spent(self) -> dict[int, StageTimings]:
        """Time per stage of each worker, by worker id, as far as recorded."""
        return {}

    def begin(self, restart: bool) -> object:
        """Begin an iteration at the position. `restart`: prefetched batches are stale."""

    def next(self) -> Any:
        """Return the batch at the position, which stays there until `delivered`.

        An exception that replaces its batch counts as delivered.

        Raises:
            StopIteration: the epoch has no batches left.
            SampleError: a sample of the batch could not be loaded, and must not be skipped.
            Exception: any error of a user's dataset.
        """
        raise NotImplementedError

    def delivered(self) -> None:
        """Record that the batch of the last `next` is delivered, and advance the position."""

    def poll(self) -> None:
        """Process the workers' messages."""

    def restart_prefetch(self) -> None:
        """Continue from the position, which was moved."""

    def apply(self, **changes: int | None) -> None:
        """Change settings of the running engine: fields of `engine.LiveSettings`."""

    def release(self) -> object:
        """In a forked process, release what belongs to the parent. The caller keeps the returned
        objects alive.
        """
        return None

    def close(self) -> None:
        """End the workers. Delivered batches stay valid."""


IDLE = Backend()
"""Placeholder before an engine is built, or after its workers have ended."""
