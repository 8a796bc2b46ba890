"""`feedline explain-overlap`: what workers are for, measured and drawn on this machine.

Imports torch only when it runs.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.output import JsonFile, SvgFile, write_json, write_text
from feedline.cli.screen import columns, say
from feedline.cli.train_folder import note_train_folder
from feedline.cli.workers import Workers, worker_setting
from feedline.errors import UsageError

__all__ = ["explain_overlap"]

_LONGEST_STEP_MS = 10_000.0


def explain_overlap(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Class folders with images, or train/ with those. "
            "[dim]Default: made-up ones.[/dim]",
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Side of the batches' images in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 32,
    workers: Workers = "auto",
    step_ms: Annotated[
        float | None,
        typer.Option(help="How long a step computes. [dim]Default: as long as loading.[/dim]"),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each loop.")] = 3.0,
    svg: SvgFile = None,
    json: JsonFile = None,
) -> None:
    """Draw loading in the step's way beside loading behind it, as measured here.

    Two loops take the same batches, one without workers and one with some, with
    a step that sleeps. It takes some seconds.

    Example: feedline explain-overlap demo-data/train --workers 4 --svg overlap.svg
    """
    asked = worker_setting(workers)
    if asked == 0:
        raise UsageError("--workers must be at least 1: no workers are the other side anyway")
    if step_ms is not None and not 0 < step_ms <= _LONGEST_STEP_MS:
        raise UsageError(
            f"--step-ms must be above 0 and at most {_LONGEST_STEP_MS:.0f}, got {step_ms}"
        )

    from rich.progress import TimeElapsedColumn

    from feedline.bench.copies import temporary_folder
    from feedline.bench.options import BenchmarkOptions
    from feedline.bench.overlap import measure_overlap  # loads torch
    from feedline.cli.bench_progress import BenchProgress
    from feedline.cli.progress import progress_bar
    from feedline.images.folder import ImageFolder
    from feedline.loader.checks import worker_count
    from feedline.report.glyphs import glyphs_for
    from feedline.report.overlap import OverlapSettings
    from feedline.report.overlap_view import overlap_json, overlap_svg, overlap_view
    from feedline.train.data import find_splits
    from feedline.train.demo_set import DemoSet, write_demo_set

    # Checked as for `feedline bench`.
    BenchmarkOptions(folder=folder or Path(), size_px=size, batch_size=batch_size, seconds=seconds)
    settings = OverlapSettings(
        size_px=size,
        batch_size=batch_size,
        workers=max(1, worker_count(asked)),
        step_ms=step_ms,
        seconds=seconds,
    )
    with contextlib.ExitStack() as stack:
        bar = BenchProgress(stack.enter_context(progress_bar(TimeElapsedColumn())))
        if folder is None:
            demo = DemoSet(classes=4, train_per_class=8, val_per_class=1)
            root = stack.enter_context(temporary_folder()) / "demo"
            bar.begin("drawing images", demo.total)
            write_demo_set(root, demo, progress=lambda done, _: bar.advance(done))
        else:
            root = folder
        used = find_splits(root).train
        if folder is not None:
            note_train_folder(folder, used)
        images = ImageFolder(used)
        found = measure_overlap(images, settings, bar)
    say(overlap_view(found, glyphs_for(sys.stdout), columns()))
    if svg is not None:
        write_text(svg, overlap_svg(found))
    write_json(json, overlap_json(found))
