"""`feedline cache plan`: which levels a cache should have, before one is built.

Imports torch only when it runs.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.cli.sizes import byte_size, level_sizes
from feedline.cli.train_folder import train_folder
from feedline.cli.workers import Workers, worker_setting

__all__ = ["plan"]

Crop = Enum("Crop", {"train": "train", "eval": "eval"})


def plan(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Class folders with images, or train/ with those; tars, or Parquet.",
        ),
    ],
    schedule: Annotated[
        str,
        typer.Option(
            metavar="PHASES", help="SIZExEPOCHS\\[@BATCH], comma separated: sizes in pixels."
        ),
    ],
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What the cache may take, e.g. 50GB. [dim]Default: 9/10 of what is free.[/dim]",
        ),
    ] = None,
    disk_speed: Annotated[
        str, typer.Option(metavar="SIZE", help="What the disk reads or writes in a second.")
    ] = "500MB",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="PX,PX,...",
            help="Levels to compare. [dim]Default: the phases' sizes, and larger ones.[/dim]",
        ),
    ] = None,
    transform: Annotated[
        Crop, typer.Option(help="Random crops, or the central ones of evaluation.")
    ] = Crop.train,
    workers: Workers = "auto",
    images: Annotated[int, typer.Option(help="How many are looked at.")] = 300,
    seconds: Annotated[
        float, typer.Option(help="How long to count images; as long again goes to the rest.")
    ] = 30.0,
    json: JsonFile = None,
) -> None:
    """Say how fast a schedule would load with which copies, what they take, and which to build.

    A few hundred images of SRC are read, and their copies made and read, for a
    minute. Nothing is built.

    Example: feedline cache plan demo-data/train --schedule "112x10,160x10,224x10" --disk 50GB
    """
    budget = None if disk is None else byte_size(disk, "--disk")
    speed = byte_size(disk_speed, "--disk-speed")
    sides = None if sizes is None else level_sizes(sizes)
    processes = worker_setting(workers)

    from rich.progress import TimeElapsedColumn

    from feedline.bench.plan_cache import plan_cache  # loads torch
    from feedline.bench.planned_cache import plan_table
    from feedline.cache.open_source import source_splits
    from feedline.cli.bench_progress import BenchProgress
    from feedline.cli.progress import progress_bar
    from feedline.images.crops import EvalCrop, TrainCrop

    source = train_folder(source, source_splits(source))
    with progress_bar(TimeElapsedColumn(), auto_refresh=False) as bar:
        found = plan_cache(
            source,
            schedule,
            disk_bytes=budget,
            disk_bytes_per_s=speed,
            sizes=sides,
            transform=TrainCrop() if transform.value == "train" else EvalCrop(),
            workers=processes,
            images=images,
            seconds=seconds,
            report=BenchProgress(bar),
        )
    typer.echo(plan_table(found))
    write_json(json, found.as_dict())
