"""Stage timings of a worker, in a page of shared memory that the trainer reads.

Guarantees: fixed memory, one page per worker; the trainer reads without a lock, and is at most one
record behind. A worker that replaces a dead one continues its page.
Relies on: one writer per page.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from feedline.timing.run import OCTAVES, StageTime, TaskTimes

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 8

MAX_STAGES = 30
"""Stages that fit into a page; further ones are counted as the last one, "more"."""

_NAME_WORDS = 6
_SLOWEST = 12
_LATEST = 32
_PER_STAGE = 4

# Positions in a page, in words.
_STAGES, _TASKS, _TASKS_NS, _TIMED, _TIMED_NS, _TIMED_CPU_NS, _PID, _DECODED = range(8)
_SLOW = 8  # pairs: ns, sample
_SIZES = _SLOW + 2 * _SLOWEST  # pairs: samples that took from 2**k ns to less than twice that; ns
_TOTALS = _SIZES + 2 * OCTAVES  # fours: count, ns, longest ns, ns on a core
_NAMES = _TOTALS + _PER_STAGE * MAX_STAGES
_RING = _NAMES + _NAME_WORDS * MAX_STAGES  # pairs: start ns, end ns
_DECODED_PX, _TIMED_QUEUED_NS = range(_RING + 2 * _LATEST, _RING + 2 * _LATEST + 2)
assert _TIMED_QUEUED_NS < PAGE_WORDS


@dataclass(kw_only=True, slots=True)
class StageTimings(TaskTimes):
    """Stage timings of workers."""

    timed_queued_ms: float | None = 0.0
    decoded_px: int = 0  # sum of the shorter sides of the decoded images
    stages: dict[str, StageTime] = field(default_factory=dict)
    """Stages of timed tasks, by name, in order of their first run."""
    slowest: list[tuple[float, int]] = field(default_factory=list)
    """Slowest samples, longest first: milliseconds, number."""
    latest: list[tuple[int, int]] = field(default_factory=list)
    """Latest tasks, oldest first: start and end, in ns on the monotonic clock."""

    def __iadd__(self, other: StageTimings) -> StageTimings:
        self.add_tasks(other)
        self.decoded_px += other.decoded_px
        for name, stage in other.stages.items():
            self.stages.setdefault(name, StageTime(name=name)).add(stage)
        longest: dict[int, float] = {}
        for ms, sample in (*self.slowest, *other.slowest):
            longest[sample] = max(ms, longest.get(sample, 0.0))
        slowest = sorted(((ms, sample) for sample, ms in longest.items()), reverse=True)
        self.slowest = slowest[:_SLOWEST]
        self.latest = sorted((*self.latest, *other.latest))[-_LATEST:]
        return self


def sum_timings(timings: Iterable[StageTimings]) -> StageTimings:
    """Sum of the timings of several workers."""
    total = StageTimings()
    for each in timings:
        total += each
    return total


def merge_timings(
    first: dict[int, StageTimings], second: dict[int, StageTimings]
) -> dict[int, StageTimings]:
    """Add the timings of both, by worker id."""
    return {
        worker: sum_timings(each[worker] for each in (first, second) if worker in each)
        for worker in sorted({*first, *second})
    }


class StagePage:
    """Worker's side of its page: memory of shape (PAGE_WORDS,), int64, initially zero."""

    def __init__(self, memory: NDArray[np.int64]) -> None:
        self.memory = memory
        self._words = memory.data  # indexing it is twice as fast as an array
        self.sample_ns = 1 << 62
        """Running mean of the durations of samples; before the first one a large value."""
        self.own_sample_ns = 1 << 62
        """Mean duration of a sample in the latest timed task, without waiting for a core."""
        self.timed_samples = 0
        self._counted_samples = 0
        self.slow_ns = min(memory[_SLOW : _SLOW + 2 * _SLOWEST : 2].tolist())
        self._places = {name: _place(k) for k, name in enumerate(_names(memory))}
        self._words[_PID] = os.getpid()

    @property
    def tasks(self) -> int:
        """Number of finished tasks."""
        return self._words[_TASKS]

    @property
    def tasks_ns(self) -> int:
        """Total time of the finished tasks."""
        return self._words[_TASKS_NS]

    def task(self, begun_ns: int, done_ns: int) -> None:
        """Record a finished task."""
        words = self._words
        place = _RING + 2 * (words[_TASKS] % _LATEST)
        words[place], words[place + 1] = begun_ns, done_ns
        words[_TASKS] += 1
        words[_TASKS_NS] += done_ns - begun_ns

    def note(self, stage: str, ns: int, cpu_ns: int = 0) -> None:
        """Record a run of a stage, with its CPU time. Its name is cut to 48 bytes."""
        place = self._places.get(stage)
        if place is None:
            place = self._new(stage)
        words = self._words
        words[place] += 1
        words[place + 1] += ns
        if ns > words[place + 2]:
            words[place + 2] = ns
        words[place + 3] += cpu_ns

    def note_decoded(self, short_px: int) -> None:
        """Record a decoded image with its shorter side."""
        words = self._words
        words[_DECODED] += 1
        words[_DECODED_PX] += short_px

    def sample(self, ns: int) -> None:
        """Record a sample of a timed task."""
        mean_ns = self.sample_ns
        self.sample_ns = ns if mean_ns == 1 << 62 else mean_ns + (ns - mean_ns) // 16
        self.timed_samples += 1
        words = self._words
        place = _SIZES + 2 * min(ns.bit_length() - 1 if ns > 0 else 0, OCTAVES - 1)
        words[place] += 1
        words[place + 1] += ns

    def add_task_time(self, ns: int, cpu_ns: int, queued_ns: int | None = None) -> None:
        """Record a timed task: total time, CPU time, time without a core (None: unknown)."""
        words = self._words
        if samples := self.timed_samples - self._counted_samples:
            self.own_sample_ns = (ns - (queued_ns or 0)) // samples
            self._counted_samples = self.timed_samples
        words[_TIMED] += 1
        words[_TIMED_NS] += ns
        words[_TIMED_CPU_NS] += cpu_ns
        if queued_ns is None or words[_TIMED_QUEUED_NS] < 0:
            words[_TIMED_QUEUED_NS] = -1
        else:
            words[_TIMED_QUEUED_NS] += queued_ns

    def keep(self, number: int, ns: int) -> None:
        """Record a sample slower than `slow_ns`, which may be among the slowest."""
        words, places = self._words, range(_SLOW, _SLOW + 2 * _SLOWEST, 2)
        same = [place for place in places if words[place] and words[place + 1] == number]
        place = same[0] if same else min(places, key=words.__getitem__)
        if ns > words[place]:
            words[place + 1], words[place] = number, ns
        self.slow_ns = min(words[place] for place in places)

    def _new(self, stage: str) -> int:
        known = len(self._places)
        if known >= MAX_STAGES - 1:
            stage = "more"
        if stage not in self._places:
            name = stage.encode()[: 8 * _NAME_WORDS]
            begin = 8 * (_NAMES + _NAME_WORDS * known)
            names = self.memory.view(np.uint8)
            names[begin : begin + len(name)] = np.frombuffer(name, np.uint8)
            self._words[_STAGES] = known + 1  # last, so that a reader sees complete names only
            self._places[stage] = _place(known)
        return self._places[stage]


