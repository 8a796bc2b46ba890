"""Specification of a cache, its shards, and an estimate of its size and time.

Guarantees: shards depend only on the source and the settings, so a continued build, or one on
another machine, has the same. Only a build with the same settings is continued.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from feedline.cache.level_encoder import DEFAULT_JPEG_QUALITY, LevelEncoder
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.images.codec_base import DecodeOptions
from feedline.sources.files import sync_names, write_atomic
from feedline.sources.manifest import UNFINISHED, Level, Manifest, read_manifest

SETTINGS = "settings.json"
_MAY_DIFFER = ("per_shard", "where")
_SAMPLE_IMAGES = 64
_SHARD_BYTES = 256 << 20
_MAX_SHARD_SAMPLES = 4096
_MIN_SHARD_SAMPLES = 32
_MIN_SHARDS = 64
_TAR_OVERHEAD_BYTES = 3 * 512 + 2 * 512 + 256
"""Tar overhead of an image: three headers, label and metadata, and half a block."""


@dataclass(frozen=True)
class Spec:
    """Specification of a cache, the same for all its shards."""

    root: str
    format: str
    levels: tuple[Level, ...]
    exif: bool = False
    skip_broken: bool = False  # and list broken images in the manifest
    adds_level: bool = False  # `levels` is one resolution that is added to a finished cache
    repairs: bool = False  # shards of a finished cache are rebuilt
    skipped_before: Mapping[int, str] = field(default_factory=dict)  # reasons by sample
    mode: str = "RGB"

    @classmethod
    def of(cls, manifest: Manifest, root: str, new: Level | None = None) -> Spec:
        """Specification of a `new` resolution of a finished cache, or of its repair."""
        levels = tuple(replace(level, shards=()) for level in manifest.levels)
        return cls(
            root,
            manifest.format,
            levels if new is None else (new,),
            manifest.exif,
            adds_level=new is not None,
            repairs=new is None,
            skipped_before={key: why for key, _, why in manifest.skipped},
            mode=manifest.mode,
        )

    def encoder(self) -> LevelEncoder:
        """Create an encoder of its copies, for one thread."""
        return LevelEncoder(self.levels, DecodeOptions(exif=self.exif, mode=self.mode))

    @property
    def unfinished(self) -> Path:
        """Folder of unfinished work; an addition of a resolution has its own."""
        own = f"-{self.levels[0].name}" if self.adds_level else ""
        return Path(self.root, f"{UNFINISHED}{own}")


class ShardRange(NamedTuple):
    """Number of a shard, and its samples `start:stop`."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class Estimate:
    """Estimate of a build from a sample of the images: mean disk space of a copy in each
    resolution, and the time to make all copies on one core.
    """

    levels: tuple[Level, ...]
    images: int
    copy_bytes: tuple[float, ...]
    seconds: float

    @property
    def level_bytes(self) -> tuple[int, ...]:
        """Disk space of each resolution."""
        return tuple(round(self.images * size) for size in self.copy_bytes)


def make_levels(
    sizes: Sequence[int], *, quality: int | None = None, raw: bool = False
) -> tuple[Level, ...]:
    """Return the resolutions for given sizes, smallest first; raises a UsageError."""
    quality = DEFAULT_JPEG_QUALITY if quality is None else quality
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 8192:
            raise UsageError(f"must be from 8 to 8192 pixels, got {size!r}", argument="sizes")
    if not sizes:
        raise UsageError("must be one or more, such as 128,192,256", argument="sizes")
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise UsageError(f"must be from 1 to 100, got {quality!r}", argument="quality")
    return tuple(Level(side=size, quality=None if raw else quality) for size in sorted(set(sizes)))


