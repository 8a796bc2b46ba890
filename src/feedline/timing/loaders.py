"""Loaders of a run, and the stage timings of their workers.

Guarantees: memory is bounded, however many loaders are registered: one equal to an earlier one
counts as that one, and from the 65th on all count as the last. Timings stay known after the workers
and their loader are gone; nothing here keeps a loader alive, unless its `WorkerObserver` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from feedline.timing.run import Loader, SlowSample
from feedline.timing.stage_page import StageTimings, sum_timings

__all__ = ["LoaderRegistry", "WorkerObserver"]

_MAX_LOADERS = 64
_SLOWEST = 20


@dataclass(frozen=True, slots=True, eq=False)
class WorkerObserver:
    """Callbacks that observe a loader's workers.

    Args:
        pids: returns their current process ids.
        stage_timings: returns the stage timings of each, by worker id; empty if not measured.
        name: returns the name of a sample, by its number.
        deaths: returns the number of workers that died and were replaced.
    """

    pids: Callable[[], list[int]] = list
    stage_timings: Callable[[], dict[int, StageTimings]] = dict
    name: Callable[[int], str] = str
    deaths: Callable[[], int] = int


class LoaderRegistry:
    """All loaders of a run, by number."""

    def __init__(self) -> None:
        self.descriptions: list[Loader] = []
        self._workers: list[tuple[int, WorkerObserver]] = []
        self._passes: Counter[int] = Counter()
        self.built: Counter[int] = Counter()
        """Number of loaders that were registered under each number."""
        self._stage_timings = StageTimings()  # by workers that are gone
        self._slowest: list[SlowSample] = []
        self._deaths = 0

    def register(self, loader: Loader, workers: WorkerObserver) -> int:
        """Register a loader. Returns its number in the run."""
        known = self.descriptions
        if loader not in known and len(known) < _MAX_LOADERS:
            known.append(loader)
        number = known.index(loader) if loader in known else len(known) - 1
        if (number, workers) not in self._workers:
            self._workers.append((number, workers))
            self.built[number] += 1
        return number

    def detach_workers(self, number: int, workers: WorkerObserver) -> bool:
        """Detach the workers from a loader. Returns True if it had them."""
        is_known = (number, workers) in self._workers
        if is_known:
            self._workers.remove((number, workers))
        return is_known

    def unregister(self, number: int, workers: WorkerObserver) -> None:
        """Unregister a loader; its workers are observed for the last time."""
        if self.detach_workers(number, workers):
            own = sum_timings(workers.stage_timings().values())
            self._stage_timings += own
            self._slowest = _slowest([*self._slowest, *_name_samples(own, workers)])
            self._deaths += workers.deaths()

    def next_epoch(self, number: int) -> int:
        """Count a pass over a loader. Returns the number of earlier passes."""
        self._passes[number] += 1
        return self._passes[number] - 1

    def tasks(self) -> tuple[int, float]:
        """Number of tasks of all workers, and their total time in ms."""
        all_timings = [self._stage_timings]
        for _, workers in self._workers:
            all_timings += workers.stage_timings().values()
        return sum(each.tasks for each in all_timings), sum(each.tasks_ms for each in all_timings)

    def pids(self, number: int) -> list[int]:
        """Current workers of a loader, without duplicates."""
        return list({pid: None for each in self._of(number) for pid in each.pids()})

    def latest_tasks(self, number: int) -> dict[int, list[tuple[int, int]]]:
        """Latest tasks of a loader's workers, by worker id; see `StageTimings.latest`."""
        return {
            worker: timings.latest
            for each in self._of(number)
            for worker, timings in each.stage_timings().items()
        }

    def deaths(self) -> int:
        """Number of workers that died and were replaced."""
        return self._deaths + sum(workers.deaths() for _, workers in self._workers)

    def stage_timings(self) -> tuple[StageTimings, list[SlowSample]]:
        """Timings of all workers, and the slowest samples by name."""
        total = sum_timings([self._stage_timings])
        slowest = list(self._slowest)
        for _, workers in self._workers:
            own = sum_timings(workers.stage_timings().values())
            slowest += _name_samples(own, workers)
            total += own
        return total, _slowest(slowest)

    def _of(self, number: int) -> list[WorkerObserver]:
        return [workers for known, workers in self._workers if known == number]


def _name_samples(timings: StageTimings, workers: WorkerObserver) -> list[SlowSample]:
    # A path may contain undecodable bytes, which a run file cannot store: they are escaped.
    return [
        SlowSample(name=workers.name(number).encode("utf-8", "backslashreplace").decode(), ms=ms)
        for ms, number in timings.slowest
    ]


def _slowest(samples: list[SlowSample]) -> list[SlowSample]:
    """Slowest samples, without duplicates."""
    by_name: dict[str, SlowSample] = {}
    for sample in sorted(samples, key=lambda sample: -sample.ms):
        by_name.setdefault(sample.name, sample)
    return list(by_name.values())[:_SLOWEST]
