"""Default numbers of workers, batches ahead and slots.

Needs no torch: commands that describe a loader before it exists use the same numbers.
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
"""Whole batches that each worker makes ahead, as in torch."""


def auto_workers(
    cores: int | None = None, *, available_bytes: int | None = None, batches_bytes: int = 0
) -> int:
    """Initial number of workers for `num_workers="auto"`.

    One per core up to 5 cores, because the training loop mostly waits. From 6 cores on, one core is
    left to the loop; from 16 on, one more to threads that launch kernels and copy. Fewer, but at
    least one, if half of the memory cannot hold the batches and the workers. GPU memory does not
    matter: it holds two batches for any number of workers. This is a rule of thumb that
    measurements of the training refine (see `control`).

    Args:
        cores: cores this process may use; None reads them from the machine.
        available_bytes: memory available to this process; None if unknown.
        batches_bytes: memory of the batches, as far as known.
    """
    cores = usable_cores() if cores is None else cores
    most = min(cores - (cores >= 6) - (cores >= 16), MAX_SEATS)
    if available_bytes is not None:
        fitting = (int(_MEMORY * available_bytes) - batches_bytes) // WORKER_BYTES
        most = min(most, fitting)
    return max(1, most)


def own_memory_bytes() -> int | None:
    """Memory available to this process, one of several that train here; None if unknown."""
    try:
        return available_memory_bytes() // local_processes()
    except OSError:
        return None


def slots_for(prefetch: int) -> int:
    """Number of slots for batches of rows: those made ahead, and one being read."""
    return prefetch + 1
