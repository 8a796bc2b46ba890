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
from feedline.profile.page import legend_entries, picture, template
from feedline.profile.tables import ReportTable
from feedline.profile.terminal import NAME_COLUMNS, Glyphs, lane_lines, legend, table_view
from feedline.profile.timeline import Timeline, timeline_heading, timeline_of
from feedline.text import ProgressCallback, as_ms, as_rate, as_ratio, as_share, plural
from feedline.timing import RECORD_SWITCH
from feedline.timing.run import Run, TimelineSample

__all__ = [
    "LoopTimes",
    "Overlap",
    "OverlapSettings",
    "measure_overlap",
    "overlap_svg",
    "overlap_view",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapSettings:
    """Options of a comparison of two loops.

    Args:
        size_px: side of the images.
        batch_size: images in a batch.
        workers: processes of the second loop, at least one.
        step_ms: computing time of a step; None: the time of one process to load a batch.
        seconds: measuring time of each loop; some steps at least.
    """

    size_px: int = 224
    batch_size: int = 32
    workers: int = 2
    step_ms: float | None = None
    seconds: float = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopTimes:
    """Measurements of one loop.

    Args:
        workers: processes that loaded; 0 if the loop itself loaded.
        steps: number of counted steps.
        images_per_s: over these.
        step_ms: mean step, including waiting.
        wait_ms: part in which it waited for its batch.
        compute_ms: part in which it computed.
        load_ms: mean time to load a batch, in one process.
        timeline: of the latest steps.
    """

    workers: int
    steps: int
    images_per_s: float
    step_ms: float
    wait_ms: float
    compute_ms: float
    load_ms: float
    timeline: Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Two loops over the same batches: loading before each step, and loading in workers.

    Args:
        settings: options of the comparison.
        step_ms: computing time of a step.
        images: number of images.
        sides: without workers, and with them.
    """

    settings: OverlapSettings
    step_ms: float
    images: int
    sides: list[LoopTimes]


_WARMUP_STEPS = 3  # a pass of their own: workers start, caches fill
_MIN_STEPS = 14
_MAX_STEPS = 2000
_DRAWN_STEPS = 10
_GAP_PX, _WIDTH_PX, _LINE_PX = 4, 780, 18


def measure_overlap(
    folder: ImageFolder, settings: OverlapSettings, progress: ProgressCallback
) -> Overlap:
    """Measure both loops.

    Raises:
        ImageError: an image cannot be loaded; names it.
        UsageError: the loader refuses a setting, or records nothing.
    """
    step_ms = settings.step_ms
    if step_ms is None:
        step_ms = _run_loop(folder, settings, 0, 0.0, 0.0, progress).load_ms
    sides = []
    for workers in (0, settings.workers):
        sides.append(_run_loop(folder, settings, workers, step_ms, settings.seconds, progress))
    return Overlap(settings=settings, step_ms=step_ms, images=len(folder), sides=sides)


def _run_loop(
    folder: ImageFolder,
    settings: OverlapSettings,
    workers: int,
    step_ms: float,
    seconds: float,
    progress: ProgressCallback,
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
                progress(f"steps with {plural(workers, 'worker')}", step, last)
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
        note=f"{plural(found.images, 'image')} in batches of {found.settings.batch_size} at "
        f"{found.settings.size_px} px. The step is a sleep of {as_ms(found.step_ms)}, which leaves "
        "the CPU to the loading, as a step on a GPU does.",
    )


def overlap_view(found: Overlap, glyphs: Glyphs, width: int) -> RenderableType:
    """Show the timelines of two loops in characters, with a legend and the measurements."""
    views: list[RenderableType] = []
    used: set[str] = set()
    longest = max(side.timeline.length_ms for side in found.sides)
    for side in found.sides:
        # Both timelines have the same scale: a faster loop is shorter.
        columns = round((width - NAME_COLUMNS) * side.timeline.length_ms / longest)
        lines, glyphs_of = lane_lines(side.timeline, glyphs, NAME_COLUMNS + columns)
        used |= glyphs_of
        views += [Text(timeline_heading(side.timeline), "bold"), *lines, Text("")]
    views += [*legend(used, glyphs), Text(""), *map(Text, describe_overlap(found)), Text("")]
    return Group(*views, table_view(_table(found)))


def overlap_svg(found: Overlap) -> str:
    """Render the timelines of two loops as an SVG image, 900 px wide, at the same scale."""
    timelines = [side.timeline for side in found.sides]
    longest = max(each.length_ms for each in timelines)
    sides, y = [], 28
    for each in timelines:
        side = picture(each) | {"y": y, "width": round(_WIDTH_PX * each.length_ms / longest)}
        y += 22
        for lane in side["lanes"]:
            lane["y"] = y
            y += lane["height"] + _GAP_PX
        side["axis_y"] = y - 2
        y += 36
        sides.append(side)
    legend = [
        (kind, label, y + 20 * k) for k, (kind, label) in enumerate(legend_entries(timelines))
    ]
    words = [line for text in describe_overlap(found) for line in textwrap.wrap(text, 120)]
    words_y = y + 20 * len(legend) + 16
    return template("overlap.svg").render(
        scope=":root, svg",
        sides=sides,
        legend=legend,
        words=[(line, words_y + _LINE_PX * k) for k, line in enumerate(words)],
        height=words_y + _LINE_PX * len(words),
    )
