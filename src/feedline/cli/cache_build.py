"""`feedline cache build` and `feedline cache add-size`: what makes copies.

Imports torch only when a command runs.
"""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from feedline.cli.cache_described import described
from feedline.cli.output import JsonFile, complain, write_json
from feedline.cli.sizes import level_sizes
from feedline.cli.train_folder import train_folder
from feedline.cli.workers import Workers, worker_setting

if TYPE_CHECKING:
    from feedline.stores.cache_layout import Manifest

__all__ = ["add", "build"]

_INTERRUPTED = 130

Format = Enum("Format", {"webdataset": "webdataset", "lmdb": "lmdb", "folder": "folder"})
OnError = Enum("OnError", {"stop": "raise", "skip": "skip"})
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT",
        help="Make copies on all CPUs of a Ray cluster; auto: of $RAY_ADDRESS, or the one here.",
    ),
]


def build(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Class folders with images, or train/ with those; tars, or Parquet.",
        ),
    ],
    root: Annotated[str, typer.Argument(metavar="DST", help="The cache's folder.")],
    sizes: Annotated[
        str, typer.Option(metavar="PX,PX,...", help="Shorter sides of the copies in pixels.")
    ],
    format: Annotated[Format, typer.Option(help="How copies are kept.")] = Format.webdataset,
    quality: Annotated[
        int | None,
        typer.Option(help="Of the JPEGs, 1 to 100. [dim]Default: 95, or as they are in DST.[/dim]"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keep pixels instead of JPEGs.")] = False,
    workers: Workers = "auto",
    ray: Ray = None,
    on_error: Annotated[
        OnError, typer.Option(help="What to do about an image that cannot be read.")
    ] = OnError.stop,
    exif: Annotated[
        bool, typer.Option("--exif", help="Turn images upright by their Exif orientation.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Make smaller copies of all images of SRC; DST then stands for SRC wherever feedline trains.

    Each phase reads the smallest copies that serve its image size. The same
    command goes on where it was stopped, and makes only what has changed since.

    Example: feedline cache build demo-data/train demo-cache --sizes 128,192,256
    """
    wanted = level_sizes(sizes)
    from feedline.cache.build import build_cache  # loads torch
    from feedline.cache.open_source import source_splits

    make = functools.partial(
        build_cache,
        train_folder(source, source_splits(source)),
        root,
        wanted,
        format=format.value,
        quality=quality,
        raw=raw,
        on_error=on_error.value,
        exif=exif,
    )
    _make(make, root, workers, ray, json)


def add(
    root: Annotated[str, typer.Argument(metavar="DIR", help="The cache's folder.")],
    size: Annotated[int, typer.Argument(metavar="SIZE", help="Their shorter side in pixels.")],
    source: Annotated[
        str | None,
        typer.Option(metavar="SRC", help="What the cache was made of, if that has moved."),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Of the JPEGs. [dim]Default: as the others.[/dim]")
    ] = None,
    workers: Workers = "auto",
    ray: Ray = None,
    json: JsonFile = None,
) -> None:
    """Add copies of one more size, made from the originals.

    The cache can be used meanwhile. The same command goes on where it was stopped.

    Example: feedline cache add-size demo-cache 160
    """
    from feedline.cache.add_size import add_size  # loads torch
    from feedline.cache.open_source import source_splits

    if source is not None:
        source = train_folder(source, source_splits(source))
    make = functools.partial(add_size, root, size, source=source, quality=quality)
    _make(make, root, workers, ray, json)


def _make(
    make: Callable[..., Manifest], root: str, workers: str, ray: str | None, json: Path | None
) -> None:
    """Run what makes copies, and say what was made."""
    from rich.progress import TimeRemainingColumn

    from feedline.cli.cache_progress import BuildProgress
    from feedline.cli.progress import progress_bar

    processes = worker_setting(workers)
    started = time.monotonic()
    try:
        with progress_bar(TimeRemainingColumn()) as bar:
            progress = BuildProgress(bar)
            manifest = make(workers=processes, ray=ray, progress=progress)
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on where it stopped", label="")
        raise typer.Exit(_INTERRUPTED) from None
    seconds = time.monotonic() - started
    rate = progress.made / seconds
    holds = ", ".join(f"{level} {decimal(level.bytes)}" for level in manifest.levels)
    typer.echo(f"{root}: {manifest.samples} images, {manifest.format}: {holds}")
    if progress.made:
        typer.echo(f"made {progress.made} images in {seconds:.1f} s, {rate:.0f} images/s")
    else:
        typer.echo(
            "all of it was there already, by the names and sizes of its files; "
            f"`feedline cache verify {shlex.quote(str(root))}` checks every copy"
        )
    if manifest.skipped:
        _, name, why = manifest.skipped[0]
        typer.echo(f"broken images left out: {len(manifest.skipped)}; the first, {name}: {why}")
    write_json(
        json,
        {
            **described(root, manifest),
            "made": progress.made,
            "seconds": round(seconds, 3),
            "images_per_s": round(rate, 3),
        },
    )
