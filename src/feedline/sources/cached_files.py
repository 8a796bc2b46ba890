"""Image files with resized copies in a cache: the files' labels, the cache's images.

Guarantees: an image is the cache's copy of that very file, found by its path below the folder that
both were made of; a file without a copy raises an error when the two are joined, not later. A
broken file that the cache skipped is read itself, with the same result or error as without the
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import ImageError, UsageError
from feedline.sources.cache_store import CacheStore
from feedline.sources.chosen_store import ChosenStore
from feedline.sources.file_store import FileStore
from feedline.sources.path_table import printable
from feedline.sources.store import Pixels

__all__ = ["CachedFiles", "cache_within"]

_NAMED = 3
_BROKEN = -1


class CachedFiles:
    """Files with copies in a cache; a `SampleStore`.

    Args:
        files: samples; copies are found by their paths below the dataset's folder.
        cache: cache with the copies.

    Raises:
        UsageError: the cache has no copy of a file.
    """

    def __init__(self, files: FileStore[Any], cache: CacheStore) -> None:
        self.files, self.cache = files, cache
        self.label_field = files.label_field
        self._rows = _rows(printable(files.paths.table()), cache)

    def __len__(self) -> int:
        return len(self.files)

    def open(self) -> None:
        """Do nothing: files are opened at the first read."""

    def close(self) -> None:
        """Close all files."""
        self.cache.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """Prepare for images that are about to be read: fetch remote ones together."""
        rows = (int(self._rows[sample]) for sample in samples)
        self.cache.prepare([row for row in rows if row != _BROKEN], side)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """Read the cache's copy of a file; the file itself if it was skipped."""
        row = self._row(sample)
        return self.files.read(sample, side) if row is None else self.cache.read(row, side)

    def check_side(self, side: int) -> str:
        """Resolution that serves images of this side."""
        return self.cache.check_side(side)

    def original_size(self, sample: int) -> tuple[int, int] | None:
        """Height and width of the original, in pixels; None: `read` returns the original."""
        row = self._row(sample)
        return None if row is None else self.cache.original_size(row)

    def label(self, sample: int) -> Any:
        """Label of a file."""
        return self.files.label(sample)

    def name(self, sample: int) -> str:
        """Path of a file."""
        return self.files.name(sample)

    def fingerprint(self) -> str:
        """Short hash of the files' paths, their order and labels."""
        return self.files.fingerprint()

    def form(self) -> str:
        """Resolutions of the cache, as text."""
        return self.cache.form()

    def _row(self, sample: int) -> int | None:
        """Index of a file in the cache; None: it was skipped.

        Raises:
            ImageError: it was skipped, and copies are rotated by their Exif orientation, which
                files are not.
        """
        row = int(self._rows[sample])
        if row == _BROKEN:
            if not self.cache.manifest.exif:
                return None
            name = self.files.paths.path(sample)
            why = next(why for _, left_out, why in self.cache.manifest.skipped if left_out == name)
            raise ImageError(f"it was skipped in the cache {self.cache.root!r}: {why}")
        return row


def cache_within(store: object) -> CacheStore | None:
    """Cache of a store's images; None for originals."""
    if isinstance(store, ChosenStore):
        store = store.store
    if isinstance(store, CachedFiles):
        store = store.cache
    return store if isinstance(store, CacheStore) else None


def _rows(paths: bytes, cache: CacheStore) -> range | np.ndarray[Any, np.dtype[np.int64]]:
    """Indices of these paths in a cache, each ended by a zero byte.

    _BROKEN for those that it has skipped.
    """
    places = cache.index.places(paths)
    if isinstance(places, range):
        return places
    left_out = {name for _, name, _ in cache.manifest.skipped}
    names = paths.decode().split("\0")[:-1]
    found = list(zip(names, places, strict=True))
    missing = [name for name, place in found if place is None and name not in left_out]
    if missing:
        some = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
        raise UsageError(
            f"the cache {cache.root!r} has no copies of {len(missing)} of {len(names)} images, "
            f"{some}. It was made from {cache.manifest.source[1]!r}",
            hint="build it again from the current folder, or remove these images from the dataset",
        )
    return np.array([_BROKEN if place is None else place for place in places], np.int64)
