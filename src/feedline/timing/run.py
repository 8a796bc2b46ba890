"""Data of a run: its loaders, the time of its steps, and the work of its processes.

Guarantees: bounded in size, however long a run is; `None` is a value that was not measured, never
0. All times count from the run's start, on one clock that all processes of a machine share.
Everything that is reported of a run, in a terminal, on a page or as JSON, follows from this alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

import numpy as np
from msgspec import Meta

from feedline.machine import Machine

_N = TypeVar("_N", int, float)

RUN_VERSION = 1
"""Version of the format of a run file."""

OCTAVES = 40
"""Octaves of the durations of samples, up to 18 minutes."""

_PER_OCTAVE = 8  # of a histogram: the upper edge of a bin is 9% above its lower one
_MIN_MS = 2.0**-10  # about a microsecond: all shorter durations share the first bin
_BINS = 32 * _PER_OCTAVE  # up to 70 minutes: all longer durations share the last one
_FEW = 16

_ENGINES = {
    "": "",
    "image rows": "image-row engine",
    "samples": "sample engine",
    "tensors": "tensor engine",
    "iterable": "torch's engine",
}

_Octave = Annotated[int, Meta(ge=0, lt=OCTAVES)]
_Count = Annotated[int, Meta(ge=0)]
_Ms = Annotated[float, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
_Bin = Annotated[int, Meta(ge=0, lt=_BINS)]


def sum_or_none(a: _N | None, b: _N | None) -> _N | None:
    """Sum; None if a part is unknown."""
    return None if a is None or b is None else a + b


def sum_known(a: _N | None, b: _N | None) -> _N | None:
    """Sum of the known parts; None if there is none."""
    return a if b is None else b if a is None else a + b


@dataclass(slots=True)
class Histogram:
    """Durations in milliseconds, in logarithmic bins: bin k begins at 2**(k / 8 - 10) ms.

    Memory is constant; a quantile is within 5% of the true one, and never beyond the longest
    duration.
    """

    count: _Count = 0
    total_ms: _Ms = 0.0
    longest_ms: _Ms = 0.0
    bins: dict[_Bin, _Count] = field(default_factory=dict)  # those that are not empty

    def add(self, ms: float) -> None:
        """Add one duration."""
        self.count += 1
        self.total_ms += ms
        if ms > self.longest_ms:
            self.longest_ms = ms
        k = 0
        if ms > _MIN_MS:
            k = min(_BINS - 1, int(math.log2(ms / _MIN_MS) * _PER_OCTAVE))
        self.bins[k] = self.bins.get(k, 0) + 1

    def add_all(self, times_ms: list[float]) -> None:
        """Add many durations, in a fraction of the time that `add` takes."""
        if len(times_ms) < _FEW:
            for ms in times_ms:
                self.add(ms)
            return
        times = np.array(times_ms)
        bins = (np.log2(np.maximum(times / _MIN_MS, 1.0)) * _PER_OCTAVE).astype(np.int64)
        numbers, counts = np.unique(np.minimum(bins, _BINS - 1), return_counts=True)
        self += Histogram(
            len(times_ms),
            float(times.sum()),
            float(times.max()),
            dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
        )

    def __iadd__(self, other: Histogram) -> Histogram:
        self.count += other.count
        self.total_ms += other.total_ms
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        for k, n in other.bins.items():
            self.bins[k] = self.bins.get(k, 0) + n
        return self

    @property
    def mean_ms(self) -> float | None:
        """Mean; None if it is empty."""
        return self.total_ms / self.count if self.count else None

    def times(self) -> list[tuple[float, int]]:
        """Geometric middle of each bin in ms, shortest first, with its count."""
        return [
            (min(2.0 ** ((k + 0.5) / _PER_OCTAVE) * _MIN_MS if k else 0.0, self.longest_ms), count)
            for k, count in sorted(self.bins.items())
        ]

    def quantile(self, q: float) -> float | None:
        """Duration that a share `q` of all, 0 to 1, does not exceed; None if it is empty.

        It is the geometric middle of the bin in which the share ends.
        """
        remaining = q * self.count
        for ms, count in self.times():
            remaining -= count
            if remaining <= 0:
                return ms
        return self.longest_ms if self.count else None


@dataclass(kw_only=True, slots=True)
class Process:
    """Activity of one process during the run, from the kernel's counters.

    Args:
        role: "trainer" or "worker".
        pid: process id.
        seconds: observed time.
        cpu_s: CPU time, all threads.
        queued_s: time ready to run without a free core; None if the kernel does not report it.
        read_bytes: read from a disk; None if the kernel does not report it.
        major_faults: pages read from a disk.
        called_bytes: read by calls, from files and pipes of any kind.
    """

    role: Literal["trainer", "worker"]
    pid: int
    seconds: float
    cpu_s: float
    queued_s: float | None = None
    read_bytes: int | None = None
    major_faults: int | None = None
    called_bytes: int | None = None


@dataclass(kw_only=True, slots=True)
class ResourceUse:
    """Use of the machine by the run.

    Args:
        processes: the trainer, and the longest-lived workers, at most 64.
        worker_starts: number of observed worker processes.
        worker_deaths: number of workers that died and were replaced.
        throttled_s: time for which the CPU quota throttled processes; None without a quota.
        storage_stall_s: time for which any process of the machine waited for storage; None if the
            kernel does not report it.
        other_cores: mean number of cores that other processes than trainer and workers used; None
            if not measured.
        gpu_busy: share of the time, 0 to 1, that the device was busy, by its own counter.
        threads: number of threads that torch computes with, in the trainer.
        worker_threads: number of threads of the busiest worker.
        shared_memory_bytes: size of /dev/shm; None without it.
        cacheable_bytes: memory available for cached files.
        dataset_bytes: of all samples, estimated from some; None if they are not files.
    """

    processes: list[Process] = field(default_factory=list)
    worker_starts: int = 0
    worker_deaths: int = 0
    throttled_s: float | None = None
    storage_stall_s: float | None = None
    other_cores: float | None = None
    gpu_busy: float | None = None
    threads: int | None = None
    worker_threads: int | None = None
    shared_memory_bytes: int | None = None
    cacheable_bytes: int | None = None
    dataset_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """Description of a loader: its type and its settings, as far as they are known.

    Args:
        kind: "feedline", "torch" for torch's DataLoader and its subclasses, or "other".
        name: its class, with the module.
        dataset: class of the dataset.
        samples: number of samples.
        workers: number of worker processes; 0 for none.
        prefetch_factor: batches ahead per worker.
        persistent_workers: True if workers are kept between epochs.
        pin_memory: True if batches are in pinned memory.
        batch_size: requested batch size.
        start_method: "fork", "spawn" or "forkserver".
        collate: name of the collate function, "" for torch's default.
        made_by: feedline's engine; "" for other loaders.
        fused: fused steps of a compiled pipeline.
        copies: path of the cache that is read instead of the originals, "" for none.
        because: reasons why feedline does not make more of the batches itself.
        uncompiled: True if the transform of a folder of images runs unfused.
        accepts: the arguments among "cache" and "device" that the loader accepts; None for other
            loaders.
    """

    kind: Literal["feedline", "torch", "other"]
    name: str
    dataset: str = ""
    samples: int | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    batch_size: int | None = None
    start_method: str = ""
    collate: str = ""
    made_by: str = ""
    fused: str = ""
    copies: str = ""
    because: str = ""
    uncompiled: bool = False
    accepts: tuple[str, ...] | None = None

    @property
    def engine(self) -> str:
        """Name of feedline's engine, as in `explain()`; "" for other loaders."""
        return _ENGINES.get(self.made_by, f"{self.made_by} engine")


