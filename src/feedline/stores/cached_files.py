"""Image files whose smaller copies lie in a cache: the files' labels, the cache's images.

Guarantees: an image is the cache's copy of that very file, found by its path below the folder that
both were made of; a file without a copy is an error when the two are joined, not later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import UsageError
from feedline.stores.cache_store import CacheStore
from feedline.stores.file_store import FileStore
from feedline.stores.path_table import printable
from feedline.stores.store import Pixels

__all__ = ["CachedFiles"]

_NAMED = 3


class CachedFiles:
    """Files, of which a cache holds the images; a `SampleStore`.

    Args:
        files: the samples; by their paths below the dataset's folder the copies are found.
        cache: holds their copies.

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
        """Nothing to do: files are opened when an image of theirs is read."""

    def close(self) -> None:
        """Let go of what was opened."""
        self.cache.close()

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """The cache's copy of a file."""
        return self.cache.read(int(self._rows[sample]), side)

    def check_side(self, side: int) -> str:
        """The level that serves images wanted at this side."""
        return self.cache.check_side(side)

    def original_size(self, sample: int) -> tuple[int, int]:
        """The height and width of the original, in pixels."""
        return self.cache.original_size(int(self._rows[sample]))

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


def _rows(paths: bytes, cache: CacheStore) -> range | np.ndarray[Any, np.dtype[np.int64]]:
    """Where a cache has the samples of these paths, each ended by a zero byte."""
    places = cache.index.places(paths)
    if isinstance(places, range):
        return places
    if None in places:
        raise UsageError(_missing(paths, places, cache))
    return np.array(places, np.int64)


def _missing(paths: bytes, places: Sequence[int | None], cache: CacheStore) -> str:
    names = paths.decode().split("\0")[:-1]
    missing = [name for name, place in zip(names, places, strict=True) if place is None]
    left_out = {name: why for _, name, why in cache.manifest.skipped}
    some = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
    why = left_out.get(missing[0])
    return (
        f"the cache {cache.root!r} has no copies of {len(missing)} of {len(names)} images, {some}"
        + (f": broken when it was built ({why})" if why else "")
        + f". It was made of {cache.manifest.source[1]!r}: build it anew of the folder as it "
        "is now, or take these images out of the dataset"
    )
