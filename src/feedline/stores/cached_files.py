"""Image files whose smaller copies lie in a cache: the files' labels, the cache's images.

Guarantees: an image is the cache's copy of that very file, found by its path below the folder that
both were made of; a file without a copy is an error when the two are joined, not later, unless it
was broken: then it is an error when it is read, as of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import ImageError, UsageError
from feedline.stores.cache_store import CacheStore
from feedline.stores.file_store import FileStore
from feedline.stores.store import Pixels

__all__ = ["CachedFiles"]

_NAMED = 3
_BROKEN = -1


class CachedFiles:
    """Files, of which a cache holds the images; a `SampleStore`.

    Args:
        files: the samples.
        cache: holds their copies.

    Raises:
        UsageError: the cache has no copy of a file.
    """

    def __init__(self, files: FileStore[Any], cache: CacheStore) -> None:
        self.files, self.cache = files, cache
        self.label_field = files.label_field
        self._rows = _rows(list(map(files.paths.path, range(len(files)))), cache)

    def __len__(self) -> int:
        return len(self.files)

    def open(self) -> None:
        """Nothing to do: files are opened when an image of theirs is read."""

    def close(self) -> None:
        """Let go of what was opened."""
        self.cache.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """These are about to be read: fetch together what lies on another machine."""
        rows = self._rows[np.asarray(samples, np.int64)]
        self.cache.prepare(rows[rows != _BROKEN].tolist(), side)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """The cache's copy of a file."""
        return self.cache.read(self._row(sample), side)

    def check_side(self, side: int) -> str:
        """The level that serves images wanted at this side."""
        return self.cache.check_side(side)

    def original_size(self, sample: int) -> tuple[int, int]:
        """The height and width of the original, in pixels."""
        return self.cache.original_size(self._row(sample))

    def label(self, sample: int) -> Any:
        """The label of a file."""
        return self.files.label(sample)

    def name(self, sample: int) -> str:
        """The path of a file."""
        return self.files.name(sample)

    def fingerprint(self) -> str:
        """A short hash of the files' paths, their order and labels."""
        return self.files.fingerprint()

    def form(self) -> str:
        """The cache's levels, in words."""
        return self.cache.form()

    def _row(self, sample: int) -> int:
        row = int(self._rows[sample])
        if row == _BROKEN:
            name = self.files.paths.path(sample)
            why = next(why for _, left_out, why in self.cache.manifest.skipped if left_out == name)
            raise ImageError(f"it was left out of the cache {self.cache.root!r}: {why}")
        return row


def _rows(names: list[str], cache: CacheStore) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where a cache has the samples of these names; _BROKEN for those that it has left out."""
    place = {name: _BROKEN for _, name, _ in cache.manifest.skipped}
    place.update((cache.name(row), row) for row in range(len(cache)))
    missing = [name for name in names if name not in place]
    if missing:
        some = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
        raise UsageError(
            f"the cache {cache.root!r} has no copies of {len(missing)} of {len(names)} images, "
            f"{some}. It was made of {cache.manifest.source[1]!r}: build it anew of the folder as "
            "it is now, or take these images out of the dataset"
        )
    return np.array([place[name] for name in names], np.int64)
