"""Loading before each step compared with loading in workers during steps.

Guarantees: both loops use the same images, batch size and step time; every figure is from the
loader's record, without the first steps. No process is left.

The step is a sleep: it leaves the CPU to the loading, as a step on a GPU does.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from feedline.errors import UsageError
from feedline.images.folder import ImageFolder
from feedline.loader.dataloader import DataLoader
from feedline.profile.bench import ProgressListener
from feedline.profile.bench_loaders import ImageSample
from feedline.profile.timeline import LoopTimes, Overlap, OverlapSettings, timeline_of
from feedline.text import plural
from feedline.timing import RECORD_SWITCH
from feedline.timing.run import Run, TimelineSample

__all__ = ["measure_overlap"]

_WARMUP_STEPS = 3  # a pass of their own: workers start, caches fill
_MIN_STEPS = 14
_MAX_STEPS = 2000
_DRAWN_STEPS = 10


def measure_overlap(
    folder: ImageFolder, settings: OverlapSettings, report: ProgressListener
) -> Overlap:
    """Measure both loops.

    Raises:
        ImageError: an image cannot be loaded; names it.
        UsageError: the loader refuses a setting, or records nothing.
    """
    step_ms = settings.step_ms
    if step_ms is None:
        report.begin("timing a batch", _MIN_STEPS)
        step_ms = _run_loop(folder, settings, 0, 0.0, 0.0, report).load_ms
    sides = []
    for workers in (0, settings.workers):
        report.begin(plural(workers, "worker"), _MAX_STEPS)
        sides.append(_run_loop(folder, settings, workers, step_ms, settings.seconds, report))
    return Overlap(settings=settings, step_ms=step_ms, images=len(folder), sides=sides)


def _run_loop(
    folder: ImageFolder,
    settings: OverlapSettings,
    workers: int,
    step_ms: float,
    seconds: float,
    report: ProgressListener,
) -> LoopTimes:
    """Run steps for `seconds`, but at least some."""
    loader: DataLoader[Any] = DataLoader(
        ImageSample(folder, range(len(folder))),
        settings.batch_size,
        image_size=settings.size_px,
        num_workers=workers,
        rank=0,
        world_size=1,
        seed=0,
    )
    with loader:
        for first, last, until_s in ((0, _WARMUP_STEPS, 0.0), (_MIN_STEPS, _MAX_STEPS, seconds)):
            end = time.monotonic() + until_s
            for step, _ in enumerate(loader, 1):
                time.sleep(step_ms / 1e3)
                report.advance(step)
                if step >= last or (first and step > first and time.monotonic() > end):
                    break
        return _loop_times(loader.run, workers, (loader.prefetch or 0) if workers else 0)


def _loop_times(run: Run, workers: int, ahead: int) -> LoopTimes:
    """Figures of the last pass of a run, and its latest steps; `ahead` batches were left over."""
    timeline = None
    if run.passes:
        timeline = timeline_of(_excerpt(run, workers), plural(workers, "worker"), _DRAWN_STEPS)
    if timeline is None:
        raise UsageError(
            "the loader recorded no steps", hint=f"unset {RECORD_SWITCH}, which disables records"
        )
    entry = run.passes[-1]
    steps = entry.compute.count
    wait_ms, compute_ms = entry.wait.total_ms / steps, entry.compute.total_ms / steps
    step_ms = wait_ms + compute_ms + (0.0 if entry.copy is None else entry.copy.total_ms / steps)
    return LoopTimes(
        workers=workers,
        steps=steps,
        images_per_s=1e3 * (entry.samples or 0) / entry.batches / step_ms,
        step_ms=step_ms,
        wait_ms=wait_ms,
        compute_ms=compute_ms,
        load_ms=(entry.tasks_ms or 0.0) / (entry.batches + ahead),
        timeline=timeline,
    )


def _excerpt(run: Run, workers: int) -> TimelineSample:
    """The latest steps; without workers the loop itself makes the batches."""
    sample = next(each for each in run.excerpts if each.why == "latest")
    if workers:
        return sample
    events = [
        replace(each, lane="loading") if each.stage == "make" else each for each in sample.events
    ]
    return replace(sample, events=events)
