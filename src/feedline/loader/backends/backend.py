"""What makes a loader's batches: what the session asks for, whichever engine answers.

Three backends keep this protocol:
    WorkerBackend     the engine: rows or whole batches by workers
    InProcessBackend  no workers: in this process, when asked
    TorchBackend      torch's own engine, for IterableDataset
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from feedline.plan.batches import Batch

__all__ = ["Backend", "Skipped"]

Skipped: TypeAlias = tuple[str, str]
"""A sample that was left out: its name, and why."""


class Backend(Protocol):
    """Makes batches in the order of a cursor, and moves its position."""

    @property
    def batch(self) -> Batch | None:
        """What was planned for the batch handed out last."""
        ...

    @property
    def skipped(self) -> list[Skipped]:
        """Samples left out so far."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches."""
        ...

    @property
    def workers(self) -> int:
        """How many worker processes there are to be."""
        ...

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        ...

    @property
    def deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        ...

    def begin(self, restart: bool) -> object:
        """An iteration has begun at the cursor. `restart`: other batches come than were ahead."""
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

    def apply(self, **changes: int) -> None:
        """Change what may change while the loader works: fields of `engine.LiveSettings`."""
        ...

    def close(self) -> None:
        """End the workers. Batches that were handed out stay valid."""
        ...
