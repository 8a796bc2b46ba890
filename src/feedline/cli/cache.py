"""`feedline cache`: plan, build, extend, verify, repair and describe caches of resized copies."""

from __future__ import annotations

import functools
import math
import posixpath
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from feedline.cli import options
from feedline.cli.output import complain, echo, echo_text, use_folder, write_json
from feedline.errors import UsageError, hide_secrets
from feedline.text import as_bytes, shell_command

if TYPE_CHECKING:
    from feedline.sources.manifest import Manifest

_ON_SCREEN = 20
_DAMAGED, _INTERRUPTED = 1, 130

_copies, _measurement = options.panel("Copies"), options.panel(options.MEASUREMENT)

# As text: a path would lose a slash of a URL.
Cache = Annotated[str, typer.Argument(metavar="CACHE", help="Folder or URL of the cache.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="Class folders of images, a folder with train/, tar shards or Parquet files.",
    ),
]
MovedSource = Annotated[
    str | None,
    options.panel(options.DATA)("Originals.", "SRC", "where the cache was built from"),
]
Ray = Annotated[
    str | None,
    _copies("Build on a Ray cluster; auto: $RAY_ADDRESS or the local one.", "auto|HOST:PORT"),
]
_SIZES = "PX,PX,..."


def build(
    source: Source,
    cache: Annotated[str, typer.Argument(metavar="CACHE", help="Folder or URL to write to.")],
    sizes: Annotated[str, _copies("Shorter sides of the copies, in pixels.", _SIZES)],
    format: Annotated[
        Literal["webdataset", "lmdb", "folder"],
        _copies("File format.", "webdataset|lmdb|folder", True),
    ] = "webdataset",
    quality: Annotated[
        int | None, _copies("JPEG quality, 1 to 100.", "N", "95, or that of the cache")
    ] = None,
    raw: Annotated[bool, _copies("Store pixels instead of JPEGs.")] = False,
    exif: Annotated[bool, _copies("Apply the Exif orientation.")] = False,
    mode: Annotated[
        Literal["RGB", "L", "I;16"],
        _copies("Pillow's mode of the copies: L grey, I;16 16-bit grey.", "RGB|L|I;16", True),
    ] = "RGB",
    ray: Ray = None,
    workers: options.Workers = None,
    on_error: options.OnError = None,
    json: options.JsonFile = None,
) -> None:
    """Build a cache of resized copies, to train from instead of SRC.

    Each phase of a training reads the smallest copies that are large enough. If interrupted, run
    the same command again: it continues, and rebuilds only what has changed.

    Example: feedline cache build demo-data/train demo-cache --sizes 128,192,256
    """
    pixels = options.parse_sizes(sizes)
    from feedline.cache.build import build_cache  # loads torch

    make = functools.partial(
        build_cache,
        _train_folder(source),
        cache,
        pixels,
        format=format,
        quality=quality,
        raw=raw,
        on_error=on_error or "raise",
        exif=exif,
        mode=mode,
    )
    _make(make, cache, workers, ray, json)


def add_size(
    cache: Cache,
    size: Annotated[int, typer.Argument(metavar="PX", help="Shorter side, in pixels.")],
    source: MovedSource = None,
    quality: Annotated[
        int | None, _copies("JPEG quality, 1 to 100.", "N", "that of the cache")
    ] = None,
    ray: Ray = None,
    workers: options.Workers = None,
    json: options.JsonFile = None,
) -> None:
    """Add copies of one more size to a cache, made from the originals.

    The cache can be used meanwhile. If interrupted, run the same command again: it continues.

    Example: feedline cache add-size demo-cache 160
    """
    from feedline.cache.build import add_size as add  # loads torch

    originals = None if source is None else _train_folder(source)
    make = functools.partial(add, cache, size, source=originals, quality=quality)
    _make(make, cache, workers, ray, json)


def _train_folder(source: str) -> str:
    from feedline.cache.source import list_splits

    return use_folder(source, posixpath.join(source, *list_splits(source)[:1]))


