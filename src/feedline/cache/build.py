"""Building a cache: look, ask whether it fits, make the units, finish.

Guarantees: goes on where an earlier build of the same settings was broken off, whatever broke it
off; makes only those shards anew whose images have changed, and all where the index is damaged;
whoever makes the units, and wherever,
the cache is the same.

Relies on: `destination` for where it is built, `unit_maker` and `makers` for the work, `records`
for what is done, `finish` for the end.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, get_args

from feedline.cache.build_plan import divide, estimate, levels_of, samples_per_shard
from feedline.cache.destination import Destination, open_destination
from feedline.cache.finish import fingerprint_now, finish
from feedline.cache.kept import Kept
from feedline.cache.makers import Makers, open_makers
from feedline.cache.open_source import open_source
from feedline.cache.records import record_name, unit_matches, write_records
from feedline.cache.settings import SETTINGS, Settings, Spec, is_same_source, levels_as_before
from feedline.cache.source import Source
from feedline.cache.unit_maker import Report, check_room, make_units, unfinished_work
from feedline.cache.verify import damaged_units, file_damage
from feedline.cache.whole_file import names_to_disk
from feedline.errors import UsageError
from feedline.stores.cache_index import index_damage
from feedline.stores.cache_layout import LMDB_FILE, MANIFEST, CacheFormat, Manifest, read_manifest

__all__ = ["build", "build_cache"]

_QUALITY = 95


def build_cache(
    source: Any,
    root: str | os.PathLike[str],
    sizes: Sequence[int],
    *,
    format: CacheFormat = "webdataset",
    quality: int | None = None,
    raw: bool = False,
    workers: int | str = "auto",
    ray: str | None = None,
    on_error: str = "raise",
    exif: bool = False,
    progress: Report = lambda progress: None,
) -> Manifest:
    """Make smaller copies of all images, which `feedline.ImageFolder(root)` reads.

    Args:
        source: a folder of class folders, tar shards of WebDataset, Parquet files with an image
            column, or a map-style Dataset of (image, label). A path, or a URL that fsspec knows,
            such as "s3://bucket/train".
        root: the cache's folder; made if it is missing. Or a URL, "s3://bucket/train-cache"; the
            format is then webdataset.
        sizes: the shorter sides of the copies in pixels, e.g. (128, 192, 256). An image that is
            smaller keeps its size.
        format: "webdataset": tar shards; "lmdb": one LMDB a size; "folder": a file an image.
        quality: of the JPEGs, 1 to 100; their colours are subsampled (4:2:0), as is usual. None:
            95, or what each level has of a cache of these sizes that is here already.
        raw: keep pixels instead of JPEGs: about 10 times as large, and nothing to decode.
        workers: processes; "auto" for the cores that this process may use; 0: in this process.
        ray: the address of a Ray cluster whose CPUs make the copies, "HOST:PORT"; "auto" for the
            one that $RAY_ADDRESS names or that runs on this machine; "local" starts one here. Where
            Ray is connected already, that cluster is used. None: the workers make them.
        on_error: "raise", or "skip": broken images are left out, and listed in the manifest.
        exif: turn images upright by their Exif orientation, as `ImageFolder(..., exif=True)` does.
        progress: called again and again.

    Returns:
        what the cache holds.

    Raises:
        DatasetError: the source holds no images, or a store is out of reach.
        ImageError: one is broken, and on_error is "raise"; names it.
        ResourceError: the disk cannot hold the result.
        UsageError: an argument cannot be used, the folder is not empty and no cache, another build
            works in it, or there is no such cluster.
        WorkerError: a unit ends whichever process makes it.

    Example:
        >>> feedline.build_cache("train/", "train-cache/", (128, 256))            # doctest: +SKIP
        >>> feedline.build_cache("s3://b/train", "s3://b/cache", (128, 256))      # doctest: +SKIP
    """
    if raw and quality is not None:
        raise UsageError(
            f"{quality!r} is a JPEG quality, and raw pixels have none", argument="quality"
        )
    levels = levels_of(sizes, quality=_QUALITY if quality is None else quality, raw=raw)
    if on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise" or "skip", got {on_error!r}')
    if format not in get_args(CacheFormat):
        raise UsageError(f"format must be webdataset, lmdb or folder, got {format!r}")
    destination = open_destination(root)
    with open_makers(workers, ray) as makers:
        images = open_source(source)
        destination.check_free(images, format)
        with destination.opened():
            if quality is None and not raw:
                levels = levels_as_before(destination.root, levels)
            spec = Spec(destination.root, format, levels, exif, on_error == "skip")
            return build(images, spec, makers, destination, progress)


def build(
    source: Source,
    spec: Spec,
    makers: Makers,
    destination: Destination,
    progress: Report,
    *,
    keep_manifest: bool = False,
) -> Manifest:
    """Make a cache at a destination that is open, or go on with one; see `build_cache`.

    Args:
        source: what the images come from.
        spec: what is made.
        makers: who makes it.
        destination: where it goes.
        progress: called again and again, first when all is checked, before anything is made.
        keep_manifest: the manifest of a finished cache stays until it is replaced at the end.
    """
    with unfinished_work(spec):
        return _build(source, spec, makers, destination, progress, keep_manifest)


def _build(
    source: Source,
    spec: Spec,
    makers: Makers,
    destination: Destination,
    progress: Report,
    keep_manifest: bool,
) -> Manifest:
    expected = estimate(source, spec.levels, exif=spec.exif)
    finished = _finished(source, spec, destination)
    if finished is not None:  # what was stopped after the manifest was written may have left some
        (spec.unfinished / SETTINGS).unlink(missing_ok=True)
    each = finished.per_shard if finished else samples_per_shard(expected)
    settings = Settings.of(source, spec, each).agreed(spec)
    if not is_same_source((settings.source, settings.where), source):
        _warn(
            destination,
            f"{spec.root!r} holds an unfinished build of {settings.where!r}, and goes on with "
            f"{source.where!r}: copies of images of the same name, label, size and time of change "
            "are not made again",
        )
    units = divide(len(source), settings.per_shard)
    # Of a damaged index nothing is taken over, which a new digest would make sound for ever.
    sound = finished is not None and not index_damage(spec.root, finished)
    damaged: set[int] = set()
    if finished is not None and sound:
        write_records(spec, finished)
        damaged = damaged_units(spec.root, finished)
    todo = [
        unit for unit in units if unit.number in damaged or not unit_matches(source, spec, unit)
    ]
    if finished is not None and sound and not todo and finished.samples_in_source == len(source):
        shutil.rmtree(spec.unfinished, ignore_errors=True)
        return finished
    check_room(spec, expected, todo, makers, destination)
    # From here on the folder is no cache until it is finished.
    names_to_disk(spec.root, [spec.unfinished / "settings.json"])
    if damaged and finished is not None:
        _note_damage(destination, spec, finished, damaged)
    if not keep_manifest:
        Path(spec.root, MANIFEST).unlink(missing_ok=True)
    kept = None
    if finished is not None and sound and destination.keeps and not makers.elsewhere:
        kept = Kept(spec.root, finished)  # without it, all of a unit is made anew, to the same
    make_units(source, spec, expected, todo, makers, destination, progress, kept)
    return finish(source, spec, units, settings.per_shard)


def _warn(destination: Destination, text: str) -> None:
    warnings.warn(text.replace(destination.root, destination.name), stacklevel=2)


def _note_damage(
    destination: Destination, spec: Spec, finished: Manifest, damaged: Collection[int]
) -> None:
    """Warn of files that are made again, and make way for them."""
    _warn(
        destination,
        f"the cache {spec.root!r} is damaged: files of {len(damaged)} of its "
        f"{len(finished.levels[0].shards)} shards are missing or have another size, and are made "
        f"again. `feedline cache verify {spec.root}` checks all copies",
    )
    if spec.format == "lmdb":  # one that was cut short must not be written to
        for unit in damaged:
            Path(spec.root, record_name(spec, unit)).unlink(missing_ok=True)
        for level in finished.levels:
            if file_damage(spec.root, finished, level):
                Path(spec.root, level.name, LMDB_FILE).unlink(missing_ok=True)


def _check_source(source: Source, spec: Spec, finished: Manifest, destination: Destination) -> None:
    """Refuse to replace a cache by one of another source; warn if the source has moved.

    Raises:
        UsageError: it is another one, with other images.
    """
    kind, where = finished.source
    if is_same_source(finished.source, source):
        return
    if kind != source.kind or fingerprint_now(source, finished) != finished.fingerprint:
        raise UsageError(
            f"{spec.root!r} is a cache of {where!r} ({kind}), and {source.where!r} ({source.kind}) "
            "has other images. Name another folder for its cache, or remove "
            f"{spec.root!r} first"
        )
    _warn(
        destination,
        f"{spec.root!r} was made of {where!r}, and {source.where!r} has images of the same names "
        "and labels: the cache is brought up to date with these",
    )


def _finished(source: Source, spec: Spec, destination: Destination) -> Manifest | None:
    """The manifest of a finished cache of the same settings that is there, if one is.

    Raises:
        UsageError: it is of other settings, or of another source.
    """
    if not os.path.exists(os.path.join(spec.root, MANIFEST)):
        return None
    found = read_manifest(spec.root)
    had = (found.format, [str(level) for level in found.levels], found.exif)
    wanted = (spec.format, [str(level) for level in spec.levels], spec.exif)
    if had != wanted:
        raise UsageError(
            f"{spec.root!r} is a cache already, {found.format} of {', '.join(had[1])}"
            f"{', upright' * found.exif}, and {spec.format} of {', '.join(wanted[1])}"
            f"{', upright' * spec.exif} was asked for; add a level with `feedline cache add-size`, "
            "leave the quality out to keep those that are there, or name another folder"
        )
    _check_source(source, spec, found, destination)
    return found
