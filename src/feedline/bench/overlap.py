"""Loading before each step compared with loading in workers during steps.

Guarantees: both loops use the same images, batch size and step time; every figure was measured,
without the first steps. No process is left.

The step is a sleep: it leaves the CPU to the loading, as a step on a GPU does. Each batch carries
the worker that made it and its start and end time, from a clock that all processes share.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from feedline.bench.run import ProgressListener
from feedline.images.folder import ImageFolder
from feedline.loader.dataloader import DataLoader
from feedline.order.batch_spec import Item
from feedline.order.seeds import mix
from feedline.report.overlap import LoopTimes, Overlap, OverlapSettings
from feedline.trace.run import Event, TimelineSample

__all__ = ["measure_overlap"]

_WARMUP_STEPS = 3  # not counted: workers start, caches fill
_DRAWN_STEPS = 10
_MAX_STEPS = 2000


@dataclass(slots=True)
class _TimedStep:
    """Times of a step and its batch, in ns; `worker` is -1 if this process made the batch.

    The next batch is requested at `done`: the loop's own overhead counts as computing.
    """

    requested: int
    received: int
    done: int
    worker: int
    make_start: int
    make_end: int


@dataclass(slots=True)
class _Loop:
    """Steps of one loop, in order."""

    loader: Any
    step_s: float
    steps: list[_TimedStep] = field(default_factory=list)

    def run(self, seconds: float, report: ProgressListener) -> None:
        """Run steps for `seconds`, and at least as many as are drawn."""
        batches = iter(self.loader)
        end: float | None = None
        while len(self.steps) < _MAX_STEPS:
            requested = time.monotonic_ns()
            batch = next(batches)
            received = time.monotonic_ns()
            if self.steps:
                self.steps[-1].done = requested
            time.sleep(self.step_s)
            times = batch["times"].tolist()
            report.advance(len(self.steps) + 1)
            self.steps.append(_TimedStep(requested, received, time.monotonic_ns(), *times))
            if len(self.steps) == _WARMUP_STEPS:
                end = time.monotonic() + seconds
            enough = len(self.steps) >= _WARMUP_STEPS + _DRAWN_STEPS + 4
            if enough and end and time.monotonic() > end:
                return


class _RepeatedImages(Dataset[Any]):
    """Rows of a folder, repeated, each with the time at which it was started."""

    def __init__(self, folder: ImageFolder, settings: OverlapSettings) -> None:
        self.folder = folder
        self.size_px = settings.size_px
        self.length = (_MAX_STEPS + 8) * settings.batch_size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        start = time.monotonic_ns()
        row = np.empty((self.size_px, self.size_px, 3), np.uint8), np.zeros((), np.int64)
        sample = number % len(self.folder)
        self.folder.load(Item(sample, self.size_px, mix(number), 1.0), row)
        return torch.from_numpy(row[0]), start


def _collate(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    """Stack samples to a batch with the worker that made it, its start and end time in ns."""
    images = torch.stack([image for image, _ in samples])
    info = get_worker_info()
    times = [-1 if info is None else info.id, samples[0][1], time.monotonic_ns()]
    return {"images": images, "times": torch.tensor(times, device="cpu")}


def measure_overlap(
    folder: ImageFolder, settings: OverlapSettings, report: ProgressListener
) -> Overlap:
    """Measure both loops.

    Raises:
        ImageError: an image cannot be loaded; names it.
        UsageError: the loader refuses a setting.
    """
    step_ms = settings.step_ms
    if step_ms is None:
        report.begin("timing a batch", _WARMUP_STEPS + _DRAWN_STEPS)
        step_ms = _load_ms(_run_loop(folder, settings, 0, 0.0, 0.0, report))
    sides = []
    for workers in (0, settings.workers):
        report.begin(f"{workers} workers", _MAX_STEPS)
        steps = _run_loop(folder, settings, workers, step_ms, settings.seconds, report)
        sides.append(_side(steps, workers, settings.batch_size))
    return Overlap(settings=settings, step_ms=step_ms, images=len(folder), sides=sides)


def _run_loop(
    folder: ImageFolder,
    settings: OverlapSettings,
    workers: int,
    step_ms: float,
    seconds: float,
    report: ProgressListener,
) -> list[_TimedStep]:
    with DataLoader(
        _RepeatedImages(folder, settings),
        batch_size=settings.batch_size,
        num_workers=workers,
        collate_fn=_collate,
    ) as loader:
        loop = _Loop(loader, step_ms / 1e3)
        loop.run(seconds, report)
    return loop.steps


def _load_ms(steps: list[_TimedStep]) -> float:
    return mean(step.make_end - step.make_start for step in steps[_WARMUP_STEPS:]) / 1e6


def _side(steps: list[_TimedStep], workers: int, batch_size: int) -> LoopTimes:
    counted = steps[_WARMUP_STEPS:]
    seconds = (counted[-1].done - counted[0].requested) / 1e9
    return LoopTimes(
        workers=workers,
        steps=len(counted),
        images_per_s=len(counted) * batch_size / seconds,
        step_ms=1e3 * seconds / len(counted),
        wait_ms=mean(step.received - step.requested for step in counted) / 1e6,
        compute_ms=mean(step.done - step.received for step in counted) / 1e6,
        load_ms=_load_ms(steps),
        excerpt=_excerpt(steps, workers),
    )


def _excerpt(steps: list[_TimedStep], workers: int) -> TimelineSample:
    """Events of some steps near the end; the batches of later steps were made meanwhile."""
    last = len(steps) - 2 * max(1, workers)  # batches are made this far ahead
    first = max(_WARMUP_STEPS, last - _DRAWN_STEPS)
    last = max(last, first + 2)
    start_ns = steps[first].requested
    end_ns = steps[last - 1].done
    events = []

    def event(lane: str, stage: str, begin: int, end: int, batch: int) -> None:
        begin_ms, end_ms = (begin - start_ns) / 1e6, (end - start_ns) / 1e6
        events.append(
            Event(lane=lane, stage=stage, begun_ms=begin_ms, ended_ms=end_ms, batch=batch)
        )

    # Every batch made in this time is recorded, so a worker without a batch was idle.
    for lane in [f"worker {k}" for k in range(workers)] or ["loading"]:
        event(lane, "make", start_ns, start_ns, -1)
        event(lane, "make", end_ns, end_ns, -1)
    for number, step in enumerate(steps):
        made_ns = step.make_end
        if first <= number < last:
            event("step", "wait", step.requested, step.received, number)
            event("step", "compute", step.received, step.done, number)
        if workers and made_ns < min(step.requested, end_ns) and step.received > start_ns:
            event("ready", "queued", max(made_ns, start_ns), min(step.received, end_ns), number)
        if made_ns > start_ns and step.make_start < end_ns:
            lane = "loading" if step.worker < 0 else f"worker {step.worker}"
            event(lane, "make", step.make_start, made_ns, number)
    return TimelineSample(
        why="latest", begun_s=(start_ns - steps[0].requested) / 1e9, events=events
    )
