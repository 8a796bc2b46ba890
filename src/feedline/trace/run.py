"""What is known of a run: who made its batches, and where the time of its steps went.

Guarantees: bounded in size, however long a run is; `None` stands for what was not measured, never
0. All times count from the run's beginning, on one clock that all processes of a machine share.
Everything that is said of a run, in a terminal, a page or as JSON, is said from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from feedline.trace.histogram import Histogram
from feedline.trace.machine import Machine, Process, Use

__all__ = [
    "RUN_VERSION",
    "Event",
    "Excerpt",
    "Loader",
    "Machine",
    "Pass",
    "Point",
    "Process",
    "Run",
    "SlowSample",
    "StageTime",
    "Use",
]

RUN_VERSION = 1
"""Of the form below, as a file has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """What made the batches: its type and its settings, as far as they can be read.

    Args:
        kind: "feedline", "torch" for torch's DataLoader and what derives from it, or "other".
        name: its class, with the module.
        dataset: the dataset's class.
        samples: how many there are.
        workers: worker processes; 0 for none.
        prefetch_factor: batches ahead for each worker.
        persistent_workers: whether workers live on from epoch to epoch.
        pin_memory: whether batches come in pinned memory.
        batch_size: as it was asked for.
        start_method: "fork", "spawn" or "forkserver".
        collate: the name of what makes a batch of samples, "" for torch's default.
        made_by: whose code makes the batches, in feedline's words; "" where it is not feedline.
        copies: where the copies lie that are read in the place of originals, "" for none.
        because: why feedline makes no more of the batches itself, sentences.
        uncompiled: whether the transform of a folder of images runs unchanged under a schedule.
        accepts: which of "cache" and "device" the loader may be given; None where it is not
            feedline's.
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
    copies: str = ""
    because: str = ""
    uncompiled: bool = False
    accepts: tuple[str, ...] | None = None


@dataclass(kw_only=True, slots=True)
class Pass:
    """One pass over a loader, as far as it had one image size; several, where they are many.

    A step begins when its batch is handed out and ends when the next one is: it computes first
    and then waits. The first batch of a pass is waited for by no step, and counts as its start.

    Args:
        loader: which of the run's loaders, from 0.
        epoch: counted from 0.
        image_size: of the batches, in pixels; None where they are no images of one size.
        batch_size: samples of the largest batch.
        passes: how many are summed up here.
        begun_s: when the first batch was asked for.
        ended_s: when the last step had ended.
        start_ms: from asking for the first batch to having it, of each pass that began here.
        batches: that were handed out.
        samples: in them; None where they could not be counted.
        bytes: of all tensors in them.
        float_bytes: of those that are floats and were pixels.
        pinned: whether they lay in pinned memory; None where that was not looked at.
        wait: exposed: the step waited for workers to finish its batch.
        copy: exposed: the step waited for its finished batch to be copied; None where that
            cannot be told from waiting.
        compute: all the rest of each step.
        first_steps_ms: the first steps at this size, in order, at most 8, without their waits.
        wait_cpu_ms: for how long of the waiting the training thread was on a core itself: it took
            batches over, or made them. None where that was not measured; likewise
        compute_cpu_ms: for how long of the computing.
        built: the loader's number among all that were built like it, from 1; 0: unknown.
        tasks: pieces or batches that workers made meanwhile,
        tasks_ms: and how long these took. None where it was not measured.
        disk_bytes: that came from a disk meanwhile, for all processes; None where the kernel does
            not say.
        ended: how: "exhausted", "left" (the loop broke off), "raised", or "" while it goes on.
        device_clock: whether the device's own events timed it.
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
    built: int = 0
    wait_cpu_ms: float | None = None
    compute_cpu_ms: float | None = None
    tasks: int | None = None
    tasks_ms: float | None = None
    disk_bytes: int | None = None
    ended: str = ""
    device_clock: bool = False


@dataclass(kw_only=True, slots=True)
class Point:
    """A stretch of the run, for its course over time.

    Args:
        begun_s: when it began.
        seconds: how long it was.
        batches: handed out in it.
        samples: in these; None where they could not be counted.
        wait_ms: exposed waiting, in sum.
        image_size: at its end.
    """

    begun_s: float
    seconds: float
    batches: int
    samples: int | None
    wait_ms: float
    image_size: int | None


@dataclass(kw_only=True, slots=True)
class StageTime:
    """One stage of making samples, in the workers' tasks that were timed.

    Args:
        name: of the stage; a step of a transform begins with "transform: ".
        count: how often it was passed.
        total_ms: how long it took in all.
        longest_ms: at most.
        cpu_ms: for how long of it the worker was on a core; None where that was not measured.
    """

    name: str
    count: int
    total_ms: float
    longest_ms: float
    cpu_ms: float | None = None


@dataclass(kw_only=True, slots=True)
class SlowSample:
    """A sample that took long, by its name: a path where it has one."""

    name: str
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that took place: who did it, what, and when.

    Args:
        lane: "worker 0" and so on, or "step".
        stage: "make" of a worker's; "wait" or "compute" of a step's.
        begun_ms: from the excerpt's beginning.
        ended_ms: likewise.
        batch: counted from the beginning of its pass; -1 for none that is known.
    """

    lane: str
    stage: str
    begun_ms: float
    ended_ms: float
    batch: int


@dataclass(kw_only=True, slots=True)
class Excerpt:
    """Some steps with all that happened meanwhile.

    Args:
        why: "latest" or "longest wait".
        begun_s: when it begins.
        events: at most some thousand.
    """

    why: str
    begun_s: float
    events: list[Event]


@dataclass(kw_only=True, slots=True)
class Run:
    """A run of one process.

    Args:
        started: seconds since 1970, by the machine's clock.
        seconds: how long it has been watched.
        rank: of the process, and of how many.
        machine: where it was.
        settings: what a recipe was set to, by name; empty for a loop of the user's own.
        loaders: in the order in which they came.
        passes: in the order in which they came; the oldest are summed up where they are many.
        course: throughput over time, at most some hundred points.
        stages: of the workers, most expensive first.
        tasks: pieces or batches that workers made,
        tasks_ms: and how long these took.
        timed: of them, those that were timed stage by stage,
        timed_ms: how long these took,
        timed_cpu_ms: and for how long of that their workers were on a core,
        timed_queued_ms: or ready while no core was free; None where the kernel does not say.
        decoded: images that were decoded in these,
        decoded_px: and the mean of their shorter sides; None where no decoding was seen.
        sample_sizes: of these, samples by how long they took: to k, how many took from 2**k ns to
            less than twice that, and how long they took together, in ms.
        slowest: samples.
        use: of the machine.
        excerpts: for a picture of what overlaps.
        notes: what could not be measured, and why.
    """

    started: float = 0.0
    seconds: float = 0.0
    rank: int = 0
    world_size: int = 1
    machine: Machine
    settings: dict[str, str] = field(default_factory=dict)
    loaders: list[Loader] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    course: list[Point] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    tasks: int = 0
    tasks_ms: float = 0.0
    timed: int = 0
    timed_ms: float = 0.0
    timed_cpu_ms: float = 0.0
    timed_queued_ms: float | None = None
    decoded: int = 0
    decoded_px: float | None = None
    sample_sizes: dict[int, tuple[int, float]] = field(default_factory=dict)
    slowest: list[SlowSample] = field(default_factory=list)
    use: Use = field(default_factory=Use)
    excerpts: list[Excerpt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
