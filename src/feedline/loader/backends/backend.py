"""Who makes a loader's batches: what the face asks for, whichever engine answers.

Four makers keep this protocol:
    WorkerBackend      the engine: rows or whole batches by workers
    RestartingBackend  a WorkerBackend for any Dataset, started again when the dataset changed
    InProcessBackend   no workers: in this process, when asked
    TorchBackend       torch's own engine, for IterableDataset
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from feedline.plan.batches import Batch
from feedline.trace.split import Timing

__all__ = ["Backend", "Skipped"]

Skipped: TypeAlias = tuple[str, str]
"""A sample that was left out: its name, and why."""


class Backend(Protocol):
    """Makes batches in the order of the loader's way, and moves the way's position."""

    @property
    def batch(self) -> Batch | None:
        """What was planned for the batch handed out last."""
        ...

    @property
    def skipped(self) -> list[Skipped]:
        """Samples left out so far."""
        ...

    @property
    def max_image_size(self) -> int | None:
        """The largest image size in pixels that there is memory for; None for any."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches."""
        ...

    @property
    def timing(self) -> Timing:
        """Where the time of the steps goes."""
        ...

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        ...

    @property
    def deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        ...

    def begin(self) -> None:
        """An iteration begins."""
        ...

    def next(self) -> Any:
        """Hand out the batch at the position.

        Raises:
            StopIteration: the epoch has none left.
        """
        ...

    def restart_prefetch(self) -> None:
        """Go on from the position: it is not where it was."""
        ...

    def resize(self, workers: int) -> None:
        """Have so many workers."""
        ...

    def close(self) -> None:
        """End the workers. Batches that were handed out stay valid."""
        ...
