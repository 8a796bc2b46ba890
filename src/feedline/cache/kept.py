"""What a finished cache that is built anew still holds of images that have not changed.

Guarantees: a copy is given only where the image's name and stamp are the same and the copy is what
was written; else it is made of the original. Relies on: stamps; a source without keeps nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from feedline.cache.level_encoder import Copies
from feedline.errors import FeedlineError
from feedline.stores.cache_index import CacheIndex
from feedline.stores.cache_layout import Manifest
from feedline.stores.cache_level import reader_of

__all__ = ["Kept"]


class Kept:
    """The copies of a finished cache, by the names of the images.

    Args:
        root: the cache's folder.
        manifest: what it held.
        damaged: the samples whose copies are damaged; the others are then given whatever their
            stamps. None: stamps decide.
    """

    def __init__(
        self, root: str, manifest: Manifest, damaged: Collection[int] | None = None
    ) -> None:
        self._damaged = damaged
        self._index = CacheIndex(root, manifest)
        self._readers = [reader_of(root, manifest, level, self._index) for level in manifest.levels]
        self._rows = {self._index.name(row): row for row in range(manifest.samples)}

    def knows(self, name: str, stamp: int) -> bool:
        """Whether there were copies of an image that is the same as it was."""
        row = self._rows.get(name)
        if row is not None and self._damaged is not None:
            return row not in self._damaged
        return row is not None and bool(stamp) and int(self._index.stamps[row]) == stamp

    def copies(self, name: str, stamp: int) -> Copies | None:
        """An image's copies, if it is the same as it was and they are still there."""
        if not self.knows(name, stamp):
            return None
        row = self._rows[name]
        try:
            images = tuple(bytes(reader.file(row)) for reader in self._readers)
        except FeedlineError:  # another shard has its place by now
            return None
        height, width = self._index.sizes[row].tolist()
        return Copies(height, width, images)

    def close(self) -> None:
        """Close what was opened in this process."""
        for reader in self._readers:
            reader.close()
