"""`feedline bench`: measure a loader on a user's own images.

Imports torch only when it runs.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.cli.train_folder import note_train_folder
from feedline.cli.workers import Workers, worker_setting

__all__ = ["bench"]


Against = Enum("Against", {"torch": "torch"})


def bench(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Class folders with images, or train/ with those.")
    ],
    size: Annotated[int, typer.Option(help="Side of the batches' images in pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 64,
    workers: Workers = "auto",
    against: Annotated[
        Against | None,
        typer.Option(help="Measure torch's DataLoader with torchvision, too, in two forms."),
    ] = None,
    copies: Annotated[
        bool, typer.Option(help="Measure smaller copies too, made for the time of the run.")
    ] = True,
    seconds: Annotated[
        float, typer.Option(help="How long to count images; starting up comes on top.")
    ] = 30.0,
    json: JsonFile = None,
) -> None:
    """Measure how fast your images load, where the ceiling is, and what would help.

    Up to 1000 images of DIR, drawn at random and in memory, become random
    crops in batches of uint8 on the CPU: no model, no GPU. The ceiling is what
    bare processes reach that hand nothing over.

    Example: feedline bench demo-data --size 224 --against torch
    """
    from feedline.bench.options import BenchmarkOptions
    from feedline.train.data import find_splits

    images = find_splits(folder).train
    note_train_folder(folder, images)
    settings = BenchmarkOptions(
        folder=images,
        size_px=size,
        batch_size=batch_size,
        workers=worker_setting(workers),
        against=None if against is None else against.value,
        copies=copies,
        seconds=seconds,
    )

    from rich.progress import TimeElapsedColumn

    from feedline.bench.run import run_benchmark  # loads torch
    from feedline.bench.table import notes, table, verdict
    from feedline.cli.bench_progress import BenchProgress
    from feedline.cli.progress import progress_bar

    with progress_bar(TimeElapsedColumn(), auto_refresh=False) as bar:
        result = run_benchmark(settings, BenchProgress(bar))
    typer.echo(table(result))
    write_json(json, {**result.as_dict(), "verdict": verdict(result), "notes": notes(result)})
