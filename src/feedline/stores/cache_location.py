"""Where a cache lies, and how it is read from there: a folder of this machine."""

from __future__ import annotations

from typing import Protocol

from feedline.stores.cache_index import CacheIndex
from feedline.stores.cache_layout import Level, Manifest, read_manifest
from feedline.stores.cache_level import LevelReader, reader_of

__all__ = ["CacheLocation", "FolderLocation"]


class CacheLocation(Protocol):
    """Where a cache lies. Pickled and sent to workers; its text is what a user calls it."""

    def manifest(self) -> Manifest:
        """What lies there now; raises as `read_manifest` does."""
        ...

    def still_holds(self, manifest: Manifest) -> bool:
        """Whether that is, as far as can be told, what it was, perhaps with levels more."""
        ...

    def index(self, manifest: Manifest) -> CacheIndex:
        """The columns of the cache; raises as they do."""
        ...

    def reader(self, manifest: Manifest, level: Level, index: CacheIndex) -> LevelReader:
        """What reads one of its levels; raises DatasetError."""
        ...

    def in_words(self) -> str:
        """Where copies come from, and what is kept of them where."""
        ...

    def close(self) -> None:
        """Let go of what was opened; it may be used again."""
        ...


class FolderLocation:
    """A cache in a folder of this machine.

    Args:
        root: its absolute path.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def __str__(self) -> str:
        return self.root

    def manifest(self) -> Manifest:
        """What lies there now."""
        return read_manifest(self.root)

    def still_holds(self, manifest: Manifest) -> bool:
        """Whether that is what it was, perhaps with levels more."""
        return self.manifest().extends(manifest)

    def index(self, manifest: Manifest) -> CacheIndex:
        """The columns of the cache."""
        return CacheIndex(self.root, manifest)

    def reader(self, manifest: Manifest, level: Level, index: CacheIndex) -> LevelReader:
        """What reads one of its levels."""
        return reader_of(self.root, manifest, level, index)

    def in_words(self) -> str:
        """Its path."""
        return self.root

    def close(self) -> None:
        """Readers close what they open."""
