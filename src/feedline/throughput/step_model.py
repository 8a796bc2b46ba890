"""Throughput model: the time of a step, the part that bounds it, and the workers that it needs.

A step cannot be shorter than any of three times: the training process's own work for it (it
computes, and takes the batch over); a worker's work for a batch divided by the number of workers;
and the time on cores that all processes need, divided by the number of cores. Without workers the
first two add up. If batches take unequal time, some are late although there are enough workers on
average: that waiting is added to the first. This is the roofline of a pipeline (Williams et al.,
"Roofline", CACM 2009, applied to stages in place of bandwidths).

If the cores are always busy, a training process that computes on them sometimes waits for one, less
often the more cores there are. So if it is on a core half of the time or more, the first and the
third time, c and k, are combined to (c**p + k**p)**(1/p), with p twice the number of cores: for two
cores this adds 19% if both are equal, 2% if one is twice the other. If it is on a core for less,
and otherwise waits for a device, proportionally less is added. This is fitted to measurements of
`laboratory/` on two cores.

Here is the one definition of "compute-bound" and of "too few workers": reports, `tune`, a dry run,
and the adaptation of a loader all ask here. Limits on workers and batches ahead follow from cores,
memory and the user's settings.

Guarantees: pure; more workers never make a step longer, nor do more cores. Limits allow at least
one worker, and never more than there are worker ids. Workers and batches ahead are budgeted
together: workers x batches ahead x bytes of a batch, plus each worker's own memory, never exceed
the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from feedline.throughput.thresholds import THRESHOLDS

MAX_WORKERS = 512
"""Most workers of a pool: each has a line of the heartbeat table and a page of stage timings."""

Part = Literal["compute", "hand-over", "copy", "workers", "cores"]
"""`compute`: the step itself; `hand-over`: the training process receives a batch; `copy`: of a
batch to the device; `workers`: they make batches, too slowly or unevenly; `cores`: there are enough
workers, but too few cores for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLoad:
    """Needs of a step, in milliseconds."""

    workers: int  # processes that make batches; 0: the training process makes them
    cores: float  # that all may use
    compute_ms: float  # the step's own work, undisturbed
    work_cpu_ms: float  # CPU time to make a batch
    work_blocked_ms: float = 0.0  # blocked time to make a batch
    step_cpu_ms: float = 0.0  # CPU time of the step's own work, all threads
    hand_ms: float = 0.0  # to take a batch over, if the step waits for it
    hand_cpu_ms: float = 0.0  # CPU time of that
    beside_cpu_ms: float = 0.0  # CPU time of workers for a batch outside their tasks
    late_ms: float = 0.0
    """Wait for late batches although there are enough workers on average: the work is uneven, or
    other programs use the cores."""
    copy_ms: float = 0.0  # to copy a batch to the device, if the step waits for it

    @property
    def consume_ms(self) -> float:
        """Time that the training process needs for a step."""
        return self.compute_ms + self.hand_ms + self.copy_ms

    @property
    def produce_ms(self) -> float:
        """Time that the workers need for a batch."""
        return max(self.made_ms, self.cores_ms) if self.workers else self.made_ms

    @property
    def work_ms(self) -> float:
        """Time that one worker needs for a batch if a core is free."""
        return self.work_cpu_ms + self.work_blocked_ms

    @property
    def blocked_share(self) -> float:
        """Share of `work_ms` that is blocked."""
        return self.work_blocked_ms / self.work_ms if self.work_ms > 0 else 0.0

    @property
    def made_ms(self) -> float:
        """Time that the workers need for a batch if each has a core."""
        return self.work_ms / max(1, self.workers)

    @property
    def cores_ms(self) -> float:
        """Time that all processes need of the cores for a step and a batch."""
        cpu = self.work_cpu_ms + self.beside_cpu_ms + self.step_cpu_ms + self.hand_cpu_ms
        return cpu / self.cores

    @property
    def step_ms(self) -> float:
        """Time of the whole step."""
        if self.workers == 0:
            return self.consume_ms + self.produce_ms
        return max(self.made_ms, self.even_ms + self.late_ms)

    @property
    def even_ms(self) -> float:
        """Time of the whole step if a batch is always ready."""
        less, more = sorted((self.consume_ms, self.cores_ms))
        if self.consume_ms <= 0:
            return more
        power = 2 * self.cores
        joint = more * (1 + (less / more) ** power) ** (1 / power)
        on_core = (self.step_cpu_ms + self.hand_cpu_ms) / self.consume_ms
        return more + min(1.0, 2 * on_core) * float(joint - more)

    @property
    def waits(self) -> bool:
        """True if steps wait for batches, by the model."""
        return self.step_ms > (1 + THRESHOLDS.alike) * self.consume_ms

    @property
    def need(self) -> float:
        """Number of workers that are busy all the time if steps never wait."""
        if self.work_ms <= 0:
            return 0.0
        return self.work_ms / self.consume_ms if self.consume_ms > 0 else math.inf

    def scaled(self, *, compute: float = 1.0, work: float = 1.0) -> StepLoad:
        """Return the load with other times of the step's own work, and of all else."""
        counts, own = ("workers", "cores"), ("compute_ms", "step_cpu_ms")
        times = {name: getattr(self, name) for name in self.__slots__ if name not in counts}
        return replace(
            self, **{name: ms * (compute if name in own else work) for name, ms in times.items()}
        )


