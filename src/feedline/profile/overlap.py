"""Loading before each step compared with loading in workers during steps: measured and drawn.

Guarantees: both loops use the same images, batch size and step time; every figure is from the
loader's record, without the first steps. No process is left.

The step is a sleep: it leaves the CPU to the loading, as a step on a GPU does.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from feedline.errors import UsageError
from feedline.images.folder import ImageFolder
from feedline.loader.dataloader import DataLoader
from feedline.profile.bench_loaders import ImageSample
from feedline.profile.facts import StepMeans
from feedline.profile.page import picture, template
from feedline.profile.tables import ReportTable
from feedline.profile.terminal import TimelinesView, table_view
from feedline.profile.timeline import Timeline, legend, timeline_of
from feedline.text import ProgressCallback, as_ms, as_rate, as_ratio, as_share, plural
from feedline.timing import RECORD_SWITCH
from feedline.timing.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopTimes:
    """Measurements of one loop, times as means per step, and its latest steps."""

    workers: int  # 0 if the loop itself loaded
    steps: int  # counted
    images_per_s: float
    step_ms: float  # including the wait
    wait_ms: float
    compute_ms: float
    load_ms: float  # a batch, in one process
    timeline: Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Two loops over the same batches: loading before each step, and loading in workers."""

    image_size: int  # in pixels
    batch_size: int
    images: int
    step_ms: float  # of computing
    sides: list[LoopTimes]


_WARMUP_STEPS = 3  # a pass of their own: workers start, caches fill
_MIN_STEPS = 14
_MAX_STEPS = 2000
_DRAWN_STEPS = 10
_WIDTH_PX = 780


def measure_overlap(
    folder: ImageFolder,
    *,
    image_size: int,
    batch_size: int,
    workers: int,
    step_ms: float | None,
    seconds: float,
    progress: ProgressCallback,
) -> Overlap:
    """Measure both loops, each for `seconds`, but some steps at least.

    A step computes for `step_ms`; None: the time of one process to load a batch.

    Raises:
        ImageError: an image cannot be loaded; names it.
        UsageError: the loader refuses a setting, or records nothing.
    """

    def run_loop(workers: int, step_ms: float, seconds: float) -> LoopTimes:
        loader: DataLoader[Any] = DataLoader(
            ImageSample(folder, range(len(folder))),
            batch_size,
            image_size=image_size,
            num_workers=workers,
            rank=0,
            world_size=1,
            seed=0,
        )
        passes = ((0, _WARMUP_STEPS, 0.0), (_MIN_STEPS, _MAX_STEPS, seconds))
        with loader:
            for first, last, until_s in passes:
                end = time.monotonic() + until_s
                for step, _ in enumerate(loader, 1):
                    time.sleep(step_ms / 1e3)
                    progress(f"steps with {plural(workers, 'worker')}", step, last)
                    if step >= last or (first and step > first and time.monotonic() > end):
                        break
            return _loop_times(loader.run, workers, (loader.prefetch or 0) if workers else 0)

    if step_ms is None:
        step_ms = run_loop(0, 0.0, 0.0).load_ms
    return Overlap(
        image_size=image_size,
        batch_size=batch_size,
        images=len(folder),
        step_ms=step_ms,
        sides=[run_loop(count, step_ms, seconds) for count in (0, workers)],
    )


def _loop_times(run: Run, workers: int, ahead: int) -> LoopTimes:
    """Figures of the last pass of a run, and its latest steps; `ahead` batches were left over."""
    timeline = None
    if run.passes:
        sample = next(each for each in run.excerpts if each.why == "latest")
        if not workers:  # the loop itself makes the batches
            moved = [replace(e, lane="loading") if e.stage == "make" else e for e in sample.events]
            sample = replace(sample, events=moved)
        timeline = timeline_of(sample, plural(workers, "worker"), _DRAWN_STEPS)
    if timeline is None:
        raise UsageError(
            "the loader recorded no steps", hint=f"unset {RECORD_SWITCH}, which disables records"
        )
    entry, means = run.passes[-1], StepMeans(run.passes[-1])
    return LoopTimes(
        workers=workers,
        steps=means.steps,
        images_per_s=1e3 * (entry.samples or 0) / entry.batches / means.step_ms,
        step_ms=means.step_ms,
        wait_ms=means.wait_ms,
        compute_ms=means.compute_ms,
        load_ms=(entry.tasks_ms or 0.0) / (entry.batches + ahead),
        timeline=timeline,
    )


def describe_overlap(found: Overlap) -> list[str]:
    """Describe the measurements in sentences."""
    alone, overlapped = found.sides
    return [
        f"Without workers a step first waits for its batch, {as_ms(alone.wait_ms)}, and then "
        f"computes, {as_ms(alone.compute_ms)}: {as_ms(alone.step_ms)} in total.",
        f"With {plural(overlapped.workers, 'worker')} the next batches are made while a step "
        f"computes. A batch takes a worker {as_ms(overlapped.load_ms)}; in addition to its "
        f"{as_ms(overlapped.compute_ms)} of computing, the step waits "
        f"{as_ms(overlapped.wait_ms)}: {as_ms(overlapped.step_ms)} in total.",
        f"That is {as_ratio(overlapped.images_per_s / alone.images_per_s)} as many images/s.",
    ]


def _table(found: Overlap) -> ReportTable:
    """Measurements of two loops."""

    def wait(side: LoopTimes) -> str:
        return f"{as_ms(side.wait_ms)} ({as_share(side.wait_ms / side.step_ms)})"

    return ReportTable(
        title="Measured",
        heads=["", *(plural(side.workers, "worker") for side in found.sides)],
        rows=[
            ["images/s", *(as_rate(side.images_per_s) for side in found.sides)],
            ["step", *(as_ms(side.step_ms) for side in found.sides)],
            ["waiting", *map(wait, found.sides)],
            ["computing", *(as_ms(side.compute_ms) for side in found.sides)],
            ["loading a batch", *(as_ms(side.load_ms) for side in found.sides)],
            ["steps counted", *(str(side.steps) for side in found.sides)],
        ],
        note=f"{plural(found.images, 'image')} in batches of {found.batch_size} at "
        f"{found.image_size} px. The step is a sleep of {as_ms(found.step_ms)}, which leaves "
        "the CPU to the loading, as a step on a GPU does.",
    )


def overlap_view(found: Overlap) -> RenderableType:
    """Show the timelines of two loops in characters, with a legend and the measurements."""
    return Group(
        TimelinesView([side.timeline for side in found.sides], same_scale=True),
        Text("\n".join(["", *describe_overlap(found), ""])),
        table_view(_table(found)),
    )


def overlap_svg(found: Overlap) -> str:
    """Render the timelines of two loops as an SVG image, 900 px wide, at the same scale."""
    timelines = [side.timeline for side in found.sides]
    longest = max(each.length_ms for each in timelines)
    return template("overlap.svg").render(
        scope=":root, svg",
        pictures=[
            picture(each) | {"width": round(_WIDTH_PX * each.length_ms / longest)}
            for each in timelines
        ],
        legend=legend(timelines),
        lines=[line for text in describe_overlap(found) for line in textwrap.wrap(text, 120)],
    )