def _make(
    make: Callable[..., Manifest],
    cache: str,
    workers: str | None,
    ray: str | None,
    json: Path | None,
) -> None:
    """Make copies, and print what was made."""
    from feedline.cli.progress import BuildProgress, ProgressBar

    processes = options.parse_workers(workers)
    started = time.monotonic()
    try:
        with ProgressBar("listing images") as bar:
            progress = BuildProgress(bar)
            manifest = make(workers=processes, ray=ray, progress=progress)
    except KeyboardInterrupt:
        complain("interrupted", hint="run the same command again to continue")
        raise typer.Exit(_INTERRUPTED) from None
    seconds = time.monotonic() - started
    rate = progress.new_images / seconds
    levels = ", ".join(f"{level} {as_bytes(level.bytes)}" for level in manifest.levels)
    echo(f"{cache}: {manifest.samples} images, {manifest.format}: {levels}")
    if progress.new_images:
        echo(f"wrote {progress.new_images} images in {seconds:.1f} s, {rate:.0f} images/s")
    else:
        echo("already complete, by names and sizes of the originals")
        complain(f"feedline cache verify {shell_command(cache)} checks every copy", "hint")
    _echo_skipped(manifest)
    timed = {"seconds": round(seconds, 3), "images_per_s": round(rate, 3)}
    write_json(json, {**_manifest_json(cache, manifest), "made": progress.new_images, **timed})


def verify(
    cache: Cache,
    decode: Annotated[bool, _copies("Decode the JPEGs, too.")] = False,
    workers: options.Workers = None,
    json: options.JsonFile = None,
) -> None:
    """Verify the checksum of every copy and the tar headers; exit status 1 if one is damaged.

    All copies of a cache at a URL are downloaded, and none are stored.

    Example: feedline cache verify demo-cache
    """
    from feedline.cache.damage import verify as check  # loads torch
    from feedline.cli.progress import ProgressBar

    started = time.monotonic()
    with ProgressBar("images") as bar:
        found = check(
            cache, decode=decode, workers=options.parse_workers(workers), progress=bar.update
        )
    seconds = time.monotonic() - started
    echo(f"{cache}: verified {found.images} copies in {seconds:.1f} s: {found}")
    for line in found.problems[:_ON_SCREEN]:
        echo(line)
    if len(found.problems) > _ON_SCREEN:
        echo(f"... and {len(found.problems) - _ON_SCREEN} more; --json FILE lists all")
    result = {"sound": found.is_sound, "images": found.images, "seconds": round(seconds, 3)}
    write_json(json, {"folder": cache, **found.as_dict(), **result})
    if not found.is_sound:
        complain(f"feedline cache repair {shell_command(cache)}", "hint")
        raise typer.Exit(_DAMAGED)


def repair(
    cache: Cache,
    source: MovedSource = None,
    workers: options.Workers = None,
    json: options.JsonFile = None,
) -> None:
    """Rebuild damaged copies from the originals.

    Verifies all copies first. The cache can be used meanwhile. If interrupted, run it again.

    Example: feedline cache repair demo-cache
    """
    from feedline.cache.build import repair_cache  # loads torch
    from feedline.cache.damage import count_copies
    from feedline.cli.progress import ProgressBar

    originals = None if source is None else _train_folder(source)
    started = time.monotonic()
    with ProgressBar("checking") as bar:
        done = repair_cache(
            cache,
            source=originals,
            workers=options.parse_workers(workers),
            progress=bar.stage,
        )
    found, seconds = done.verification, time.monotonic() - started
    echo(
        f"{cache}: {found}"
        if found.is_sound
        else f"{cache}: repaired {found} in {seconds:.1f} s "
        f"({count_copies(done.images)} rewritten, whole shards at a time)"
    )
    result = {"images_written": done.images, "seconds": round(seconds, 3)}
    write_json(json, {"folder": cache, **found.as_dict(), **result})


