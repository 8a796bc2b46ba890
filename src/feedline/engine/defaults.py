"""Default numbers of a loader: workers, batches ahead, memory, time limit.

They need neither torch nor a worker pool: commands that describe a loader before it exists use the
same numbers.
"""

from __future__ import annotations

from feedline.engine.heartbeat import HEARTBEAT_BYTES, MAX_WORKERS
from feedline.system import available_memory_bytes, local_processes, usable_cores

__all__ = [
    "DEFAULT_PREFETCH",
    "DEFAULT_PREFETCH_FACTOR",
    "ROW_TIMEOUT_S",
    "WORKER_BYTES",
    "auto_workers",
    "own_memory_bytes",
    "pool_bytes",
    "slots_for",
]

# The measured proportional set size of a worker that decodes and resizes images is 30 to 60 MB.
WORKER_BYTES = 64 << 20
_MEMORY_SHARE = 0.5  # of the available memory, as for a running pool that grows

DEFAULT_PREFETCH = 3
"""Batches of rows made ahead. The user holds one; two keep any number of workers busy, because all
workers share each batch."""

DEFAULT_PREFETCH_FACTOR = 2
"""Whole batches that each worker makes ahead, as in torch."""

ROW_TIMEOUT_S = 120.0
"""Time on one row after which a worker counts as stuck, in seconds, see `hang_detection`."""


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
    most = min(cores - (cores >= 6) - (cores >= 16), MAX_WORKERS)
    if available_bytes is not None:
        fitting = (int(_MEMORY_SHARE * available_bytes) - batches_bytes) // WORKER_BYTES
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


def pool_bytes(workers: int, slots_bytes: int) -> int:
    """Memory of a worker pool, in bytes; it is not started if less is available."""
    return HEARTBEAT_BYTES + slots_bytes + workers * WORKER_BYTES
