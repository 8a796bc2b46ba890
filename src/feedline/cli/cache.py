"""`feedline cache`: plan, make, check, describe and extend caches of smaller copies.

Imports torch only when a command runs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.cache_plan import plan
from feedline.cli.output import JsonFile, complain, write_json
from feedline.cli.sizes import level_sizes
from feedline.cli.workers import Workers, worker_setting

if TYPE_CHECKING:
    from feedline.stores.cache_layout import Manifest

__all__ = ["cache"]

_ON_SCREEN = 20
_DAMAGED = 1
_INTERRUPTED = 130

Format = Enum("Format", {"webdataset": "webdataset", "lmdb": "lmdb", "folder": "folder"})
OnError = Enum("OnError", {"stop": "raise", "skip": "skip"})
# As text: a path would lose a slash of a URL.
Place = Annotated[str, typer.Argument(metavar="DIR", help="The cache's folder, or its URL.")]

cache = typer.Typer(no_args_is_help=True)
cache.command(no_args_is_help=True)(plan)


@cache.callback()
def about() -> None:
    """Keep smaller copies of all images, so that training has less to read and decode.

    Example: feedline cache build demo-data/train demo-cache --sizes 128,192,256
    """


@cache.command(no_args_is_help=True)
def build(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="Class folders with images, tars, or Parquet.")
    ],
    root: Annotated[Path, typer.Argument(metavar="DST", help="The cache's folder.")],
    sizes: Annotated[
        str, typer.Option(metavar="PX,PX,...", help="Shorter sides of the copies in pixels.")
    ],
    format: Annotated[Format, typer.Option(help="How copies are kept.")] = Format.webdataset,
    quality: Annotated[int, typer.Option(help="Of the JPEGs, 1 to 100.")] = 95,
    raw: Annotated[bool, typer.Option("--raw", help="Keep pixels instead of JPEGs.")] = False,
    workers: Workers = "auto",
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

    make = functools.partial(
        build_cache,
        source,
        root,
        wanted,
        format=format.value,
        quality=quality,
        raw=raw,
        on_error=on_error.value,
        exif=exif,
    )
    _make(make, root, workers, json)


@cache.command("add-size", no_args_is_help=True)
def add(
    root: Place,
    size: Annotated[int, typer.Argument(metavar="SIZE", help="Their shorter side in pixels.")],
    source: Annotated[
        Path | None,
        typer.Option(metavar="SRC", help="What the cache was made of, if that has moved."),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Of the JPEGs. [dim]Default: as the others.[/dim]")
    ] = None,
    workers: Workers = "auto",
    json: JsonFile = None,
) -> None:
    """Add copies of one more size, made from the originals.

    The cache can be used meanwhile. The same command goes on where it was stopped.

    Example: feedline cache add-size demo-cache 160
    """
    from feedline.cache.add_size import add_size  # loads torch

    make = functools.partial(add_size, root, size, source=source, quality=quality)
    _make(make, root, workers, json)


@cache.command(no_args_is_help=True)
def verify(
    root: Place,
    decode: Annotated[bool, typer.Option("--decode", help="Decode each JPEG, too.")] = False,
    workers: Workers = "auto",
    json: JsonFile = None,
) -> None:
    """Check every copy against its checksum; exit status 1 where something is damaged.

    Of a cache at a URL all images are read from there, and none are kept.

    Example: feedline cache verify demo-cache
    """
    processes = worker_setting(workers)

    from rich.progress import TimeRemainingColumn

    from feedline.cache.verify import verify as check  # loads torch
    from feedline.cli.cache_progress import CheckProgress
    from feedline.cli.progress import progress_bar
    from feedline.stores.remote_files import is_url

    started = time.monotonic()
    with progress_bar(TimeRemainingColumn()) as bar:
        found = check(root, decode=decode, workers=processes, progress=CheckProgress(bar))
    seconds = time.monotonic() - started
    damaged = [
        f"{each.file}: sample {each.sample}, {each.name}: {each.why}" for each in found.damaged
    ]
    lines = [*found.index, *found.files, *damaged]
    for line in lines[:_ON_SCREEN]:
        typer.echo(line)
    if len(lines) > _ON_SCREEN:
        typer.echo(f"... and {len(lines) - _ON_SCREEN} more; --json FILE lists all")
    typer.echo(
        f"{root}: checked {found.images} copies in {seconds:.1f} s: "
        + ("all as they were written" if found.sound else f"{len(damaged)} are damaged")
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
        typer.echo(
            f"remove {root} and run the `feedline cache build` that made it again; of tar shards "
            "remove the damaged ones alone"
            if not is_url(root)
            else f"copy what is damaged to {root} once more, or build the cache anew"
        )
        raise typer.Exit(_DAMAGED)


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
            f"{each.level}: {each.bytes / 1e9:.2f} GB, {each.image_bytes / 1e3:.1f} kB an image"
            + rate
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
    said = _described(root, manifest)
    said["levels"] = [level | more for level, more in zip(said["levels"], measured, strict=True)]
    write_json(json, said)


def _make(make: Callable[..., Manifest], root: Path | str, workers: str, json: Path | None) -> None:
    """Run what makes copies, and say what was made."""
    from rich.progress import TimeRemainingColumn

    from feedline.cli.cache_progress import BuildProgress
    from feedline.cli.progress import progress_bar
    from feedline.system import usable_cores

    asked = worker_setting(workers)
    processes = usable_cores() if asked == "auto" else asked
    started = time.monotonic()
    try:
        with progress_bar(TimeRemainingColumn()) as bar:
            progress = BuildProgress(bar, processes)
            manifest = make(workers=processes, progress=progress)
    except KeyboardInterrupt:
        complain("interrupted; the same command goes on where it stopped", label="")
        raise typer.Exit(_INTERRUPTED) from None
    seconds = time.monotonic() - started
    rate = progress.made / seconds
    holds = ", ".join(f"{level} {level.bytes / 1e9:.2f} GB" for level in manifest.levels)
    typer.echo(f"{root}: {manifest.samples} images, {manifest.format}: {holds}")
    if progress.made:
        typer.echo(f"made {progress.made} images in {seconds:.1f} s, {rate:.0f} images/s")
    else:
        typer.echo("all of it was there already")
    if manifest.skipped:
        _, name, why = manifest.skipped[0]
        typer.echo(f"broken images left out: {len(manifest.skipped)}; the first, {name}: {why}")
    write_json(
        json,
        {
            **_described(root, manifest),
            "made": progress.made,
            "seconds": round(seconds, 3),
            "images_per_s": round(rate, 3),
        },
    )


def _described(root: Path | str, manifest: Manifest) -> dict[str, Any]:
    """A manifest as it goes into a JSON file."""
    kind, path = manifest.source
    return {
        "folder": str(root),
        "format": manifest.format,
        "images": manifest.samples,
        "levels": [
            {"size_px": level.side, "quality": level.quality, "bytes": level.bytes}
            for level in manifest.levels
        ],
        "classes": manifest.classes,
        "exif": manifest.exif,
        "source": {"kind": kind, "path": path, "images": manifest.samples_in_source},
        "skipped": [
            {"sample": key, "name": name, "why": why} for key, name, why in manifest.skipped
        ],
        "fingerprint": manifest.fingerprint,
        "feedline": manifest.feedline,
    }