def estimate(source: CacheSource, spec: Spec) -> Estimate:
    """Make and measure the copies of some evenly spread images."""
    encoder = spec.encoder()
    samples = source.store.pick(_SAMPLE_IMAGES)
    sizes: list[list[int]] = []
    seconds, problem = 0.0, ""
    for sample, read in source.read_ahead(samples):
        started = time.perf_counter()
        try:
            copies = encoder.make_copies(read())
        except ImageError as error:
            problem = f"; the last one: {source.store.key(sample)}: {error.message}"
            continue
        seconds += time.perf_counter() - started
        sizes.append([len(image) for image in copies.images])
    if not sizes:
        raise DatasetError(
            f"none of {len(samples)} sampled images of {source.where!r} can be read{problem}"
        )
    return Estimate(
        levels=spec.levels,
        images=len(source),
        copy_bytes=tuple(mean(level) + _TAR_OVERHEAD_BYTES for level in zip(*sizes, strict=True)),
        seconds=seconds / len(sizes) * len(source),
    )


def samples_per_shard(expected: Estimate) -> int:
    """Return the samples of a shard: about 256 MB, at most 4096 samples, at least 64 shards."""
    by_count = max(_MIN_SHARD_SAMPLES, -(-expected.images // _MIN_SHARDS))
    return max(1, min(int(_SHARD_BYTES / max(expected.copy_bytes)), by_count, _MAX_SHARD_SAMPLES))


def split_into_shards(images: int, per_shard: int) -> list[ShardRange]:
    """Divide the samples into shards."""
    starts = range(0, images, per_shard)
    return [ShardRange(n, start, min(start + per_shard, images)) for n, start in enumerate(starts)]


def count_samples(shards: Sequence[ShardRange]) -> int:
    """Return the number of samples of some shards."""
    return sum(shard.stop - shard.start for shard in shards)


class BuildSettings(NamedTuple):
    """Settings of a cache, or of an unfinished build as in its file."""

    format: str
    levels: list[str]
    exif: bool
    source: str
    where: str
    per_shard: int
    mode: str = "RGB"

    @classmethod
    def of(cls, form: Spec | Manifest, source: tuple[str, str], per_shard: int) -> BuildSettings:
        """Return the settings of a cache of a source, its kind and path."""
        levels = [str(level) for level in form.levels]
        return cls(form.format, levels, form.exif, *source, per_shard, form.mode)

    @classmethod
    def read(cls, folder: Path) -> BuildSettings | None:
        """Read those in a folder of unfinished work; None if they are missing or damaged."""
        try:
            settings = cls(**json.loads((folder / SETTINGS).read_bytes()))
            return settings if list(map(Level.of, settings.levels)) else None
        except (OSError, ValueError, TypeError):
            return None


def continue_settings(
    source: CacheSource, spec: Spec, per_shard: int, finished: Manifest | None = None
) -> BuildSettings:
    """Return the settings of the `finished` cache or the unfinished build that is continued, or
    write those of a new one.

    They may differ in the samples of a shard, which are estimated, and in the path of the source,
    which may differ between machines. Other differences raise a UsageError.
    """
    new = BuildSettings.of(spec, (source.kind, source.where), per_shard)
    if finished is not None:
        work, old = "a cache", BuildSettings.of(finished, finished.source, finished.per_shard)
        hint = (
            "add a size with `feedline cache add-size`, omit the quality to keep the existing "
            "ones, or use another folder"
        )
    else:
        work, old = "an unfinished build", BuildSettings.read(spec.unfinished) or new
        hint = "use those settings to continue it, or remove the folder"
    differences = [
        f"{name} {before}, not {now}"
        for name, before, now in zip(BuildSettings._fields, old, new, strict=True)
        if before != now and name not in _MAY_DIFFER
    ]
    if differences:
        folder = str(spec.unfinished) if spec.adds_level else spec.root
        raise UsageError(f"{folder!r} holds {work} with {'; '.join(differences)}", hint=hint)
    if finished is not None or old is new:  # a finished build may have left others
        write_atomic(spec.unfinished / SETTINGS, json.dumps(new._asdict()).encode())
        sync_names(spec.root, [spec.unfinished / SETTINGS])
    return old


def existing_levels(root: str) -> tuple[Level, ...]:
    """Return the resolutions of the cache or unfinished build in a folder; empty if unknown."""
    try:
        return tuple(replace(level, shards=()) for level in read_manifest(root).levels)
    except DatasetError:
        settings = BuildSettings.read(Path(root, UNFINISHED))
        return () if settings is None else tuple(map(Level.of, settings.levels))
