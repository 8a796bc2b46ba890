"""`feedline demo-data`: write a small image dataset, without a download."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli import options
from feedline.cli.output import echo, write_json

_data = options.panel(options.DATA)


def demo_data(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
    num_classes: Annotated[int, _data("Classes, 2 to 12.", "N", True)] = 6,
    train_per_class: Annotated[int, _data("Images of a class in train/.", "N", True)] = 64,
    val_per_class: Annotated[int, _data("Images of a class in val/.", "N", True)] = 16,
    seed: Annotated[int, _data("Random seed.", "N", True)] = 0,
    json: options.JsonFile = None,
) -> None:
    """Write a small image dataset to try feedline with.

    JPEGs of 500x375 pixels and about 110 KB, as in ImageNet, in DIR/train/CLASS/ and
    DIR/val/CLASS/. A small model learns the classes in minutes.

    Example: feedline demo-data demo-data --num-classes 6 --train-per-class 64
    """
    from feedline.cli.demo_set import DemoSet, write_demo_set  # loads numpy
    from feedline.cli.progress import ProgressBar

    demo = DemoSet(
        num_classes=num_classes,
        train_per_class=train_per_class,
        val_per_class=val_per_class,
        seed=seed,
    )
    images = f"{demo.total} images of {num_classes} classes"
    started = time.monotonic()
    with ProgressBar("images") as bar:

        def show(done: int, total: int) -> None:
            if done == 1:
                bar.note(f"{folder}: writing {images}")
            bar.update(done, total)

        written = write_demo_set(folder, demo, progress=show)
    elapsed_s = time.monotonic() - started
    echo(
        f"{folder}: wrote {images} in {elapsed_s:.1f} s"
        if written
        else f"{folder}: {images}, already there"
    )
    result = {"written": written, "seconds": round(elapsed_s, 3)}
    write_json(json, {"folder": str(folder), "images": demo.total, **asdict(demo), **result})
