"""Location of a cache, and access to it: a local folder."""

from __future__ import annotations

from typing import Protocol

from feedline.sources.cache_index import CacheIndex
from feedline.sources.cache_layout import Level, Manifest, read_manifest
from feedline.sources.cache_level import LevelReader, reader_of

__all__ = ["CacheLocation", "FolderLocation"]


class CacheLocation(Protocol):
    """Location of a cache. Pickled and sent to workers; its text is the user's name for it."""

    def manifest(self) -> Manifest:
        """Read the current manifest; raises like `read_manifest`."""
        ...

    def still_holds(self, manifest: Manifest) -> bool:
        """Return True if it is, as far as known, the same cache, possibly with more resolutions."""
        ...

    def index(self, manifest: Manifest) -> CacheIndex:
        """Columns of the cache; raises their errors."""
        ...

    def reader(self, manifest: Manifest, level: Level, index: CacheIndex) -> LevelReader:
        """Reader of one of its resolutions; raises DatasetError."""
        ...

    def in_words(self) -> str:
        """Source of the copies, and the folder where they are kept, as text."""
        ...

    def close(self) -> None:
        """Close all files; it may be used again."""
        ...


class FolderLocation:
    """A cache in a local folder.

    Args:
        root: its absolute path.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def __str__(self) -> str:
        return self.root

    def manifest(self) -> Manifest:
        """Read the current manifest."""
        return read_manifest(self.root)

    def still_holds(self, manifest: Manifest) -> bool:
        """Return True if it is the same cache, possibly with more resolutions."""
        return self.manifest().extends(manifest)

    def index(self, manifest: Manifest) -> CacheIndex:
        """Columns of the cache."""
        return CacheIndex(self.root, manifest)

    def reader(self, manifest: Manifest, level: Level, index: CacheIndex) -> LevelReader:
        """Reader of one of its resolutions."""
        return reader_of(self.root, manifest, level, index)

    def in_words(self) -> str:
        """Path of the folder."""
        return self.root

    def close(self) -> None:
        """Do nothing: readers close what they open."""
