"""`feedline cache`: plan, make, check, repair, describe and extend caches of smaller copies.

Imports torch only when a command runs.
"""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import typer
from rich.filesize import decimal

from feedline.cli.cache_build import add, build
from feedline.cli.cache_described import described
from feedline.cli.cache_plan import plan
from feedline.cli.output import JsonFile, write_json
from feedline.cli.train_folder import train_folder
from feedline.cli.workers import Workers, worker_setting

__all__ = ["cache"]

_ON_SCREEN = 20
_DAMAGED = 1

# As text: a path would lose a slash of a URL.
Place = Annotated[str, typer.Argument(metavar="DIR", help="The cache's folder, or its URL.")]

cache = typer.Typer(no_args_is_help=True)
cache.command(no_args_is_help=True)(plan)


@cache.callback()
def about() -> None:
    """Keep smaller copies of all images, so that training has less to read and decode.

    Example: feedline cache build demo-data/train demo-cache --sizes 128,192,256
    """


cache.command("build", no_args_is_help=True)(build)
cache.command("add-size", no_args_is_help=True)(add)


@cache.command(no_args_is_help=True)
def verify(
    root: Place,
    decode: Annotated[bool, typer.Option("--decode", help="Decode each JPEG, too.")] = False,
    workers: Workers = "auto",
    json: JsonFile = None,
) -> None:
    """Check every copy against its checksum; exit status 1 if something is damaged.

    `feedline cache repair` makes again what is damaged.

    Of a cache at a URL all images are read from there, and none are kept.

    Example: feedline cache verify demo-cache
    """
    processes = worker_setting(workers)

    from rich.progress import TimeRemainingColumn

    from feedline.cache.verify import verify as check  # loads torch
    from feedline.cli.cache_progress import CheckProgress
    from feedline.cli.progress import progress_bar

    started = time.monotonic()
    with progress_bar(TimeRemainingColumn()) as bar:
        found = check(root, decode=decode, workers=processes, progress=CheckProgress(bar))
    seconds = time.monotonic() - started
    # Where the index knows neither its file nor its name, a sample has its level and number.
    damaged = [
        f"{each.file or f'{each.level} px'}: sample {each.sample}"
        f"{each.name and f', {each.name}'}: {each.why}"
        for each in found.damaged
    ]
    files = len(found.index) + len(found.files)
    verdict = f"{len(damaged)} are damaged" + (f", and files of the cache: {files}" * bool(files))
    lines = [*found.index, *found.files, *damaged]
    for line in lines[:_ON_SCREEN]:
        typer.echo(line)
    if len(lines) > _ON_SCREEN:
        typer.echo(f"... and {len(lines) - _ON_SCREEN} more; --json FILE lists all")
    typer.echo(
        f"{root}: checked {found.images} copies in {seconds:.1f} s: "
        + ("all as they were written" if found.sound else verdict)
    )
    write_json(
        json,
        {
            "folder": str(root),
            "sound": found.sound,
            "images": found.images,
            "damaged": [each._asdict() for each in found.damaged],
            "files": found.files,
            "index": found.index,
            "seconds": round(seconds, 3),
        },
    )
    if not found.sound:
        typer.echo(f"hint: feedline cache repair {shlex.quote(root)}")
        raise typer.Exit(_DAMAGED)


@cache.command(no_args_is_help=True)
def repair(
    root: Place,
    source: Annotated[
        str | None,
        typer.Option(metavar="SRC", help="What the cache was made of, if that has moved."),
    ] = None,
    workers: Workers = "auto",
    json: JsonFile = None,
) -> None:
    """Make damaged copies again, from the originals.

    Checks all copies first, as `feedline cache verify` does. The cache can be
    used meanwhile. If it is interrupted, run it again.

    Example: feedline cache repair demo-cache
    """
    processes = worker_setting(workers)

    from rich.progress import TimeRemainingColumn

    from feedline.cache.open_source import source_splits
    from feedline.cache.repair import repair_cache  # loads torch
    from feedline.cli.cache_progress import RepairProgress
    from feedline.cli.progress import progress_bar

    if source is not None:
        source = train_folder(source, source_splits(source))
    started = time.monotonic()
    with progress_bar(TimeRemainingColumn()) as bar:
        done = repair_cache(root, source=source, workers=processes, progress=RepairProgress(bar))
    found, seconds = done.found, time.monotonic() - started
    files = len(found.index) + len(found.files)
    typer.echo(
        f"{root}: nothing is damaged"
        if found.sound
        else f"{root}: repaired {len(found.damaged)} damaged copies"
        + f" and {files} files of the cache" * bool(files)
        + f" in {seconds:.1f} s; {done.images} copies were written"
    )
    write_json(
        json,
        {
            "folder": str(root),
            "damaged": [each._asdict() for each in found.damaged],
            "files": found.files,
            "index": found.index,
            "images_written": done.images,
            "seconds": round(seconds, 3),
        },
    )


@cache.command(no_args_is_help=True)
def info(
    root: Place,
    measure: Annotated[
        bool, typer.Option(help="Read random crops of each size for two seconds.")
    ] = True,
    json: JsonFile = None,
) -> None:
    """Say what a cache holds, and how fast it is read; at a URL, as it is read from here.

    Example: feedline cache info demo-cache --no-measure
    """
    from feedline.cache.info import cache_info  # loads torch

    known = cache_info(root, measure=measure)
    manifest = known.manifest
    classes = "" if manifest.classes is None else f" of {len(manifest.classes)} classes"
    upright = ", turned upright" if manifest.exif else ""
    kind, path = manifest.source
    typer.echo(f"{known.root}: {manifest.samples} images{classes}, {manifest.format}{upright}")
    typer.echo(f"made by feedline {manifest.feedline} of {path} ({kind})")
    if manifest.skipped:
        _, name, why = manifest.skipped[0]
        typer.echo(f"{len(manifest.skipped)} broken images were left out; the first: {name}: {why}")
    for each in known.levels:
        rate = (
            ""
            if each.images_per_s is None
            else f", {each.images_per_s:.0f} random crops of {each.crop_px} px a second"
        )
        typer.echo(
            f"{each.level}: {decimal(each.bytes)}, {each.image_bytes / 1e3:.1f} kB an image" + rate
        )
    measured = [
        {
            "bytes_on_disk": each.bytes,
            "mean_image_bytes": each.image_bytes,
            "crop_px": each.crop_px,
            "images_per_s": each.images_per_s,
        }
        for each in known.levels
    ]
    said = described(root, manifest)
    said["levels"] = [level | more for level, more in zip(said["levels"], measured, strict=True)]
    write_json(json, said)
