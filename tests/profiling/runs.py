"""Runs and verdicts to report on: recorded on a simulated clock, or made for a situation."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from feedline.machine import Machine
from feedline.profile.diagnose import ComputeBound, Diagnosis, PhaseSplit
from feedline.profile.finding import Finding, Gain
from feedline.profile.timeline import timeline_of
from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder, WorkerObserver
from feedline.timing.run import (
    Event,
    Loader,
    Run,
    SlowSample,
    StageTime,
    ThroughputPoint,
    TimelineSample,
)
from feedline.timing.stage_page import PAGE_WORDS, StagePage, read_pages
from profiling import diagnosed_runs as diagnosed

MS = 1_000_000
MACHINE = replace(
    diagnosed.MACHINE,
    cpu="A Processor of 2 Cores",
    usable_cores=2,
    memory_bytes=24 << 30,
    versions={"feedline": "0.1.0", "torch": "2.15.0", "nvidia-ml-py": None},
)
LOADER = Loader(
    kind="torch",
    name="torch.utils.data.dataloader.DataLoader",
    dataset="torchvision.datasets.folder.ImageFolder",
    samples=1000,
    workers=2,
    prefetch_factor=2,
    persistent_workers=False,
    batch_size=8,
)


def recorded(steps: int = 12, sizes: tuple[int, ...] = (64,)) -> Run:
    """A loop on a simulated clock: two workers make a batch in 12 ms each, a step takes 4 ms."""
    pages = np.zeros((2, PAGE_WORDS), np.int64)
    workers = [StagePage(page) for page in pages]
    recorder = Recorder()
    observer = WorkerObserver(
        stage_timings=lambda: read_pages(pages), name=lambda number: f"/data/train/cat/{number}.jpg"
    )
    recorder.register_loader(LOADER, observer)
    now_ns = time.monotonic_ns()
    for epoch, size in enumerate(sizes):
        record = recorder.begin(0, epoch, now_ns)
        batch = BatchInfo(image_size=size, samples=8, bytes=8 * 3 * size * size)
        free_ns = [now_ns, now_ns]
        for number in range(steps):
            page, begun_ns = workers[number % 2], free_ns[number % 2]
            done_ns = free_ns[number % 2] = begun_ns + 12 * MS
            page.task(begun_ns, done_ns)
            page.note("decode", 9 * MS)
            page.note("transform: Resize", 3 * MS)
            page.keep(number, 12 * MS)
            received_ns = max(now_ns, done_ns)
            record.add_batch(batch, now_ns, received_ns)
            now_ns = received_ns + 4 * MS
        recorder.end(record, "exhausted")
    recorder.note("how busy the GPU was: there is none")
    return replace(recorder.run(), machine=MACHINE)


PHASE = PhaseSplit(
    image_size=64,
    batch_size=8,
    epochs=(0, 1),
    steps=200,
    images_per_s=1000.0,
    wait_ms=(3.0, 6.0, 41.0),
    copy_ms=None,
    compute_ms=(4.0, 4.5, 9.0),
    hidden_ms=2.5,
    wait_pct=41.0,
)
FINDING = Finding(
    rule="decode-bound",
    cause="Decoding takes most of the workers' time.",
    evidence="decode 75% of 12.0 ms a batch; the workers were busy for 98% of the time",
    fix="Build a cache of 128 px copies: feedline cache build /data/train CACHE --sizes 128",
    gain=Gain(predicted=1.8, low=1.6, high=2.0),
)


def verdict(
    bound: str = "highly input-bound",
    wait_pct: float | None = 41.0,
    phases: list[PhaseSplit] | None = None,
    findings: list[Finding] | None = None,
) -> Diagnosis:
    return Diagnosis(
        bound=bound,  # type: ignore[arg-type]
        images_per_s=1000.0,
        time_split_s={"starts": 0.0, "wait": 0.66, "copy": None, "compute": 0.94},
        wait_pct=wait_pct,
        phases=[PHASE] if phases is None else phases,
        compute_bound=ComputeBound(images_per_s=1702.0),
        findings=[FINDING] if findings is None else findings,
    )


UNKNOWN = Diagnosis(
    bound="inconclusive",
    images_per_s=None,
    wait_pct=None,
    time_split_s={"wait": None, "copy": None, "compute": None},
    findings=[
        Finding(
            rule="inconclusive", cause="There are too few steps.", evidence="4 steps; it takes 20"
        )
    ],
)


def named(name: str) -> Run:
    """A run in which all that can have a name is called this."""
    return Run(
        started=1.7e9,
        seconds=60.0,
        machine=Machine(
            host=name,
            cpu=name,
            cores=2,
            usable_cores=2,
            quota_cores=1.5,
            memory_bytes=1 << 30,
            gpu=name,
            platform=name,
            versions={name: name},
        ),
        settings={name: name},
        loaders=[Loader(kind="other", name=name, dataset=name, collate=name, made_by=name)],
        stages=[StageTime(name=name, count=3, total_ms=6.0, longest_ms=4.0)],
        slowest=[SlowSample(name=name, ms=123.0)],
        excerpts=[
            sample_timeline((name, "make", 0, 8), ("step", "compute", 0, 6), ("step", "wait", 6, 9))
        ],
        notes=[name],
    )


def points(rates: list[float], size: int = 64, seconds: float = 1.0) -> list[ThroughputPoint]:
    """A course with these images/s, a point each."""
    return [
        ThroughputPoint(
            begun_s=k * seconds,
            seconds=seconds,
            batches=10,
            samples=round(rate * seconds),
            wait_ms=100.0,
            image_size=size,
        )
        for k, rate in enumerate(rates)
    ]


def sample_timeline(*events):
    """A sample of these events: lane, stage, start and end in ms."""
    return TimelineSample(
        why="latest",
        begun_s=3.0,
        events=[
            Event(lane=lane, stage=stage, begun_ms=begun, ended_ms=ended, batch=k)
            for k, (lane, stage, begun, ended) in enumerate(events)
        ],
    )


def drawn(*events):
    timeline = timeline_of(sample_timeline(*events), "steps")
    assert timeline is not None
    return timeline
