"""Default settings of the workers, and the settings that can change while they run.

Two more are elsewhere: `order.batch_spec.TASK_NS` and `engine.hang_detection.ROW_TIMEOUT_S`.
The module needs neither torch nor a running pool, so commands that describe a loader before it
exists (e.g. `feedline doctor`) use the same values.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from feedline.errors import UsageError
from feedline.order.batch_spec import TASK_NS
from feedline.order.schedule import is_integer
from feedline.system import available_memory_bytes, local_processes, usable_cores
from feedline.throughput.step_model import MAX_WORKERS, MemoryBudget
from feedline.throughput.thresholds import THRESHOLDS

DEFAULT_PREFETCH = 3
"""Batches of rows made ahead. The user holds one; two keep any number of workers busy, because all
workers share each batch."""

DEFAULT_PREFETCH_FACTOR = 2
"""Whole batches that each worker makes ahead, as in torch."""

WORKER_BYTES = 64 << 20
"""Memory of a worker, in bytes. The measured proportional set size of one that decodes and resizes
images is 30 to 60 MB."""


def memory_budget(workers: int, ahead: int, batch_bytes: int) -> MemoryBudget:
    """Memory for more than these running workers, each with whole batches ahead."""
    return MemoryBudget(
        free=int(THRESHOLDS.memory_share * available_memory_bytes()),
        workers=workers,
        ahead=ahead,
        worker_bytes=WORKER_BYTES,
        batch_bytes=batch_bytes,
    )


def slots_for(prefetch: int) -> int:
    """Number of slots for batches of rows: those made ahead, and one being read."""
    return prefetch + 1


def auto_workers(
    cores: int | None = None, *, available_bytes: int | None = None, batches_bytes: int = 0
) -> int:
    """Initial number of workers for `num_workers="auto"`.

    One per core up to 5 cores, because the training loop mostly waits. From 6 cores on, one core is
    left to the loop; from 16 on, one more to threads that launch kernels and copy. Fewer, but at
    least one, if half of the memory cannot hold the batches and the workers. GPU memory does not
    matter: it holds two batches for any number of workers. This is a rule of thumb that
    measurements of the training refine (see `throughput.controller`).

    Without `cores`, those of this process are used. The memory is that of this process and of its
    batches, as far as known.
    """
    cores = usable_cores() if cores is None else cores
    most = min(cores - (cores >= 6) - (cores >= 16), MAX_WORKERS)
    if available_bytes is not None:
        most = min(
            most, (int(THRESHOLDS.memory_share * available_bytes) - batches_bytes) // WORKER_BYTES
        )
    return max(1, most)


def worker_count(workers: int | str, batches_bytes: int = 0) -> int:
    """Number of workers for a number or "auto", which leaves some memory to batches."""
    if workers == "auto":
        return auto_workers(available_bytes=own_memory_bytes(), batches_bytes=batches_bytes)
    if not (is_integer(workers) and 0 <= workers <= MAX_WORKERS):
        raise UsageError(
            f'must be "auto" or a whole number from 0 to {MAX_WORKERS}, got {workers!r}',
            argument="num_workers",
        )
    return int(workers)


def own_memory_bytes() -> int | None:
    """Memory available to this process, one of several that train here; None if unknown."""
    try:
        return available_memory_bytes() // local_processes()
    except OSError:
        return None


def default_start_method() -> str:
    """Best start method of this platform: "forkserver" or "spawn"."""
    return "forkserver" if sys.platform == "linux" else "spawn"


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveSettings:
    """Settings of a feed that can change while it runs.

    The maximum number of batches in flight, finished or not: of rows, `prefetch`, at most the
    number of slots, which is the default. Of whole batches, for which slots are added as needed,
    `default_prefetch`, plus the batches that the user may hold.
    """

    workers: int  # 0 if the training process makes batches
    prefetch: int | None = None  # batches of rows in flight
    prefetch_factor: int = DEFAULT_PREFETCH_FACTOR  # whole batches that each worker makes ahead
    min_prefetched_batches: int = 0  # whole batches made ahead by all workers together
    task_ns: int = TASK_NS  # target work of a task of a batch of rows

    @property
    def default_prefetch(self) -> int:
        """Default number of whole batches made ahead."""
        return max(self.prefetch_factor * self.workers, self.min_prefetched_batches)

    def max_in_flight(self, num_slots: int) -> int:
        """Maximum number of batches of rows in flight for a number of slots."""
        return num_slots if self.prefetch is None else min(self.prefetch, num_slots)
