"""`feedline demo-data`: make a small image set to try feedline with, without a download.

Imports numpy and the drawing only when it runs.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.output import JsonFile, write_json

__all__ = ["demo_data"]


def demo_data(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; new, or empty.")],
    classes: Annotated[int, typer.Option(help="How many classes, 2 to 12.")] = 6,
    train_per_class: Annotated[int, typer.Option(help="Pictures a class in train/.")] = 64,
    val_per_class: Annotated[int, typer.Option(help="Pictures a class in val/.")] = 16,
    seed: Annotated[int, typer.Option(help="Another seed, other pictures.")] = 0,
    json: JsonFile = None,
) -> None:
    """Make photograph-like images of made-up classes: DIR/train/CLASS/*.jpg and DIR/val/...

    The JPEGs are 500x375 pixels and about 110 KB, as ImageNet's are on average, so that reading
    and decoding them costs what real ones cost. A small network learns the classes in minutes.

    Example: feedline demo-data demo-data --classes 6 --train-per-class 64
    """
    from rich.progress import TimeRemainingColumn

    from feedline.cli.progress import progress_bar
    from feedline.train.demo_set import DemoSet, write_demo_set  # loads numpy

    demo = DemoSet(
        classes=classes, train_per_class=train_per_class, val_per_class=val_per_class, seed=seed
    )
    started = time.monotonic()
    with progress_bar(TimeRemainingColumn()) as bar:
        task = bar.add_task("demo images", total=demo.total)
        written = write_demo_set(
            folder, demo, progress=lambda done, total: bar.update(task, completed=done)
        )
    elapsed_s = time.monotonic() - started
    size = f"{demo.total} images of {demo.classes} classes"
    if written:
        typer.echo(f"{folder}: wrote {size} in {elapsed_s:.1f} s")
    else:
        typer.echo(f"{folder}: {size}, already there")
    write_json(
        json,
        {
            "folder": str(folder),
            "images": demo.total,
            **asdict(demo),
            "written": written,
            "seconds": round(elapsed_s, 3),
        },
    )