def read_page(memory: NDArray[np.int64]) -> StageTimings:
    """Read a page in the trainer, (PAGE_WORDS,) int64."""
    page = memory.copy()
    words: list[int] = page.tolist()
    stages: dict[str, StageTime] = {}
    for k, name in enumerate(_names(page)):
        count, *ns = words[_place(k) : _place(k) + _PER_STAGE]
        total_ms, longest_ms, cpu_ms = (each / 1e6 for each in ns)
        stage = StageTime(
            name=name, count=count, total_ms=total_ms, longest_ms=longest_ms, cpu_ms=cpu_ms
        )
        stages.setdefault(name, StageTime(name=name)).add(stage)  # long names may be cut to one
    queued_ns = words[_TIMED_QUEUED_NS]
    sizes = _pairs(words, _SIZES, OCTAVES)
    return StageTimings(
        tasks=words[_TASKS],
        tasks_ms=words[_TASKS_NS] / 1e6,
        timed=words[_TIMED],
        timed_ms=words[_TIMED_NS] / 1e6,
        timed_cpu_ms=words[_TIMED_CPU_NS] / 1e6,
        timed_queued_ms=queued_ns / 1e6 if queued_ns >= 0 else None,
        decoded=words[_DECODED],
        decoded_px=words[_DECODED_PX],
        stages=stages,
        sample_sizes={k: (count, ns / 1e6) for k, (count, ns) in enumerate(sizes) if count},
        slowest=sorted(
            ((ns / 1e6, sample) for ns, sample in _pairs(words, _SLOW, _SLOWEST) if ns),
            reverse=True,
        ),
        # An entry that is being written may have the end of another task.
        latest=sorted(pair for pair in _pairs(words, _RING, _LATEST) if 0 < pair[0] <= pair[1]),
    )


def worker_pids(pages: NDArray[np.int64]) -> list[int]:
    """Process ids of current and former writers of pages, (workers, PAGE_WORDS) int64."""
    return [pid for pid in pages[:, _PID].tolist() if pid]


def read_pages(pages: NDArray[np.int64]) -> dict[int, StageTimings]:
    """Read the pages that contain tasks, (workers, PAGE_WORDS) int64, by worker id."""
    return {int(worker): read_page(pages[worker]) for worker in np.flatnonzero(pages[:, _TASKS])}


def _place(k: int) -> int:
    return _TOTALS + _PER_STAGE * k


def _pairs(words: list[int], begin: int, count: int) -> list[tuple[int, int]]:
    return list(zip(words[begin : begin + 2 * count : 2], words[begin + 1 :: 2], strict=False))


def _names(words: NDArray[np.int64]) -> list[str]:
    """Stage names of a page, in their order."""
    known = min(max(0, int(words[_STAGES])), MAX_STAGES)
    names = words[_NAMES : _NAMES + _NAME_WORDS * known].view(np.uint8).reshape(-1, 8 * _NAME_WORDS)
    return [bytes(name).rstrip(b"\0").decode(errors="replace") for name in names]
