"""How many workers, batches ahead and slots there are where no one says otherwise.

Needs no torch: what is told about a loader before there is one reads the same numbers here.
"""

from __future__ import annotations

from feedline.engine.board import MAX_SEATS
from feedline.system import usable_cores

__all__ = ["DEFAULT_PREFETCH", "DEFAULT_PREFETCH_FACTOR", "auto_workers", "slots_for"]

DEFAULT_PREFETCH = 3
"""Batches of rows made ahead. One is with the user; two keep any number of workers busy, because
all workers share each batch."""

DEFAULT_PREFETCH_FACTOR = 2
"""Whole batches that each worker makes ahead, as torch's."""


def auto_workers(cores: int | None = None) -> int:
    """With how many workers `num_workers="auto"` begins.

    One for each core up to 5, where the training loop mostly waits and each core counts. From 6
    cores on, one is left to the loop; from 16 on, one more to the threads that launch and copy.
    That is a rule of thumb: what is seen of the training changes it (see `control`).

    Args:
        cores: that this process may use; None asks the machine.
    """
    cores = usable_cores() if cores is None else cores
    return min(cores - (cores >= 6) - (cores >= 16), MAX_SEATS)


def slots_for(prefetch: int) -> int:
    """How many batches of rows there is memory for: those made ahead, and one to be read."""
    return prefetch + 1