def with_workers(load: StepLoad, workers: int, shared: float = 0.0) -> StepLoad:
    """Return the same load with another number of workers.

    `shared` is how far the resource that workers wait for (a disk, a server, a lock) serves one at
    a time: 0 if it serves all at once, 1 if waiting grows in proportion to the workers.
    """
    if load.workers == 0 or workers == load.workers:
        return replace(load, workers=workers)
    longer = (workers / load.workers) ** shared
    return replace(
        load,
        workers=workers,
        work_blocked_ms=load.work_blocked_ms * longer,
        # While one worker makes a long batch, each of the others makes batches that hide it.
        late_ms=load.late_ms * load.workers / max(1, workers),
    )


def is_compute_bound(data_wait: float) -> bool:
    """Return True if a step is compute-bound, by the share of its time spent in wait for data."""
    return data_wait < THRESHOLDS.data_wait


def bottleneck(load: StepLoad, *, waits: bool | None = None) -> Part:
    """Return the part that bounds a step: the longest besides computing, if the step waits for it.

    `waits` is True if the step is not compute-bound, as measured; None decides by the model.
    """
    wait_ms = max(0.0, load.step_ms - load.consume_ms)
    # If both are equal, more workers would find no core.
    short_of_cores = load.workers and load.cores_ms >= (1 - THRESHOLDS.alike) * load.made_ms
    on_cores = short_of_cores and load.late_ms < wait_ms / 2
    parts: dict[Part, float] = {
        "hand-over": load.hand_ms,
        "copy": load.copy_ms,
        "cores" if on_cores else "workers": wait_ms,
    }
    waited_ms = sum(parts.values())
    if waits is None:
        whole_ms = load.compute_ms + waited_ms
        waits = whole_ms > 0 and not is_compute_bound(waited_ms / whole_ms)
    return max(parts, key=lambda part: parts[part]) if waits else "compute"


def workers_needed(load: StepLoad, spare: float = 1.0, *, shared: float = 0.0) -> int | None:
    """Return the fewest workers that make batches as fast as steps consume them.

    Cores are not considered: `WorkerLimits.most` and the model do. None if no number up to
    `MAX_WORKERS` suffices. `spare` is a factor on the work of a batch, as batches are uneven; for
    `shared` see `with_workers`.
    """
    if not shared or not load.workers:
        need = spare * load.need / (1 + 1e-9)
        return max(1, math.ceil(need)) if need <= MAX_WORKERS else None
    enough_ms = (1 + 1e-9) * load.consume_ms
    numbers = range(1, MAX_WORKERS + 1)
    times = ((n, spare * with_workers(load, n, shared).made_ms) for n in numbers)
    return next((number for number, ms in times if ms <= enough_ms), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBudget:
    """Memory available in addition to what is in use now."""

    free: int  # bytes
    workers: int  # current number
    ahead: int  # whole batches that each makes ahead; 0 for rows, whose memory stays allocated
    worker_bytes: int  # memory of a worker
    batch_bytes: int  # memory of a whole batch; 0 if unknown, or for batches of rows

    def most_workers(self, ahead: int) -> int:
        """Largest number of workers that fit with this many batches ahead each; 0 if none fits."""
        in_use = self.workers * (self.worker_bytes + self.ahead * self.batch_bytes)
        each = self.worker_bytes + ahead * self.batch_bytes
        return (in_use + max(0, self.free)) // each if each else MAX_WORKERS


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """Resources of a loader."""

    cores: int  # for the training process and its workers
    memory: MemoryBudget | None = None  # None for no limit
    for_each: int = 0
    """Whole batches the user lets each worker make ahead; 0 for batches made of rows, of which
    memory always holds the full number ahead."""

    def most(self, blocked_share: float, ahead: int | None = None) -> int:
        """Maximum number of workers, each with this many batches ahead; None: as many as now.

        One per core if they compute. If they spend most of their work waiting for a disk or a
        server (`blocked_share`, 0 to 1), as many more as leave the cores busy.
        """
        most = max(1, self.cores)
        if blocked_share > THRESHOLDS.mostly_blocked:
            most = int(min(THRESHOLDS.workers_per_core, 1 / max(1e-9, 1 - blocked_share)) * most)
        if self.memory is not None:
            most = min(
                most, self.memory.most_workers(self.memory.ahead if ahead is None else ahead)
            )
        return max(1, min(most, MAX_WORKERS))

    def deepest(self, prefetch: int, blocked_share: float) -> int:
        """Maximum number of whole batches ahead, from the current one.

        It is that of the largest allowed worker pool; see `most`.
        """
        deepest = self.for_each * self.most(blocked_share)
        if self.memory is None or not self.memory.batch_bytes:
            return deepest
        return min(deepest, prefetch + max(0, self.memory.free) // self.memory.batch_bytes)