@dataclass(kw_only=True, slots=True)
class _StepSums:
    """Delivered samples and the steps that computed with them."""

    samples: int | None = 0  # None if they could not be counted
    wait: Histogram = field(default_factory=Histogram)  # workers had not finished the batch
    copy: Histogram | None = None
    """Wait for the copy of a finished batch; None if it was not measured separately."""
    compute: Histogram = field(default_factory=Histogram)  # the rest of each step
    compute_cpu_ms: float | None = None  # part of it in which the training thread was on a core

    def add_steps(self, other: _StepSums) -> None:
        """Add further steps."""
        self.samples = sum_or_none(self.samples, other.samples)
        self.wait += other.wait
        self.compute += other.compute
        self.compute_cpu_ms = sum_known(self.compute_cpu_ms, other.compute_cpu_ms)
        if other.copy is not None:
            self.copy = self.copy or Histogram()
            self.copy += other.copy


@dataclass(kw_only=True, slots=True)
class Pass(_StepSums):
    """One pass over a loader at one image size, or several passes summed up.

    A step begins when its batch is delivered and ends when the next one is: it computes first and
    then waits. No step waits for the first batch of a pass; it counts as the pass's start.
    """

    loader: int  # number in the run, from 0
    epoch: int  # from 0
    image_size: int | None = None  # in pixels; None if the batches are not images of one size
    batch_size: int | None = None  # samples of the largest batch
    passes: int = 1  # that are summed up
    begun_s: float = 0.0  # request of the first batch
    ended_s: float = 0.0  # end of the last step
    start_ms: Histogram = field(default_factory=Histogram)
    """From requesting to receiving the first batch, of each pass that began here."""
    batches: int = 0  # delivered
    bytes: int = 0  # of all their tensors
    float_bytes: int = 0  # of images as floats
    pinned: bool | None = None  # memory of the batches; None if unknown
    first_steps_ms: list[float] = field(default_factory=list)
    """The first steps at this size, in order, at most 8, without their waits."""
    first_steps_cpu_ms: list[float] = field(default_factory=list)
    """Part of these in which the training thread was on a core; empty if not measured."""
    built: int = 0  # number of the loader among all equal ones, from 1; 0: unknown
    wait_cpu_ms: float | None = None
    """Part of the waiting in which the training thread was on a core itself, to take batches over
    or to make them."""
    tasks: int | None = None  # that workers finished meanwhile
    tasks_ms: float | None = None  # their total time
    disk_bytes: int | None = None  # read from a disk meanwhile, by all processes
    ended: str = ""
    """End: "exhausted", "left" (the loop ended early), "raised", "size changed"; "" if it runs."""
    device_clock: bool = False  # timed by the device's own events

    def add(self, later: Pass) -> None:
        """Add a later pass over the same loader."""
        if self.image_size != later.image_size:
            self.image_size = None
        self.ended_s, self.ended = later.ended_s, later.ended
        self.batch_size = max(self.batch_size or 0, later.batch_size or 0) or None
        for name in ("passes", "batches", "bytes", "float_bytes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in ("wait_cpu_ms", "tasks", "tasks_ms", "disk_bytes"):
            setattr(self, name, sum_known(getattr(self, name), getattr(later, name)))
        self.start_ms += later.start_ms
        self.add_steps(later)


@dataclass(kw_only=True, slots=True)
class ThroughputPoint:
    """Interval of the run, for its throughput history."""

    begun_s: _Seconds
    seconds: _Seconds = 0.0
    batches: int = 0  # delivered
    samples: _Count | None = 0  # None if they could not be counted
    wait_ms: _Ms = 0.0  # sum of the data wait
    image_size: int | None = None  # at its end

    def add(self, later: ThroughputPoint) -> None:
        """Add the interval that follows this one."""
        self.seconds = later.begun_s + later.seconds - self.begun_s
        self.batches += later.batches
        self.samples = sum_or_none(self.samples, later.samples)
        self.wait_ms += later.wait_ms
        self.image_size = later.image_size


@dataclass(kw_only=True, slots=True)
class StageTime:
    """One stage of making samples, in the workers' timed tasks.

    Args:
        name: of the stage; a step of a transform begins with "transform: ".
        count: number of times it ran.
        total_ms: total time.
        longest_ms: longest time.
        cpu_ms: part on a core; None if not measured.
    """

    name: str
    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0
    cpu_ms: float | None = 0.0

    def add(self, other: StageTime) -> None:
        """Add runs of the same stage."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        self.cpu_ms = sum_or_none(self.cpu_ms, other.cpu_ms)


@dataclass(kw_only=True, slots=True)
class TaskTimes:
    """Tasks that workers finished. Some are timed stage by stage."""

    tasks: int = 0
    tasks_ms: float = 0.0
    timed: int = 0
    timed_ms: float = 0.0
    timed_cpu_ms: float = 0.0  # part of `timed_ms` on a core
    timed_queued_ms: float | None = None
    """Part of `timed_ms` ready without a free core; None if the kernel does not report it."""
    decoded: int = 0  # images in timed tasks
    sample_sizes: dict[_Octave, tuple[int, float]] = field(default_factory=dict)
    """Samples of timed tasks by duration: for k, the number of samples that took from 2**k ns to
    less than twice that, and their total time in ms."""

    def add_tasks(self, other: TaskTimes) -> None:
        """Add further tasks."""
        if other.timed:
            both = sum_or_none(self.timed_queued_ms, other.timed_queued_ms)
            self.timed_queued_ms = both if self.timed else other.timed_queued_ms
        for name in ("tasks", "tasks_ms", "timed", "timed_ms", "timed_cpu_ms", "decoded"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        sizes = dict(self.sample_sizes)
        for k, (count, ms) in other.sample_sizes.items():
            own_count, own_ms = sizes.get(k, (0, 0.0))
            sizes[k] = own_count + count, own_ms + ms
        self.sample_sizes = sizes


@dataclass(kw_only=True, slots=True)
class SlowSample:
    """Slow sample, with its name: a path if it has one."""

    name: str
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Interval of a lane's activity; its times count from the start of the timeline sample."""

    lane: str  # "worker 0" and so on, or "step"
    stage: str  # "make" of a worker; "wait" or "compute" of a step
    begun_ms: float
    ended_ms: float
    batch: int  # from the start of its pass; -1 if unknown


@dataclass(kw_only=True, slots=True)
class TimelineSample:
    """Sampled steps with the activity of all lanes."""

    why: str  # "latest" or "longest wait"
    begun_s: float
    events: list[Event]  # at most a few thousand


@dataclass(kw_only=True, slots=True)
class RankTimes(_StepSums):
    """Times of one rank over all its passes, to compare ranks of a distributed training.

    Ranks that synchronise gradients have equal steps: a rank with slow input waits for batches
    while the others wait within their computing. A rank that computes slowly spends more of its
    computing on a core than the others, which wait for it.
    """

    rank: int
    host: str
    workers: int | None = None
    queued_s: float | None = None  # for which the trainer was ready without a free core
    tasks: int = 0  # that workers finished
    tasks_ms: float = 0.0


@dataclass(kw_only=True, slots=True)
class Run(TaskTimes):
    """Run of one process, with the tasks of its workers."""

    started: float = 0.0  # seconds since 1970, by the machine's clock
    seconds: float = 0.0  # length of the recording
    rank: int = 0
    world_size: int = 1
    machine: Machine
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the recipe, by name; empty for a custom training loop."""
    loaders: list[Loader] = field(default_factory=list)  # in order of registration
    passes: list[Pass] = field(default_factory=list)
    """In order; the oldest are summed up if there are many."""
    course: list[ThroughputPoint] = field(default_factory=list)
    """Throughput history, at most a few hundred points."""
    stages: list[StageTime] = field(default_factory=list)  # of workers, most expensive first
    decoded_px: float | None = None
    """Mean of the shorter sides of decoded images; None if no decoding was recorded."""
    slowest: list[SlowSample] = field(default_factory=list)
    use: ResourceUse = field(default_factory=ResourceUse)
    excerpts: list[TimelineSample] = field(default_factory=list)
    ranks: list[RankTimes] = field(default_factory=list)
    """Times of all known ranks, this one included, by rank; empty in a run of one process."""
    notes: list[str] = field(default_factory=list)  # missing measurements, with reasons


def rank_times(run: Run) -> RankTimes:
    """Sum up the times of a run's process."""
    workers = [loader.workers for loader in run.loaders if loader.workers is not None]
    trainer = [each for each in run.use.processes if each.role == "trainer"]
    times = RankTimes(
        rank=run.rank,
        host=run.machine.host,
        workers=max(workers, default=None),
        queued_s=trainer[0].queued_s if trainer else None,
        tasks=run.tasks,
        tasks_ms=run.tasks_ms,
    )
    for each in run.passes:
        times.add_steps(each)
    return times