def info(
    cache: Cache,
    measure: Annotated[bool, _measurement("Load crops of each size for 2 s.", "", True)] = True,
    json: options.JsonFile = None,
) -> None:
    """Describe a cache: sizes, bytes, and how many images/s it loads.

    Example: feedline cache info demo-cache --no-measure
    """
    from feedline.cache.rates import cache_info  # loads torch

    known = cache_info(cache, measure=measure)
    manifest = known.manifest
    classes = "" if manifest.classes is None else f" of {len(manifest.classes)} classes"
    upright = ", Exif orientation applied" if manifest.exif else ""
    kind, path = manifest.source
    echo(f"{known.root}: {manifest.samples} images{classes}, {manifest.format}{upright}")
    echo(f"built by feedline {manifest.feedline} from {path} ({kind})")
    _echo_skipped(manifest)
    for each in known.levels:
        rate = (
            ""
            if each.images_per_s is None
            else f"; training at {each.crop_px} px loads {each.images_per_s:.0f} images/s"
        )
        echo(
            f"{each.level}: {as_bytes(each.bytes)}, {each.image_bytes / 1e3:.1f} kB an image{rate}"
        )
    described = _manifest_json(cache, manifest)
    for level, each in zip(described["levels"], known.levels, strict=True):
        level |= {
            "bytes_on_disk": each.bytes,
            "mean_image_bytes": each.image_bytes,
            "crop_px": each.crop_px,
            "images_per_s": each.images_per_s,
        }
    write_json(json, described)


def _echo_skipped(manifest: Manifest) -> None:
    if manifest.skipped:
        _, name, reason = manifest.skipped[0]
        count = len(manifest.skipped)
        echo(f"skipped {count} broken images; first: {hide_secrets(name)}: {reason}")


def _manifest_json(cache: str, manifest: Manifest) -> dict[str, Any]:
    kind, path = manifest.source
    return {
        "folder": cache,
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
            {"sample": key, "name": hide_secrets(name), "why": why}
            for key, name, why in manifest.skipped
        ],
        "fingerprint": manifest.fingerprint,
        "feedline": manifest.feedline,
    }


def plan(
    source: Source,
    schedule: Annotated[str, _copies("Image sizes and epochs; @N: batch size.", options.SCHEDULE)],
    sizes: Annotated[
        str | None,
        _copies("Sizes of the copies, in pixels.", _SIZES, "8/7 of those of the schedule, or more"),
    ] = None,
    disk: Annotated[
        float | None, _copies("Disk space for the cache, in GB.", "GB", "9/10 of what is free")
    ] = None,
    disk_speed: Annotated[float, _copies("Disk speed, in MB per second.", "MB", True)] = 500.0,
    transform: Annotated[
        Literal["train", "eval"],
        _measurement("Random crops or center crops.", "train|eval", True),
    ] = "train",
    images: Annotated[int, _measurement("Images to sample.", "N", True)] = 300,
    seconds: Annotated[float, _measurement("Time to count images.", "SECONDS", True)] = 30.0,
    workers: options.Workers = None,
    json: options.JsonFile = None,
) -> None:
    """Recommend which sizes to cache for a schedule; builds nothing.

    Makes copies of 300 images, then measures for 30 s how many images/s a loader makes from the
    originals, from JPEG copies of one size, of a size for each phase, and from the latter as raw
    pixels. Takes about a minute on idle cores.

    Example: feedline cache plan demo-data/train --schedule 112x10,160x10,224x10 --disk 50
    """
    sides = None if sizes is None else options.parse_sizes(sizes)
    processes = options.parse_workers(workers)
    for option, value in {"--disk": disk, "--disk-speed": disk_speed}.items():
        if value is not None and not 0 < value < math.inf:  # in the option's unit
            raise UsageError(f"{option} must be a number above 0, got {value:g}")

    from feedline.cache.plan import plan_cache  # loads torch
    from feedline.cli.progress import ProgressBar
    from feedline.images.crops import EvalCrop, TrainCrop

    with ProgressBar("starting", clock="elapsed", steady=True) as bar:
        found = plan_cache(
            _train_folder(source),
            schedule,
            disk_bytes=None if disk is None else disk * 1e9,
            disk_bytes_per_s=disk_speed * 1e6,
            sizes=sides,
            transform=TrainCrop() if transform == "train" else EvalCrop(),
            workers=processes,
            images=images,
            seconds=seconds,
            progress=bar.stage,
        )
    echo_text(str(found))
    write_json(json, found.as_dict())
