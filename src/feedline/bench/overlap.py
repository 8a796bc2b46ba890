"""Loading in the step's way and behind it: one loop without workers, and one with some.

Guarantees: both loops take the same images in batches of the same size, with a step that takes
the same time; everything that is said was measured, the first steps left out. No process is left.

The step is a sleep: it leaves the processor to the loading, as a step on a GPU does. The batches
themselves tell who made them, and when: times of one clock, which all processes share.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from feedline.bench.run import Report
from feedline.images.folder import ImageFolder
from feedline.loader.dataloader import DataLoader
from feedline.plan.row import Item
from feedline.plan.seeds import mix
from feedline.report.overlap import Overlap, OverlapSettings, Side
from feedline.trace.run import Event, Excerpt

__all__ = ["measure_overlap"]

_WARM = 3  # first steps that count for nothing: workers start, caches fill
_DRAWN = 10  # steps that are drawn
_MOST_STEPS = 2000


@dataclass(slots=True)
class _Step:
    """A step and its batch, in ns: when the batch was asked for, there, and computed with.

    The next one is asked for at that moment: what the loop itself does counts as computing.
    """

    asked: int
    got: int
    done: int
    worker: int
    begun: int
    made: int


@dataclass(slots=True)
class _Loop:
    """Steps of one loop, one after another."""

    loader: Any
    step_s: float
    steps: list[_Step] = field(default_factory=list)

    def run(self, seconds: float, report: Report) -> None:
        """Take steps for so long, and at least as many as are drawn."""
        batches = iter(self.loader)
        end: float | None = None
        while len(self.steps) < _MOST_STEPS:
            asked = time.monotonic_ns()
            batch = next(batches)
            got = time.monotonic_ns()
            if self.steps:
                self.steps[-1].done = asked
            time.sleep(self.step_s)
            worker, begun, made = batch["made"].tolist()
            report.advance(len(self.steps) + 1)
            self.steps.append(_Step(asked, got, time.monotonic_ns(), worker, begun, made))
            if len(self.steps) == _WARM:
                end = time.monotonic() + seconds
            if len(self.steps) >= _WARM + _DRAWN + 4 and end and time.monotonic() > end:
                return


class _Timed(Dataset[Any]):
    """Rows of a folder, over and over, each with the moment at which it was begun."""

    def __init__(self, folder: ImageFolder, settings: OverlapSettings) -> None:
        self.folder = folder
        self.size_px = settings.size_px
        self.length = (_MOST_STEPS + 8) * settings.batch_size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        begun = time.monotonic_ns()
        row = np.empty((self.size_px, self.size_px, 3), np.uint8), np.zeros((), np.int64)
        sample = number % len(self.folder)
        self.folder.load(Item(sample, self.size_px, mix(number), 1.0), row)
        return torch.from_numpy(row[0]), begun


def _batch(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    """A batch, with who made it, since when and until when."""
    images = torch.stack([image for image, _ in samples])
    info = get_worker_info()
    made = [-1 if info is None else info.id, samples[0][1], time.monotonic_ns()]
    return {"images": images, "made": torch.tensor(made, device="cpu")}


def measure_overlap(folder: ImageFolder, settings: OverlapSettings, report: Report) -> Overlap:
    """Measure both loops.

    Raises:
        ImageError: an image cannot be loaded; names it.
        UsageError: a setting that the loader refuses.
    """
    step_ms = settings.step_ms
    if step_ms is None:
        report.begin("timing a batch", _WARM + _DRAWN)
        step_ms = _load_ms(_measured(folder, settings, 0, 0.0, 0.0, report))
    sides = []
    for workers in (0, settings.workers):
        report.begin(f"{workers} workers", _MOST_STEPS)
        steps = _measured(folder, settings, workers, step_ms, settings.seconds, report)
        sides.append(_side(steps, workers, settings.batch_size))
    return Overlap(settings=settings, step_ms=step_ms, images=len(folder), sides=sides)


def _measured(
    folder: ImageFolder,
    settings: OverlapSettings,
    workers: int,
    step_ms: float,
    seconds: float,
    report: Report,
) -> list[_Step]:
    with DataLoader(
        _Timed(folder, settings),
        batch_size=settings.batch_size,
        num_workers=workers,
        collate_fn=_batch,
    ) as loader:
        loop = _Loop(loader, step_ms / 1e3)
        loop.run(seconds, report)
    return loop.steps


def _load_ms(steps: list[_Step]) -> float:
    return mean(step.made - step.begun for step in steps[_WARM:]) / 1e6


def _side(steps: list[_Step], workers: int, batch_size: int) -> Side:
    counted = steps[_WARM:]
    seconds = (counted[-1].done - counted[0].asked) / 1e9
    return Side(
        workers=workers,
        steps=len(counted),
        images_per_s=len(counted) * batch_size / seconds,
        step_ms=1e3 * seconds / len(counted),
        wait_ms=mean(step.got - step.asked for step in counted) / 1e6,
        compute_ms=mean(step.done - step.got for step in counted) / 1e6,
        load_ms=_load_ms(steps),
        excerpt=_excerpt(steps, workers),
    )


def _excerpt(steps: list[_Step], workers: int) -> Excerpt:
    """Some steps near the end; of those after them the batches were made meanwhile."""
    last = len(steps) - 2 * max(1, workers)  # that far ahead batches are made
    first = max(_WARM, last - _DRAWN)
    last = max(last, first + 2)
    begun_ns = steps[first].asked
    ended_ns = steps[last - 1].done
    events = []

    def event(lane: str, stage: str, begin_ns: int, end_ns: int, batch: int) -> None:
        begin_ms, end_ms = (begin_ns - begun_ns) / 1e6, (end_ns - begun_ns) / 1e6
        events.append(
            Event(lane=lane, stage=stage, begun_ms=begin_ms, ended_ms=end_ms, batch=batch)
        )

    # Every batch that was made in this time is known, so a worker that made none was idle.
    for lane in [f"worker {k}" for k in range(workers)] or ["loading"]:
        event(lane, "make", begun_ns, begun_ns, -1)
        event(lane, "make", ended_ns, ended_ns, -1)
    for number, step in enumerate(steps):
        if first <= number < last:
            event("step", "wait", step.asked, step.got, number)
            event("step", "compute", step.got, step.done, number)
        if workers and step.made < step.asked and step.made < ended_ns and step.got > begun_ns:
            event("ready", "queued", max(step.made, begun_ns), min(step.got, ended_ns), number)
        if step.made > begun_ns and step.begun < ended_ns:
            lane = "loading" if step.worker < 0 else f"worker {step.worker}"
            event(lane, "make", step.begun, step.made, number)
    return Excerpt(why="latest", begun_s=(begun_ns - steps[0].asked) / 1e9, events=events)
