"""What a worker has spent its time on, in a page of memory that the trainer reads.

Guarantees: fixed memory, a page a worker, whatever is noted; the trainer reads without a lock, and
what it reads is at most one note behind. A worker that takes a dead one's seat goes on adding.
Relies on: one writer a page.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PAGE_BYTES",
    "PAGE_WORDS",
    "Spent",
    "Stage",
    "StagePage",
    "joined",
    "latest_tasks",
    "read_page",
    "read_pages",
    "worker_pids",
]

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 8

MOST_STAGES = 30
"""Stages a page has room for; what comes beyond them is counted as the last one, "more"."""

_NAME_WORDS = 6
_SLOWEST = 12
_LATEST = 32
OCTAVES = 40  # up to 18 minutes
_PER_STAGE = 4

# Where what lies, in words.
_STAGES, _TASKS, _TASKS_NS, _TIMED, _TIMED_NS, _TIMED_CPU_NS, _PID, _DECODED = range(8)
_SLOW = 8  # pairs: ns, sample
_SIZES = _SLOW + 2 * _SLOWEST  # pairs: how many samples took from 2**k ns to less than twice that
_TOTALS = _SIZES + 2 * OCTAVES  # fours: count, ns, longest ns, ns on a core
_NAMES = _TOTALS + _PER_STAGE * MOST_STAGES
_RING = _NAMES + _NAME_WORDS * MOST_STAGES  # pairs: begun ns, done ns
_DECODED_PX, _TIMED_QUEUED_NS = range(_RING + 2 * _LATEST, _RING + 2 * _LATEST + 2)
assert _TIMED_QUEUED_NS < PAGE_WORDS


@dataclass(slots=True)
class Stage:
    """One stage of making samples, in the tasks that were timed.

    Args:
        count: how often it was passed.
        total_ms: how long it took in all.
        longest_ms: at most.
        cpu_ms: for how long of it the worker was on a core.
    """

    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0
    cpu_ms: float = 0.0


@dataclass(slots=True)
class Spent:
    """What workers have spent their time on.

    Args:
        tasks: pieces or batches they have made.
        tasks_ms: how long these took.
        timed: how many of them were timed stage by stage,
        timed_ms: how long those took,
        timed_cpu_ms: and for how long of it the worker was on a core,
        timed_queued_ms: or ready while no core was free; None where the kernel does not say.
        decoded: images that were decoded in these,
        decoded_px: and the sum of their shorter sides, in pixels.
        stages: of these, by name, in the order in which they were first passed.
        sizes: of these, samples by how long they took: k, how many took from 2**k ns to less than
            twice that, and how long they took together in ms.
        slowest: the slowest samples, longest first: milliseconds, number.
        latest: the latest tasks, oldest first: when each began and was done, in ns on the
            monotonic clock.
    """

    tasks: int = 0
    tasks_ms: float = 0.0
    timed: int = 0
    timed_ms: float = 0.0
    timed_cpu_ms: float = 0.0
    timed_queued_ms: float | None = 0.0
    decoded: int = 0
    decoded_px: int = 0
    stages: dict[str, Stage] = field(default_factory=dict)
    sizes: dict[int, tuple[int, float]] = field(default_factory=dict)
    slowest: list[tuple[float, int]] = field(default_factory=list)
    latest: list[tuple[int, int]] = field(default_factory=list)

    def __iadd__(self, other: Spent) -> Spent:
        self.tasks += other.tasks
        self.tasks_ms += other.tasks_ms
        self.timed += other.timed
        self.timed_ms += other.timed_ms
        self.timed_cpu_ms += other.timed_cpu_ms
        known = self.timed_queued_ms is not None and other.timed_queued_ms is not None
        queued_ms = (self.timed_queued_ms or 0.0) + (other.timed_queued_ms or 0.0)
        self.timed_queued_ms = queued_ms if known else None
        self.decoded += other.decoded
        self.decoded_px += other.decoded_px
        for name, stage in other.stages.items():
            own = self.stages.setdefault(name, Stage())
            own.count += stage.count
            own.total_ms += stage.total_ms
            own.longest_ms = max(own.longest_ms, stage.longest_ms)
            own.cpu_ms += stage.cpu_ms
        for k, (count, ms) in other.sizes.items():
            had, had_ms = self.sizes.get(k, (0, 0.0))
            self.sizes[k] = had + count, had_ms + ms
        longest: dict[int, float] = {}
        for ms, sample in (*self.slowest, *other.slowest):
            longest[sample] = max(ms, longest.get(sample, 0.0))
        slowest = sorted(((ms, sample) for sample, ms in longest.items()), reverse=True)
        self.slowest = slowest[:_SLOWEST]
        self.latest = sorted((*self.latest, *other.latest))[-_LATEST:]
        return self


class StagePage:
    """A worker's side of its page.

    Args:
        memory: of the page, shape (PAGE_WORDS,), int64, zeros at first.
    """

    def __init__(self, memory: NDArray[np.int64]) -> None:
        self._bytes = memory.view(np.uint8)
        self._words = memory.data  # an item of it is twice as quick as an array's
        self.sample_ns = 1 << 62
        """How long samples take that were told of lately; before the first, as if it were long."""
        self.slow_ns = min(memory[_SLOW : _SLOW + 2 * _SLOWEST : 2].tolist())
        self._places = {name: _place(k) for k, name in enumerate(_names(memory))}
        self._words[_PID] = os.getpid()

    @property
    def tasks(self) -> int:
        """How many are done."""
        return self._words[_TASKS]

    @property
    def tasks_ns(self) -> int:
        """How long these took."""
        return self._words[_TASKS_NS]

    def task(self, begun_ns: int, done_ns: int) -> None:
        """A task is done."""
        words = self._words
        place = _RING + 2 * (words[_TASKS] % _LATEST)
        words[place], words[place + 1] = begun_ns, done_ns
        words[_TASKS] += 1
        words[_TASKS_NS] += done_ns - begun_ns

    def note(self, stage: str, ns: int, cpu_ns: int = 0) -> None:
        """A stage was passed, for some time of it on a core. Its name is cut to 48 bytes."""
        place = self._places.get(stage)
        if place is None:
            place = self._new(stage)
        words = self._words
        words[place] += 1
        words[place + 1] += ns
        if ns > words[place + 2]:
            words[place + 2] = ns
        words[place + 3] += cpu_ns

    def decoded(self, short_px: int) -> None:
        """An image of this shorter side was decoded."""
        words = self._words
        words[_DECODED] += 1
        words[_DECODED_PX] += short_px

    def sample(self, ns: int) -> None:
        """A sample of a timed task is made."""
        mean_ns = self.sample_ns
        self.sample_ns = ns if mean_ns == 1 << 62 else mean_ns + (ns - mean_ns) // 16
        words = self._words
        place = _SIZES + 2 * min(ns.bit_length() - 1 if ns > 0 else 0, OCTAVES - 1)
        words[place] += 1
        words[place + 1] += ns

    def timed(self, ns: int, cpu_ns: int, queued_ns: int | None = None) -> None:
        """A task was timed: how long it took, on a core, and in wait for one (None: unknown)."""
        words = self._words
        words[_TIMED] += 1
        words[_TIMED_NS] += ns
        words[_TIMED_CPU_NS] += cpu_ns
        if queued_ns is None or words[_TIMED_QUEUED_NS] < 0:
            words[_TIMED_QUEUED_NS] = -1
        else:
            words[_TIMED_QUEUED_NS] += queued_ns

    def keep(self, number: int, ns: int) -> None:
        """A sample took longer than `slow_ns`: it may be among the slowest."""
        words = self._words
        slow = [(words[_SLOW + 2 * k], words[_SLOW + 2 * k + 1]) for k in range(_SLOWEST)]
        same = [k for k, (had, sample) in enumerate(slow) if had and sample == number]
        k = same[0] if same else min(range(_SLOWEST), key=lambda k: slow[k][0])
        if ns > slow[k][0]:
            words[_SLOW + 2 * k + 1], words[_SLOW + 2 * k] = number, ns
        self.slow_ns = min(words[_SLOW + 2 * k] for k in range(_SLOWEST))

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
    stages: dict[str, Stage] = {}
    for k, name in enumerate(_names(words)):
        count, total, longest, cpu = words[_place(k) : _place(k) + _PER_STAGE].tolist()
        stage = stages.setdefault(name, Stage())  # long names may be cut to the same one
        stage.count += count
        stage.total_ms += total / 1e6
        stage.longest_ms = max(stage.longest_ms, longest / 1e6)
        stage.cpu_ms += cpu / 1e6
    sizes = words[_SIZES : _SIZES + 2 * OCTAVES].reshape(-1, 2).tolist()
    slow = words[_SLOW : _SLOW + 2 * _SLOWEST].reshape(-1, 2).tolist()
    return Spent(
        tasks=int(words[_TASKS]),
        tasks_ms=int(words[_TASKS_NS]) / 1e6,
        timed=int(words[_TIMED]),
        timed_ms=int(words[_TIMED_NS]) / 1e6,
        timed_cpu_ms=int(words[_TIMED_CPU_NS]) / 1e6,
        timed_queued_ms=queued / 1e6 if (queued := int(words[_TIMED_QUEUED_NS])) >= 0 else None,
        decoded=int(words[_DECODED]),
        decoded_px=int(words[_DECODED_PX]),
        stages=stages,
        sizes={k: (count, ns / 1e6) for k, (count, ns) in enumerate(sizes) if count},
        slowest=sorted(((ns / 1e6, sample) for ns, sample in slow if ns), reverse=True),
        latest=latest_tasks(memory),
    )


def latest_tasks(memory: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The latest tasks of a page, oldest first: when each began and was done, in ns."""
    ring = memory[_RING : _RING + 2 * _LATEST].reshape(-1, 2).tolist()
    # One that is being written may have the end of another.
    return sorted((begun, done) for begun, done in ring if 0 < begun <= done)


