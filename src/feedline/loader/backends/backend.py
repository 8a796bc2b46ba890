"""What makes a loader's batches: what the session asks for, whichever engine answers.

Three backends derive from this class:
    WorkerBackend     the engine: rows or whole batches by workers
    InProcessBackend  no workers: in this process, when asked
    TorchBackend      torch's own engine, for IterableDataset
"""

from __future__ import annotations

from typing import Any, TypeAlias

from feedline.engine.live_settings import LiveSettings
from feedline.loader.backends.worker_handle import WorkerHandle
from feedline.plan.batches import Batch
from feedline.trace.stage_timings import StageTimings

__all__ = ["IDLE", "Backend", "Skipped"]

Skipped: TypeAlias = tuple[str, str]
"""A sample that was left out: its name, and why."""


class Backend:
    """Makes batches in the order of a cursor, and moves its position.

    What is defined here holds for a backend that has no workers and makes no batch ahead.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None  # what was planned for the batch that `next` gave last
        self.skipped: list[Skipped] = []  # samples left out so far

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches."""
        return 0

    @property
    def batch_bytes(self) -> int:
        """What is allocated for one, on average; 0 where that is not known."""
        return 0

    @property
    def live(self) -> LiveSettings | None:
        """What `apply` changes; None where nothing can be changed."""
        return None

    @property
    def shares_batches(self) -> bool:
        """Whether all workers share each batch, in pieces; else a batch is one worker's."""
        return False

    @property
    def workers(self) -> int:
        """How many worker processes there are to be."""
        return 0

    @property
    def under_way(self) -> int:
        """How many batches are made or being made, and not handed out."""
        return 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return []

    @property
    def handles(self) -> list[Any]:
        """The workers' processes: torch's objects, or such that are asked for the same."""
        return [WorkerHandle(pid) for pid in self.pids]

    @property
    def deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        return []

    def spent(self) -> dict[int, StageTimings]:
        """What the workers have spent their time on, by seat, as far as it is noted."""
        return {}

    def begin(self, restart: bool) -> object:
        """An iteration has begun at the cursor. `restart`: other batches come than were ahead."""

    def next(self) -> Any:
        """The batch at the position, which stays there until `delivered`.

        An exception that stands for its batch has been delivered.

        Raises:
            StopIteration: the epoch has none left.
            SampleError: a sample of it could not be loaded, and may not be skipped.
            Exception: whatever a user's dataset raises.
        """
        raise NotImplementedError

    def delivered(self) -> None:
        """The batch of the last `next` is handed out: the position moves behind it."""

    def poll(self) -> None:
        """Take in what the workers have told so far."""

    def restart_prefetch(self) -> None:
        """Go on from the position: it is not where it was."""

    def apply(self, **changes: int | None) -> None:
        """Change what may change while the loader works: fields of `engine.LiveSettings`."""

    def release(self) -> object:
        """Let go, in a forked process, of what is not the backend's own; the caller keeps it."""
        return None

    def close(self) -> None:
        """End the workers. Batches that were handed out stay valid."""


IDLE = Backend()
"""Stands where no backend was built yet, or where its workers have ended."""
