"""What a worker has spent its time on, in a page of memory that the trainer reads.

Guarantees: fixed memory, a page a worker, whatever is noted; the trainer reads without a lock, and
what it reads is at most one note behind. A worker that takes a dead one's seat goes on adding.
Relies on: one writer a page.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAGE_BYTES", "PAGE_WORDS", "Spent", "Stage", "StagePage", "read_page"]

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 8

MOST_STAGES = 32
"""Stages a page has room for; what comes beyond them is counted as the last one, "more"."""

_NAME_WORDS = 6
_SLOWEST = 12
_LATEST = 32

# Where what lies, in words.
_STAGES, _TASKS, _TASKS_NS, _SAMPLES, _SAMPLES_NS, _LEAST_SLOW_NS = range(6)
_SLOW = 8  # pairs: ns, sample
_TOTALS = _SLOW + 2 * _SLOWEST  # triples: count, ns, longest ns
_NAMES = _TOTALS + 3 * MOST_STAGES
_RING = _NAMES + _NAME_WORDS * MOST_STAGES  # pairs: begun ns, done ns
assert _RING + 2 * _LATEST <= PAGE_WORDS


@dataclass(slots=True)
class Stage:
    """One stage of making samples, in the tasks that were timed.

    Args:
        count: how often it was passed.
        total_ms: how long it took in all.
        longest_ms: at most.
    """

    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0


@dataclass(slots=True)
class Spent:
    """What workers have spent their time on.

    Args:
        tasks: pieces or batches they have made.
        tasks_ms: how long these took.
        samples: samples whose time was taken, 0 where it was not taken one by one.
        samples_ms: how long these took.
        stages: by name, in the order in which they were first passed; a share of the tasks.
        slowest: the slowest samples, longest first: milliseconds, number.
        latest: the latest tasks, oldest first: when each began and was done, in ns on the
            monotonic clock.
    """

    tasks: int = 0
    tasks_ms: float = 0.0
    samples: int = 0
    samples_ms: float = 0.0
    stages: dict[str, Stage] = field(default_factory=dict)
    slowest: list[tuple[float, int]] = field(default_factory=list)
    latest: list[tuple[int, int]] = field(default_factory=list)

    def __iadd__(self, other: Spent) -> Spent:
        self.tasks += other.tasks
        self.tasks_ms += other.tasks_ms
        self.samples += other.samples
        self.samples_ms += other.samples_ms
        for name, stage in other.stages.items():
            own = self.stages.setdefault(name, Stage())
            own.count += stage.count
            own.total_ms += stage.total_ms
            own.longest_ms = max(own.longest_ms, stage.longest_ms)
        longest: dict[int, float] = {}
        for ms, sample in (*self.slowest, *other.slowest):
            longest[sample] = max(ms, longest.get(sample, 0.0))
        slowest = sorted(((ms, sample) for sample, ms in longest.items()), reverse=True)
        self.slowest = slowest[:_SLOWEST]
        self.latest = sorted((*self.latest, *other.latest))
        return self


class StagePage:
    """A worker's side of its page.

    Args:
        memory: of the page, shape (PAGE_WORDS,), int64, zeros at first.
    """

    def __init__(self, memory: NDArray[np.int64]) -> None:
        self._bytes = memory.view(np.uint8)
        self._words = memory.data  # an item of it is twice as quick as an array's
        self._places = {name: _place(k) for k, name in enumerate(_names(memory))}

    def task(self, begun_ns: int, done_ns: int) -> None:
        """A task is done."""
        words = self._words
        place = _RING + 2 * (words[_TASKS] % _LATEST)
        words[place], words[place + 1] = begun_ns, done_ns
        words[_TASKS] += 1
        words[_TASKS_NS] += done_ns - begun_ns

    def note(self, stage: str, ns: int) -> None:
        """A stage was passed. Its name is cut to 48 bytes."""
        place = self._places.get(stage)
        if place is None:
            place = self._new(stage)
        words = self._words
        words[place] += 1
        words[place + 1] += ns
        if ns > words[place + 2]:
            words[place + 2] = ns

    def sample(self, number: int, ns: int) -> None:
        """A sample is made."""
        words = self._words
        words[_SAMPLES] += 1
        words[_SAMPLES_NS] += ns
        if ns > words[_LEAST_SLOW_NS]:
            self._keep(number, ns)

    def _keep(self, number: int, ns: int) -> None:
        words = self._words
        slow = [(words[_SLOW + 2 * k], words[_SLOW + 2 * k + 1]) for k in range(_SLOWEST)]
        same = [k for k, (had, sample) in enumerate(slow) if had and sample == number]
        k = same[0] if same else min(range(_SLOWEST), key=lambda k: slow[k][0])
        if ns > slow[k][0]:
            words[_SLOW + 2 * k + 1], words[_SLOW + 2 * k] = number, ns
            words[_LEAST_SLOW_NS] = min(words[_SLOW + 2 * k] for k in range(_SLOWEST))

    def _new(self, stage: str) -> int:
        known = len(self._places)
        if known >= MOST_STAGES - 1:
            stage = "more"
        if stage not in self._places:
            name = stage.encode()[: 8 * _NAME_WORDS]
            begin = 8 * (_NAMES + _NAME_WORDS * known)
            self._bytes[begin : begin + len(name)] = np.frombuffer(name, np.uint8)
            self._words[_STAGES] = known + 1  # last: a reader sees whole names only
            self._places[stage] = _place(known)
        return self._places[stage]


def read_page(memory: NDArray[np.int64]) -> Spent:
    """The trainer's side: what a page holds now, (PAGE_WORDS,) int64."""
    words = memory.copy()
    stages = {}
    for k, name in enumerate(_names(words)):
        count, total, longest = words[_place(k) : _place(k) + 3].tolist()
        stages[name] = Stage(count, total / 1e6, longest / 1e6)
    slow = words[_SLOW : _SLOW + 2 * _SLOWEST].reshape(-1, 2).tolist()
    ring = words[_RING : _RING + 2 * _LATEST].reshape(-1, 2).tolist()
    return Spent(
        tasks=int(words[_TASKS]),
        tasks_ms=int(words[_TASKS_NS]) / 1e6,
        samples=int(words[_SAMPLES]),
        samples_ms=int(words[_SAMPLES_NS]) / 1e6,
        stages=stages,
        slowest=sorted(((ns / 1e6, sample) for ns, sample in slow if ns), reverse=True),
        latest=sorted((begun, done) for begun, done in ring if begun),
    )


def _place(k: int) -> int:
    return _TOTALS + 3 * k


def _names(words: NDArray[np.int64]) -> list[str]:
    """Stage names of a page, in the order in which they came."""
    known = min(max(0, int(words[_STAGES])), MOST_STAGES)
    names = words[_NAMES : _NAMES + _NAME_WORDS * known].view(np.uint8).reshape(-1, 8 * _NAME_WORDS)
    return [bytes(name).rstrip(b"\0").decode(errors="replace") for name in names]
