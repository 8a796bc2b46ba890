"""How many workers, batches ahead and slots there are where no one says otherwise.

Needs no torch: what is told about a loader before there is one reads the same numbers here.
"""

from __future__ import annotations

from feedline.engine.board import MAX_SEATS
from feedline.system import available_memory_bytes, local_processes, usable_cores

__all__ = [
    "DEFAULT_PREFETCH",
    "DEFAULT_PREFETCH_FACTOR",
    "WORKER_BYTES",
    "auto_workers",
    "own_memory_bytes",
    "slots_for",
]

# Proportional set size of a worker that decodes and resizes images, measured: 30 to 60 MB.
WORKER_BYTES = 64 << 20
_MEMORY = 0.5  # of what is available, as when the crew grows while it works

DEFAULT_PREFETCH = 3
"""Batches of rows made ahead. One is with the user; two keep any number of workers busy, because
all workers share each batch."""

DEFAULT_PREFETCH_FACTOR = 2
"""Whole batches that each worker makes ahead, as torch's."""


def auto_workers(
    cores: int | None = None, *, available_bytes: int | None = None, batches_bytes: int = 0
) -> int:
    """With how many workers `num_workers="auto"` begins.

    One for each core up to 5, where the training loop mostly waits and each core counts. From 6
    cores on, one is left to the loop; from 16 on, one more to the threads that launch and copy.
    They are fewer, but at least one, where half of the memory does not hold the batches and the
    workers. The memory of a GPU has no say: two batches lie there, however many workers there are.
    That is a rule of thumb: what is seen of the training changes it (see `control`).

    Args:
        cores: that this process may use; None asks the machine.
        available_bytes: memory that this process can have; None where that is not known.
        batches_bytes: of batches, as far as it is known.
    """
    cores = usable_cores() if cores is None else cores
    most = min(cores - (cores >= 6) - (cores >= 16), MAX_SEATS)
    if available_bytes is not None:
        fitting = (int(_MEMORY * available_bytes) - batches_bytes) // WORKER_BYTES
        most = min(most, fitting)
    return max(1, most)


def own_memory_bytes() -> int | None:
    """Memory that can be had by this process, one of several that train here; None: not known."""
    try:
        return available_memory_bytes() // local_processes()
    except OSError:
        return None


def slots_for(prefetch: int) -> int:
    """How many batches of rows there is memory for: those made ahead, and one to be read."""
    return prefetch + 1