def worker_pids(pages: NDArray[np.int64]) -> list[int]:
    """Process ids of those who note, or have noted, in pages, (seats, PAGE_WORDS) int64."""
    return [pid for pid in pages[:, _PID].tolist() if pid]


def read_pages(pages: NDArray[np.int64]) -> dict[int, Spent]:
    """What is noted in pages, (seats, PAGE_WORDS) int64, by seat, where anything is."""
    return {int(seat): read_page(pages[seat]) for seat in np.flatnonzero(pages[:, _TASKS])}


def joined(first: dict[int, Spent], second: dict[int, Spent]) -> dict[int, Spent]:
    """The sum of both, by seat."""
    both = {}
    for seat in sorted({*first, *second}):
        both[seat] = Spent()
        for spent in (first.get(seat), second.get(seat)):
            if spent is not None:
                both[seat] += spent
    return both


def _place(k: int) -> int:
    return _TOTALS + _PER_STAGE * k


def _names(words: NDArray[np.int64]) -> list[str]:
    """Stage names of a page, in the order in which they came."""
    known = min(max(0, int(words[_STAGES])), MOST_STAGES)
    names = words[_NAMES : _NAMES + _NAME_WORDS * known].view(np.uint8).reshape(-1, 8 * _NAME_WORDS)
    return [bytes(name).rstrip(b"\0").decode(errors="replace") for name in names]
