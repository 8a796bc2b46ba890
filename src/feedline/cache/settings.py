"""Specification of a cache, and the settings that an interrupted build must share to be continued.

Guarantees: only a build with the same settings is continued.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from feedline.cache.atomic_write import write_atomic
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, UsageError
from feedline.remote.filesystem import is_url
from feedline.sources.cache_layout import UNFINISHED, CacheFormat, Level, read_manifest

__all__ = [
    "SETTINGS",
    "BuildSettings",
    "ShardRange",
    "Spec",
    "is_same_source",
    "keep_qualities",
    "unfinished_levels",
]

SETTINGS = "settings.json"
_MAY_DIFFER = ("per_shard", "where")


@dataclass(frozen=True)
class Spec:
    """Specification of a cache, the same for all its shards.

    Args:
        root: folder of the cache.
        format: file format.
        levels: resolutions, smallest first.
        exif: rotate images by their Exif orientation.
        skip_broken: skip and list broken images instead of raising.
        adds_level: True if the only resolution is added to a finished cache.
        skipped_before: samples that this cache has skipped before.
        repairs_level: True if shards of the only resolution of a finished cache are rebuilt.
    """

    root: str
    format: CacheFormat
    levels: tuple[Level, ...]
    exif: bool = False
    skip_broken: bool = False
    adds_level: bool = False
    skipped_before: frozenset[int] = frozenset()
    repairs_level: bool = False

    @property
    def unfinished(self) -> Path:
        """Folder of unfinished work; an addition or a repair of a resolution has its own."""
        own = self.adds_level or self.repairs_level
        return Path(self.root, f"{UNFINISHED}-{self.levels[0].name}" if own else UNFINISHED)


class ShardRange(NamedTuple):
    """Number of a shard, and its samples `start:stop`."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class BuildSettings:
    """Settings that two builds must share for one to continue the other.

    Args:
        format: file format.
        levels: resolutions as text.
        exif: rotate images by their Exif orientation.
        source: kind of the source.
        where: path of the source.
        per_shard: samples in a shard.
    """

    format: str
    levels: list[str]
    exif: bool
    source: str
    where: str
    per_shard: int

    @classmethod
    def of(cls, source: CacheSource, spec: Spec, per_shard: int) -> BuildSettings:
        """Collect the settings of a build."""
        levels = [str(level) for level in spec.levels]
        return cls(spec.format, levels, spec.exif, source.kind, source.where, per_shard)

    def reconcile(self, spec: Spec) -> BuildSettings:
        """Return the settings of an existing unfinished build, or write and return these.

        They may differ in the size of a shard, which is estimated, and in the path of the source,
        which may differ between machines.

        Raises:
            UsageError: other settings differ.
        """
        path = spec.unfinished / SETTINGS
        before = None
        with contextlib.suppress(OSError, ValueError, TypeError):
            before = BuildSettings(**json.loads(path.read_text()))
        if before is None:
            write_atomic(path, json.dumps(asdict(self)).encode())
            return self
        mine, others = asdict(self), asdict(before)
        different = [
            name for name in mine if name not in _MAY_DIFFER and mine[name] != others[name]
        ]
        if different:
            differences = (f"{name} {others[name]}, not {mine[name]}" for name in different)
            folder = str(spec.unfinished) if spec.adds_level else spec.root
            raise UsageError(
                f"{folder!r} holds an unfinished build with {'; '.join(differences)}",
                hint="use those settings to continue it, or remove the folder",
            )
        return before


def is_same_source(before: tuple[str, str], source: CacheSource) -> bool:
    """Return True if a source has the kind and path of a former one."""
    kind, where = before
    if kind != source.kind or where == source.where:
        return kind == source.kind
    paths = kind != "dataset" and not is_url(where) and not is_url(source.where)
    return paths and os.path.realpath(where) == os.path.realpath(source.where)


def unfinished_levels(root: str) -> tuple[Level, ...]:
    """Return the resolutions of the unfinished build in a folder; empty if unknown."""
    try:
        given = json.loads(Path(root, UNFINISHED, SETTINGS).read_bytes())
        return tuple(map(Level.of, given["levels"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def keep_qualities(root: str, levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """Return resolutions with the qualities of the cache in a folder, finished or not.

    Args:
        root: the folder.
        levels: JPEG resolutions; returned unchanged if the cache has other sizes or raw pixels, or
            if there is none.
    """
    try:
        there = read_manifest(root).levels
    except DatasetError:
        there = unfinished_levels(root)
    sides = [level.side for level in levels]
    if [level.side for level in there] != sides or any(level.quality is None for level in there):
        return levels
    return tuple(replace(level, shards=()) for level in there)
