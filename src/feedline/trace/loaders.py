"""The loaders of a run, and what their workers have spent.

Guarantees: memory is bounded, however many loaders come: one that is like an earlier one counts as
that one, and from the 65th on all count as the last. What workers have spent stays known when they
and their loader are gone; nothing here keeps a loader alive, if its `Workers` do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from feedline.trace.run import Loader, SlowSample
from feedline.trace.stage_page import Spent

__all__ = ["Loaders", "Workers"]

_MOST = 64
_SLOWEST = 20


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """How a loader's workers are seen.

    Args:
        pids: their process ids now.
        spent: what each has spent its time on, by seat; empty where it was not measured.
        name: what a sample is called, by its number.
        deaths: how many have died and were replaced.
    """

    pids: Callable[[], list[int]] = list
    spent: Callable[[], dict[int, Spent]] = dict
    name: Callable[[int], str] = str
    deaths: Callable[[], int] = int


@dataclass(slots=True)
class _Loader:
    said: Loader
    workers: list[Workers] = field(default_factory=list)
    passes: int = 0
    built: int = 0


class Loaders:
    """All loaders of a run, by their numbers."""

    def __init__(self) -> None:
        self._loaders: list[_Loader] = []
        self._spent = Spent()  # by workers that are gone
        self._slowest: list[SlowSample] = []
        self._deaths = 0

    def come(self, said: Loader, workers: Workers) -> int:
        """A loader comes; its number among the run's."""
        alike = [k for k, known in enumerate(self._loaders) if known.said == said]
        if not alike and len(self._loaders) < _MOST:
            self._loaders.append(_Loader(said))
        number = alike[0] if alike else len(self._loaders) - 1
        known = self._loaders[number]
        if not any(each is workers for each in known.workers):
            known.workers.append(workers)
            known.built += 1
        return number

    def take(self, number: int, workers: Workers) -> bool:
        """Take workers from a loader, which is another one from now on; whether it had them."""
        known = self._loaders[number]
        had = len(known.workers)
        known.workers = [each for each in known.workers if each is not workers]
        return len(known.workers) < had

    def leave(self, number: int, workers: Workers) -> None:
        """A loader is gone; its workers can be seen for the last time."""
        if self.take(number, workers):
            own = _sum(workers)
            self._spent += own
            self._slowest = _slowest([*self._slowest, *_named(own, workers)])
            self._deaths += workers.deaths()

    def next_epoch(self, number: int) -> int:
        """Count a pass over a loader; how many there were before it."""
        known = self._loaders[number]
        known.passes += 1
        return known.passes - 1

    def built(self, number: int) -> int:
        """How many have come that count as this loader."""
        return self._loaders[number].built

    def tasks(self) -> tuple[int, float]:
        """How many tasks all workers have made, and how long these took in ms."""
        spents = [self._spent]
        for workers in self._at_work():
            spents += workers.spent().values()
        return sum(each.tasks for each in spents), sum(each.tasks_ms for each in spents)

    def said(self) -> list[Loader]:
        """What is said of each."""
        return [each.said for each in self._loaders]

    def pids(self, number: int) -> list[int]:
        """The workers of a loader now, each once."""
        seen = (pid for workers in self._loaders[number].workers for pid in workers.pids())
        return list(dict.fromkeys(seen))

    def latest_tasks(self, number: int) -> dict[int, list[tuple[int, int]]]:
        """The latest tasks of a loader's workers, by seat; see `stage_page.Spent.latest`."""
        if not self._loaders:
            return {}
        workers = self._loaders[number].workers
        return {seat: spent.latest for each in workers for seat, spent in each.spent().items()}

    def deaths(self) -> int:
        """Workers that died and were replaced."""
        return self._deaths + sum(workers.deaths() for workers in self._at_work())

    def spent(self) -> tuple[Spent, list[SlowSample]]:
        """What all workers have spent, and the slowest samples by their names."""
        total = Spent()
        total += self._spent
        slowest = list(self._slowest)
        for workers in self._at_work():
            own = _sum(workers)
            slowest += _named(own, workers)
            total += own
        return total, _slowest(slowest)

    def _at_work(self) -> list[Workers]:
        return [workers for each in self._loaders for workers in each.workers]


def _sum(workers: Workers) -> Spent:
    own = Spent()
    for spent in workers.spent().values():
        own += spent
    return own


def _named(spent: Spent, workers: Workers) -> list[SlowSample]:
    # A path may hold bytes that are no text, which no file of a run could hold: they are spelt.
    return [
        SlowSample(name=workers.name(number).encode("utf-8", "backslashreplace").decode(), ms=ms)
        for ms, number in spent.slowest
    ]


def _slowest(samples: list[SlowSample]) -> list[SlowSample]:
    """The slowest, each once."""
    by_name: dict[str, SlowSample] = {}
    for sample in sorted(samples, key=lambda sample: -sample.ms):
        by_name.setdefault(sample.name, sample)
    return list(by_name.values())[:_SLOWEST]
