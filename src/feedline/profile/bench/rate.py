"""Rate of an endless iterator of batches, in steady state.

Guarantees: batches made ahead are used up before counting starts, and counting ends in the same
phase of the work as it began, so the counted batches were made while they were counted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from feedline.throughput.windows import RateMeter

__all__ = ["Turn", "count", "endless", "family_cpu", "settle_down"]

_PAUSE_S = 0.05
_TICK_S = 0.011  # the CPU time of processes is updated every 10 ms
_LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Images counted in one turn; `cpu_s` is the user and system time of all processes."""

    images: int
    seconds: float
    cpu_s: float

    @property
    def images_per_s(self) -> float:
        """The rate."""
        return self.images / self.seconds


def endless(loader: Iterable[Any]) -> Generator[int, None, None]:
    """Yield the number of images of each batch of a loader, epoch after epoch, as in training."""
    while True:
        for images, _ in loader:
            yield len(images)


def count(
    batches: Iterator[int], *, ahead: int, unit: int, seconds: float, cpu_s: Callable[[], float]
) -> Turn:
    """Count the images of batches.

    Args:
        batches: the numbers of images in them; consumed as fast as they come.
        ahead: number of batches that the loader may have made ahead.
        unit: number of batches that are made, and arrive, together; counted in these units.
        seconds: minimum time.
        cpu_s: CPU time of the processes so far.
    """
    for _ in range(ahead + unit):
        next(batches)
    used_s = cpu_s()
    meter = RateMeter(seconds)
    while meter.add(sum(next(batches) for _ in range(unit))):
        pass
    return Turn(images=meter.count, seconds=meter.seconds, cpu_s=max(0.0, cpu_s() - used_s))


def family_cpu() -> Callable[[], float]:
    """Return a clock of the CPU seconds of this process and all its current descendants."""
    head = psutil.Process()
    family = [head, *head.children(recursive=True)]

    def cpu_s() -> float:
        total = 0.0
        for process in family:
            with contextlib.suppress(psutil.Error):  # it has ended
                times = process.cpu_times()
                total += times.user + times.system
        return total

    return cpu_s


def settle_down() -> None:
    """Wait until all processes of the family are idle, i.e. their prefetch buffers are full."""
    cpu_s = family_cpu()
    deadline = time.monotonic() + _LONGEST_PAUSE_S
    before = cpu_s()
    while time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        now = cpu_s()
        if now - before <= _TICK_S:
            return
        before = now
