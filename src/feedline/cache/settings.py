"""How a cache is built: the same for all its units, and for a build that goes on with another's.

Guarantees: a build goes on only with one of the same settings.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from feedline.cache.source import Source
from feedline.cache.writers import write_whole
from feedline.errors import UsageError
from feedline.stores.cache_layout import UNFINISHED, CacheFormat, Level

__all__ = ["Settings", "Spec", "Unit"]


@dataclass(frozen=True)
class Spec:
    """How a cache is made, the same for all its units.

    Args:
        root: the cache's folder.
        format: how images are kept.
        levels: which, smallest first.
        exif: turn images upright.
        skip_broken: leave broken images out and note them; else they are an error.
    """

    root: str
    format: CacheFormat
    levels: tuple[Level, ...]
    exif: bool = False
    skip_broken: bool = False


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
        per_shard: samples of a shard.
    """

    format: str
    levels: list[str]
    exif: bool
    source: str
    per_shard: int

    @classmethod
    def of(cls, source: Source, spec: Spec, per_shard: int) -> Settings:
        """The settings of a build."""
        levels = [str(level) for level in spec.levels]
        return cls(spec.format, levels, spec.exif, source.kind, per_shard)

    def agreed(self, root: str) -> Settings:
        """The settings of an unfinished build in a folder, or these, which are then noted.

        They may differ in the size of a shard, which an estimate gives.

        Raises:
            UsageError: they differ otherwise.
        """
        path = Path(root, UNFINISHED, "settings.json")
        before = None
        with contextlib.suppress(OSError, ValueError, TypeError):
            before = Settings(**json.loads(path.read_text()))
        if before is None:
            write_whole(path, json.dumps(asdict(self)).encode())
            return self
        mine, others = asdict(self), asdict(before)
        different = [name for name in mine if name != "per_shard" and mine[name] != others[name]]
        if different:
            said = (f"{name} {others[name]}, not {mine[name]}" for name in different)
            raise UsageError(
                f"{root!r} holds an unfinished build with {'; '.join(said)}. Build with those "
                "settings to go on with it, or remove the folder"
            )
        return before
