"""Data of a run: its loaders, the time of its steps, and the work of its processes.

Guarantees: bounded in size, however long a run is; `None` is a value that was not measured, never
0. All times count from the run's start, on one clock that all processes of a machine share.
Everything that is reported of a run, in a terminal, on a page or as JSON, follows from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from msgspec import Meta

from feedline.machine import Machine
from feedline.timing.histogram import Histogram

__all__ = [
    "OCTAVES",
    "RUN_VERSION",
    "Event",
    "Loader",
    "Machine",
    "Pass",
    "Process",
    "RankTimes",
    "ResourceUse",
    "Run",
    "SlowSample",
    "StageTime",
    "TaskTimes",
    "ThroughputPoint",
    "TimelineSample",
    "rank_times",
    "sum_known",
    "sum_or_none",
]

_N = TypeVar("_N", int, float)

RUN_VERSION = 1
"""Version of the format of a run file."""

OCTAVES = 40
"""Octaves of the durations of samples, up to 18 minutes."""

Octave = Annotated[int, Meta(ge=0, lt=OCTAVES)]


def sum_or_none(a: _N | None, b: _N | None) -> _N | None:
    """Sum; None if a part is unknown."""
    return None if a is None or b is None else a + b


def sum_known(a: _N | None, b: _N | None) -> _N | None:
    """Sum of the known parts; None if there is none."""
    return a if b is None else b if a is None else a + b


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


@dataclass(kw_only=True, slots=True)
class Pass:
    """One pass over a loader at one image size, or several passes summed up.

    A step begins when its batch is delivered and ends when the next one is: it computes first and
    then waits. No step waits for the first batch of a pass; it counts as the pass's start.

    Args:
        loader: number of the loader in the run, from 0.
        epoch: counted from 0.
        image_size: of the batches, in pixels; None if they are not images of one size.
        batch_size: samples of the largest batch.
        passes: number of passes that are summed up.
        begun_s: time of the request for the first batch.
        ended_s: end of the last step.
        start_ms: from requesting to receiving the first batch, of each pass that began here.
        batches: number of delivered batches.
        samples: number of their samples; None if they could not be counted.
        bytes: of all their tensors.
        float_bytes: of images as floats.
        pinned: True if they were in pinned memory; None if unknown.
        wait: data wait of the steps: workers had not finished the batch.
        copy: wait of the steps for the copy of a finished batch; None if it was not measured
            separately.
        compute: the rest of each step.
        first_steps_ms: the first steps at this size, in order, at most 8, without their waits.
        first_steps_cpu_ms: part of these steps in which the training thread was on a core; empty if
            not measured.
        wait_cpu_ms: part of the waiting in which the training thread was on a core itself, to take
            batches over or to make them; None if not measured.
        compute_cpu_ms: part of the computing in which it was on a core; None if not measured.
        built: number of the loader among all equal ones, from 1; 0: unknown.
        tasks: number of tasks that workers finished meanwhile; None if not measured.
        tasks_ms: total time of these tasks; None if not measured.
        disk_bytes: read from a disk meanwhile, by all processes; None if the kernel does not
            report it.
        ended: "exhausted", "left" (the loop ended early), "raised", or "" while it runs.
        device_clock: True if the device's own events timed it.
    """

    loader: int
    epoch: int
    image_size: int | None = None
    batch_size: int | None = None
    passes: int = 1
    begun_s: float = 0.0
    ended_s: float = 0.0
    start_ms: Histogram = field(default_factory=Histogram)
    batches: int = 0
    samples: int | None = 0
    bytes: int = 0
    float_bytes: int = 0
    pinned: bool | None = None
    wait: Histogram = field(default_factory=Histogram)
    copy: Histogram | None = None
    compute: Histogram = field(default_factory=Histogram)
    first_steps_ms: list[float] = field(default_factory=list)
    first_steps_cpu_ms: list[float] = field(default_factory=list)
    built: int = 0
    wait_cpu_ms: float | None = None
    compute_cpu_ms: float | None = None
    tasks: int | None = None
    tasks_ms: float | None = None
    disk_bytes: int | None = None
    ended: str = ""
    device_clock: bool = False

    def add(self, later: Pass) -> None:
        """Add a later pass over the same loader."""
        if self.image_size != later.image_size:
            self.image_size = None
        self.ended_s, self.ended = later.ended_s, later.ended
        self.batch_size = max(self.batch_size or 0, later.batch_size or 0) or None
        self.samples = sum_or_none(self.samples, later.samples)
        for name in ("passes", "batches", "bytes", "float_bytes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in ("wait_cpu_ms", "compute_cpu_ms", "tasks", "tasks_ms", "disk_bytes"):
            setattr(self, name, sum_known(getattr(self, name), getattr(later, name)))
        self.start_ms += later.start_ms
        self.wait += later.wait
        self.compute += later.compute
        if later.copy is not None:
            self.copy = self.copy or Histogram()
            self.copy += later.copy


@dataclass(kw_only=True, slots=True)
class ThroughputPoint:
    """Interval of the run, for its throughput history.

    Args:
        begun_s: start.
        seconds: length.
        batches: number of delivered batches.
        samples: number of their samples; None if they could not be counted.
        wait_ms: sum of the data wait.
        image_size: at its end.
    """

    begun_s: float
    seconds: float = 0.0
    batches: int = 0
    samples: int | None = 0
    wait_ms: float = 0.0
    image_size: int | None = None

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
    """Tasks of workers.

    Args:
        tasks: number of tasks that workers finished.
        tasks_ms: total time of these tasks.
        timed: number of tasks that were timed stage by stage.
        timed_ms: total time of these.
        timed_cpu_ms: part of `timed_ms` on a core.
        timed_queued_ms: part of `timed_ms` ready without a free core; None if the kernel does not
            report it.
        decoded: number of images decoded in timed tasks.
        sample_sizes: samples of timed tasks by duration: for k, the number of samples that took
            from 2**k ns to less than twice that, and their total time in ms.
    """

    tasks: int = 0
    tasks_ms: float = 0.0
    timed: int = 0
    timed_ms: float = 0.0
    timed_cpu_ms: float = 0.0
    timed_queued_ms: float | None = None
    decoded: int = 0
    sample_sizes: dict[Octave, tuple[int, float]] = field(default_factory=dict)

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
    """Interval of a lane's activity.

    Args:
        lane: "worker 0" and so on, or "step".
        stage: "make" of a worker; "wait" or "compute" of a step.
        begun_ms: start, from the sample's start.
        ended_ms: end, from the sample's start.
        batch: counted from the start of its pass; -1 if unknown.
    """

    lane: str
    stage: str
    begun_ms: float
    ended_ms: float
    batch: int


@dataclass(kw_only=True, slots=True)
class TimelineSample:
    """Sampled steps with the activity of all lanes.

    Args:
        why: "latest" or "longest wait".
        begun_s: start.
        events: at most a few thousand.
    """

    why: str
    begun_s: float
    events: list[Event]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """Times of one rank over all its passes, to compare ranks of a distributed training.

    Ranks that synchronise gradients have equal steps: a rank with slow input waits for batches
    while the others wait within their computing. A rank that computes slowly spends more of its
    computing on a core than the others, which wait for it.

    Args:
        rank: of the process.
        host: host name of its machine.
        workers: number of worker processes; None if unknown.
        samples: number of delivered samples; None if they could not be counted.
        wait: data wait of the steps.
        copy: wait of the steps for the copy of a finished batch; None if it was not measured
            separately.
        compute: the rest of each step.
        compute_cpu_ms: part of `compute` on a core of the training thread; None if not measured.
        queued_s: time that the trainer was ready without a free core; None if unknown.
        tasks: number of tasks that workers finished.
        tasks_ms: total time of these tasks.
    """

    rank: int
    host: str
    workers: int | None = None
    samples: int | None = None
    wait: Histogram = field(default_factory=Histogram)
    copy: Histogram | None = None
    compute: Histogram = field(default_factory=Histogram)
    compute_cpu_ms: float | None = None
    queued_s: float | None = None
    tasks: int = 0
    tasks_ms: float = 0.0


@dataclass(kw_only=True, slots=True)
class Run(TaskTimes):
    """Run of one process, with the tasks of its workers.

    Args:
        started: seconds since 1970, by the machine's clock.
        seconds: length of the recording.
        rank: of the process.
        world_size: number of processes.
        machine: machine of the run.
        settings: of the recipe, by name; empty for a custom training loop.
        loaders: in order of registration.
        passes: in order; the oldest are summed up if there are many.
        course: throughput history, at most a few hundred points.
        stages: of the workers, most expensive first.
        decoded_px: mean of the shorter sides of decoded images; None if no decoding was recorded.
        slowest: slowest samples.
        use: of the machine.
        excerpts: timeline samples.
        ranks: times of all known ranks, this one included, by rank; empty in a run of one process.
        notes: missing measurements, with reasons.
    """

    started: float = 0.0
    seconds: float = 0.0
    rank: int = 0
    world_size: int = 1
    machine: Machine
    settings: dict[str, str] = field(default_factory=dict)
    loaders: list[Loader] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    course: list[ThroughputPoint] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    decoded_px: float | None = None
    slowest: list[SlowSample] = field(default_factory=list)
    use: ResourceUse = field(default_factory=ResourceUse)
    excerpts: list[TimelineSample] = field(default_factory=list)
    ranks: list[RankTimes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def rank_times(run: Run) -> RankTimes:
    """Sum up the times of a run's process."""
    total = Pass(loader=0, epoch=0, passes=0)
    for each in run.passes:
        total.add(each)
    workers = [loader.workers for loader in run.loaders if loader.workers is not None]
    trainer = [each for each in run.use.processes if each.role == "trainer"]
    return RankTimes(
        rank=run.rank,
        host=run.machine.host,
        workers=max(workers, default=None),
        samples=total.samples,
        wait=total.wait,
        copy=total.copy,
        compute=total.compute,
        compute_cpu_ms=total.compute_cpu_ms,
        queued_s=trainer[0].queued_s if trainer else None,
        tasks=run.tasks,
        tasks_ms=run.tasks_ms,
    )
