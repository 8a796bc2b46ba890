"""Loaders of a run, and the stage timings of their workers.

Guarantees: memory is bounded, however many loaders are registered: one equal to an earlier one
counts as that one, and from the 65th on all count as the last. Timings stay known after the workers
and their loader are gone; nothing here keeps a loader alive, unless its `WorkerObserver` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _RegisteredLoader:
    loader: Loader
    workers: list[WorkerObserver] = field(default_factory=list)
    passes: int = 0
    built: int = 0


class LoaderRegistry:
    """All loaders of a run, by number."""

    def __init__(self) -> None:
        self._loaders: list[_RegisteredLoader] = []
        self._stage_timings = StageTimings()  # by workers that are gone
        self._slowest: list[SlowSample] = []
        self._deaths = 0

    def register(self, loader: Loader, workers: WorkerObserver) -> int:
        """Register a loader. Returns its number in the run."""
        alike = [k for k, known in enumerate(self._loaders) if known.loader == loader]
        if not alike and len(self._loaders) < _MAX_LOADERS:
            self._loaders.append(_RegisteredLoader(loader))
        number = alike[0] if alike else len(self._loaders) - 1
        known = self._loaders[number]
        if not any(each is workers for each in known.workers):
            known.workers.append(workers)
            known.built += 1
        return number

    def detach_workers(self, number: int, workers: WorkerObserver) -> bool:
        """Detach the workers from a loader. Returns True if it had them."""
        known = self._loaders[number]
        before = len(known.workers)
        known.workers = [each for each in known.workers if each is not workers]
        return len(known.workers) < before

    def unregister(self, number: int, workers: WorkerObserver) -> None:
        """Unregister a loader; its workers are observed for the last time."""
        if self.detach_workers(number, workers):
            own = sum_timings(workers.stage_timings().values())
            self._stage_timings += own
            self._slowest = _slowest([*self._slowest, *_name_samples(own, workers)])
            self._deaths += workers.deaths()

    def next_epoch(self, number: int) -> int:
        """Count a pass over a loader. Returns the number of earlier passes."""
        known = self._loaders[number]
        known.passes += 1
        return known.passes - 1

    def built(self, number: int) -> int:
        """Number of loaders that were registered under this number."""
        return self._loaders[number].built

    def tasks(self) -> tuple[int, float]:
        """Number of tasks of all workers, and their total time in ms."""
        all_timings = [self._stage_timings]
        for workers in self._at_work():
            all_timings += workers.stage_timings().values()
        return sum(each.tasks for each in all_timings), sum(each.tasks_ms for each in all_timings)

    def descriptions(self) -> list[Loader]:
        """Descriptions of all loaders, by number."""
        return [each.loader for each in self._loaders]

    def pids(self, number: int) -> list[int]:
        """Current workers of a loader, without duplicates."""
        seen = (pid for workers in self._loaders[number].workers for pid in workers.pids())
        return list(dict.fromkeys(seen))

    def latest_tasks(self, number: int) -> dict[int, list[tuple[int, int]]]:
        """Latest tasks of a loader's workers, by worker id; see `StageTimings.latest`."""
        if not self._loaders:
            return {}
        workers = self._loaders[number].workers
        return {
            worker: timings.latest
            for each in workers
            for worker, timings in each.stage_timings().items()
        }

    def deaths(self) -> int:
        """Number of workers that died and were replaced."""
        return self._deaths + sum(workers.deaths() for workers in self._at_work())

    def stage_timings(self) -> tuple[StageTimings, list[SlowSample]]:
        """Timings of all workers, and the slowest samples by name."""
        total = sum_timings([self._stage_timings])
        slowest = list(self._slowest)
        for workers in self._at_work():
            own = sum_timings(workers.stage_timings().values())
            slowest += _name_samples(own, workers)
            total += own
        return total, _slowest(slowest)

    def _at_work(self) -> list[WorkerObserver]:
        return [workers for each in self._loaders for workers in each.workers]


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
