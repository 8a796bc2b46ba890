"""The workers as a set: what the feed asks of them, whatever their start method.

Three crews keep this protocol:
    SocketCrew   fork server, one SEQPACKET socket, memfd: Linux, the default there
    PipeCrew     spawn, a pipe for each worker, named shared memory: everywhere
    InlineCrew   no process at all: num_workers=0

Guarantees, of each: a task, be it a piece or a whole batch, that was submitted comes
back exactly once, in a `Report`, in the `lost` of a `Death`, or from `recall`. A dead worker is
replaced by the crew itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.engine.messages import Report, Task

__all__ = ["UNGUARDED", "Crew", "Death"]

UNGUARDED = (
    "your script builds a loader with workers when it is imported, and workers import it: put "
    'that code under `if __name__ == "__main__":`'
)


@dataclass(frozen=True, slots=True)
class Death:
    """A worker died.

    Args:
        how: what ended it, for a message, e.g. "DataLoader worker (pid 7) is killed by signal:
            SIGKILL".
        lost: ids of the pieces it held, not made.
        piece: the one of them that it was working on; 0 where none is to blame.
        row: the row of that piece that it was on, counted from 0.
    """

    how: str
    lost: tuple[int, ...] = ()
    piece: int = 0
    row: int = 0


class Crew(Protocol):
    """A set of workers that fill pieces in one block of memory."""

    shares_memory: bool
    """Whether workers can be handed memory by its descriptor."""

    @property
    def block(self) -> NDArray[np.uint8]:
        """The shared memory, shape (bytes,); its head is the board."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""

    def resize(self, workers: int) -> None:
        """Grow or shrink to so many workers. Those that leave finish their piece first."""

    def submit(self, task: Task) -> bool:
        """Queue a task; False where there is no room now. Never blocks."""

    def wait(self, timeout_s: float) -> list[Report | Death]:
        """What has happened; blocks until something has, or for `timeout_s` at most."""

    def recall(self) -> list[int]:
        """Take back the pieces that no worker has begun; their ids."""

    def busy(self) -> dict[int, tuple[int, int]]:
        """What the workers hold: seat to (piece, row)."""

    def kill(self, seat: int, why: str) -> None:
        """Kill a worker; its `Death` will say why."""

    def restart(self) -> None:
        """Replace all workers at once and forget all tasks: for a trainer that lost count."""

    def close(self) -> None:
        """End all workers and free all they used. No process is left when this returns."""
