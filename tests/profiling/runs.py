"""Runs and verdicts to report on: recorded in a real loop, or made for a situation."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace

import numpy as np

from feedline.machine import Machine
from feedline.profile.diagnose import ComputeBound, Diagnosis, PhaseSplit
from feedline.profile.finding import Finding, Gain
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
from feedline.timing.stage_page import PAGE_WORDS, StagePage, read_page
from profiling import diagnosed_runs as diagnosed

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


def recorded(
    steps: int = 12, step_s: float = 0.004, make_s: float = 0.012, sizes: tuple[int, ...] = (64,)
) -> Run:
    """A recorded loop with two workers, simulated by sleeping threads."""
    pages = [np.zeros(PAGE_WORDS, np.int64) for _ in range(2)]
    recorder = Recorder()
    recorder.register_loader(
        LOADER,
        WorkerObserver(
            stage_timings=lambda: {seat: read_page(page) for seat, page in enumerate(pages)},
            name=lambda number: f"/data/train/cat/{number}.jpg",
        ),
    )
    for epoch, size in enumerate(sizes):
        made: queue.Queue[int] = queue.Queue(maxsize=2)
        numbers = iter(range(steps))
        lock = threading.Lock()

        def work(
            page: StagePage,
            numbers: object = numbers,
            made: queue.Queue[int] = made,
            lock: threading.Lock = lock,
        ) -> None:
            while True:
                with lock:
                    number = next(numbers, None)  # type: ignore[call-overload]
                if number is None:
                    return
                begun = time.monotonic_ns()
                time.sleep(make_s)
                done = time.monotonic_ns()
                page.task(begun, done)
                page.note("decode", (done - begun) * 3 // 4)
                page.note("transform: Resize", (done - begun) // 4)
                page.keep(number, done - begun)
                made.put(number)

        workers = [threading.Thread(target=work, args=(StagePage(page),)) for page in pages]
        record = recorder.begin(0, epoch, time.monotonic_ns())
        for worker in workers:
            worker.start()
        for _ in range(steps):
            asked = time.monotonic_ns()
            made.get(timeout=60)
            batch = BatchInfo(image_size=size, samples=8, bytes=8 * 3 * size * size)
            record.add_batch(batch, asked, time.monotonic_ns())
            time.sleep(step_s)
        for worker in workers:
            worker.join()
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
    """A verdict as rules give it."""
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
            TimelineSample(
                why="latest",
                begun_s=1.0,
                events=[
                    Event(lane=name, stage="make", begun_ms=0, ended_ms=8, batch=1),
                    Event(lane="step", stage="compute", begun_ms=0, ended_ms=6, batch=0),
                    Event(lane="step", stage="wait", begun_ms=6, ended_ms=9, batch=1),
                ],
            )
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
