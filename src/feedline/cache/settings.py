"""How a cache is built: the same for all its units, and for a build that goes on with another's.

Guarantees: a build goes on only with one of the same settings.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from feedline.cache.source import Source
from feedline.cache.whole_file import write_whole
from feedline.errors import DatasetError, UsageError
from feedline.remote.filesystem import is_url
from feedline.stores.cache_layout import UNFINISHED, CacheFormat, Level, read_manifest

__all__ = [
    "SETTINGS",
    "Settings",
    "Spec",
    "Unit",
    "is_same_source",
    "levels_as_before",
    "unfinished_levels",
]

SETTINGS = "settings.json"
_MAY_DIFFER = ("per_shard", "where")


@dataclass(frozen=True)
class Spec:
    """How a cache is made, the same for all its units.

    Args:
        root: the cache's folder.
        format: how images are kept.
        levels: which, smallest first.
        exif: turn images upright.
        skip_broken: leave broken images out and note them; else they are an error.
        adds: the one level is added to a cache that is finished.
        left_out: samples that this cache has left out before.
        repairs: the one level is one of a finished cache, of which some units are made again.
    """

    root: str
    format: CacheFormat
    levels: tuple[Level, ...]
    exif: bool = False
    skip_broken: bool = False
    adds: bool = False
    left_out: frozenset[int] = frozenset()
    repairs: bool = False

    @property
    def unfinished(self) -> Path:
        """The folder of what is done so far: an addition or a repair of a level has its own."""
        own = self.adds or self.repairs
        return Path(self.root, f"{UNFINISHED}-{self.levels[0].name}" if own else UNFINISHED)


class Unit(NamedTuple):
    """A number, and the samples from `start` up to `stop`."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class Settings:
    """What two builds must have in common for one to go on with the other.

    Args:
        format: how images are kept.
        levels: which, as text.
        exif: turn images upright.
        source: of which kind it is.
        where: its path.
        per_shard: samples of a shard.
    """

    format: str
    levels: list[str]
    exif: bool
    source: str
    where: str
    per_shard: int

    @classmethod
    def of(cls, source: Source, spec: Spec, per_shard: int) -> Settings:
        """The settings of a build."""
        levels = [str(level) for level in spec.levels]
        return cls(spec.format, levels, spec.exif, source.kind, source.where, per_shard)

    def agreed(self, spec: Spec) -> Settings:
        """The settings of the unfinished build that is there, or these, which are then noted.

        They may differ in the size of a shard, which an estimate gives, and in the path of the
        source, which another machine may see elsewhere.

        Raises:
            UsageError: they differ otherwise.
        """
        path = spec.unfinished / SETTINGS
        before = None
        with contextlib.suppress(OSError, ValueError, TypeError):
            before = Settings(**json.loads(path.read_text()))
        if before is None:
            write_whole(path, json.dumps(asdict(self)).encode())
            return self
        mine, others = asdict(self), asdict(before)
        different = [
            name for name in mine if name not in _MAY_DIFFER and mine[name] != others[name]
        ]
        if different:
            said = (f"{name} {others[name]}, not {mine[name]}" for name in different)
            folder = str(spec.unfinished) if spec.adds else spec.root
            raise UsageError(
                f"{folder!r} holds an unfinished build with {'; '.join(said)}. Build with those "
                "settings to go on with it, or remove the folder"
            )
        return before


def is_same_source(before: tuple[str, str], source: Source) -> bool:
    """Return True if a source is where another one was, whose kind and path these are."""
    kind, where = before
    if kind != source.kind or where == source.where:
        return kind == source.kind
    paths = kind != "dataset" and not is_url(where) and not is_url(source.where)
    return paths and os.path.realpath(where) == os.path.realpath(source.where)


def unfinished_levels(root: str) -> tuple[Level, ...]:
    """The levels of the unfinished build in a folder; none where none can be told."""
    try:
        given = json.loads(Path(root, UNFINISHED, SETTINGS).read_bytes())
        return tuple(map(Level.of, given["levels"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def levels_as_before(root: str, levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """Levels in the qualities that the cache in a folder has them in, finished or not.

    Args:
        root: the folder.
        levels: JPEGs; they are given back where the cache has other sizes, or raw pixels, or there
            is none.
    """
    try:
        there = read_manifest(root).levels
    except DatasetError:
        there = unfinished_levels(root)
    sides = [level.side for level in levels]
    if [level.side for level in there] != sides or any(level.quality is None for level in there):
        return levels
    return tuple(replace(level, shards=()) for level in there)
