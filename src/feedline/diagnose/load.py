"""A model of throughput: how long a step takes, by what its parts need.

A step cannot be shorter than any of three things: what the training process does for it itself (it
computes, and takes the batch over), what a worker needs for a batch over the number of workers, and
the time on cores that all need together over the number of cores. Without workers the first two
follow each other. Where batches come unevenly, some are late although workers are enough on
average: what steps wait for these comes on top of the first. This is the roofline of a pipeline
(Williams et al., "Roofline", CACM 2009, applied to stages in place of bandwidths).

Where cores have work all the time, a training process that computes on them waits for one now and
then: the less often the more cores there are. So where it is on a core half of the time or more,
the first and the third, c and k, count together as (c**p + k**p)**(1/p), p being twice the cores:
with two cores 19% more where both are equal, 2% where one is twice the other. Where it is on a core
for less, and else waits for a device, as much less is added. This is fitted to what `laboratory/`
measured on two cores.

Guarantees: pure; more workers never make a step longer, nor do more cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["WAITING", "Limit", "Load", "with_workers"]

WAITING = 0.3
"""Of the work: where so much of it is blocked, that may be a lock."""

Limit = Literal["step", "workers", "cores"]
"""What a step is as long as: its own part, its workers' work, or the cores of all."""

_ALIKE = 0.02  # parts that differ by less are alike
_MOSTLY = 0.5  # of what a step waits


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a step needs, in milliseconds.

    Args:
        workers: lanes that make batches; 0: the training process makes them.
        cores: that all may use.
        compute_ms: the step's own work, undisturbed.
        step_cpu_ms: on a core for that, all threads.
        hand_ms: to take a batch over and to copy it, where the step waits for it.
        hand_cpu_ms: of that, on a core.
        work_cpu_ms: on a core to make a batch,
        work_blocked_ms: and waiting for something else meanwhile.
        beside_cpu_ms: what workers spend on a core for a batch beside their tasks.
        late_ms: waiting for batches that are late although workers are enough on average: work is
            uneven, or other programs have the cores.
    """

    workers: int
    cores: float
    compute_ms: float
    step_cpu_ms: float
    hand_ms: float
    hand_cpu_ms: float
    work_cpu_ms: float
    work_blocked_ms: float
    beside_cpu_ms: float
    late_ms: float = 0.0

    @property
    def consume_ms(self) -> float:
        """What the training process needs for a step."""
        return self.compute_ms + self.hand_ms

    @property
    def produce_ms(self) -> float:
        """What the workers need for a batch."""
        return max(self.made_ms, self.cores_ms) if self.workers else self.made_ms

    @property
    def work_ms(self) -> float:
        """What one worker needs for a batch where a core is free."""
        return self.work_cpu_ms + self.work_blocked_ms

    @property
    def blocked_share(self) -> float:
        """Of that, what it waits for something else than a core."""
        return self.work_blocked_ms / self.work_ms if self.work_ms > 0 else 0.0

    @property
    def made_ms(self) -> float:
        """What the workers need for a batch where each has a core."""
        return self.work_ms / max(1, self.workers)

    @property
    def cores_ms(self) -> float:
        """What all processes need of the cores for a step and a batch."""
        cpu = self.work_cpu_ms + self.beside_cpu_ms + self.step_cpu_ms + self.hand_cpu_ms
        return cpu / self.cores

    @property
    def step_ms(self) -> float:
        """The whole step."""
        if self.workers == 0:
            return self.consume_ms + self.produce_ms
        return max(self.made_ms, self.even_ms + self.late_ms)

    @property
    def even_ms(self) -> float:
        """The whole step where a batch lies ready each time."""
        alone = max(self.consume_ms, self.cores_ms)
        joint = _joint(self.consume_ms, self.cores_ms, 2 * self.cores)
        on_core = (
            (self.step_cpu_ms + self.hand_cpu_ms) / self.consume_ms if self.consume_ms else 0.0
        )
        return alone + min(1.0, 2 * on_core) * (joint - alone)

    @property
    def limit(self) -> Limit:
        """What the step is as long as."""
        step_ms = self.step_ms
        if step_ms <= (1 + _ALIKE) * self.consume_ms:
            return "step"
        if self.late_ms >= _MOSTLY * (step_ms - self.consume_ms):
            return "workers"
        # Where both are alike, more workers would find no core.
        short_of_cores = self.workers and self.cores_ms >= (1 - _ALIKE) * self.made_ms
        return "cores" if short_of_cores else "workers"


def with_workers(load: Load, workers: int, shared: float = 0.0) -> Load:
    """The same with another number of workers.

    Args:
        load: with workers.
        workers: then.
        shared: how far what they wait for, a disk, a server or a lock, serves one of them at a
            time: 0 where it serves all at once, 1 where as many more of them wait for as much
            longer.
    """
    if load.workers == 0 or workers == load.workers:
        return replace(load, workers=workers)
    longer = (workers / load.workers) ** shared
    return replace(
        load,
        workers=workers,
        work_blocked_ms=load.work_blocked_ms * longer,
        # While one makes a long batch, each of the others makes batches that hide it.
        late_ms=load.late_ms * load.workers / max(1, workers),
    )


def _joint(one: float, other: float, power: float) -> float:
    """The norm of two figures: the larger one where they differ, more where they are alike."""
    less, more = sorted((one, other))
    return float(more * (1 + (less / more) ** power) ** (1 / power)) if more > 0 else 0.0
