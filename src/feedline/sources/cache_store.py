"""A cache as a store: for each phase the smallest resolution that serves its image size.

Guarantees: crops are drawn on the original's size, so a seed gives the same crop at every
resolution; a pickle contains the location, and workers share one copy of everything. `CachedFiles`
reads a cache's copies for a dataset of files, found by their paths below the folder that both were
made of; a file without a copy raises an error when the two are joined. A broken file that the cache
skipped is read itself, with the same result or error as without the cache.

Relies on: `cache_formats` for the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.cache_format_base import LevelReader
from feedline.sources.cache_formats import cache_format
from feedline.sources.folder import FileStore
from feedline.sources.manifest import CacheIndex, Level, Manifest, read_manifest
from feedline.sources.store import (
    Numbers,
    Pixels,
    RawCopies,
    SampleStore,
    SelectedStore,
    first_names,
    printable,
)
from feedline.text import shell_command

_SKIPPED = -1


class CacheLocation:
    """A cache in a local folder. Sent to workers; its text is the user's name for it."""

    is_local = True

    def __init__(self, root: str) -> None:
        self.root = root

    def __str__(self) -> str:
        return self.root

    def manifest(self) -> Manifest:
        """Read the current manifest; raises a DatasetError."""
        manifest = read_manifest(self.root)
        cache_format(manifest.format)  # a DatasetError if it is unknown
        return manifest

    def still_has(self, manifest: Manifest) -> bool:
        """Return True if it is the same cache, possibly with more resolutions."""
        return self.manifest().extends(manifest)

    def index(self, manifest: Manifest) -> CacheIndex:
        """Columns of the cache; raises their errors."""
        return CacheIndex(self.root, manifest)

    def reader(self, index: CacheIndex, level: Level) -> LevelReader:
        """Reader of one of its resolutions; raises DatasetError."""
        return cache_format(index.manifest.format).reader(index, level)

    def describe(self) -> str:
        """Source of the copies, and the folder where fetched ones are stored."""
        return self.root

    def close(self) -> None:
        """Close all connections; it may be used again."""


class CacheStore(SampleStore):
    """Images of a cache; with `enlarge` of the largest resolution even if it is too small."""

    def __init__(self, location: CacheLocation, *, enlarge: bool = False) -> None:
        self.location = location
        self.enlarge = enlarge
        self.manifest: Manifest = location.manifest()
        self._open_index()
        self.index.check_sizes()
        self.location.close()  # workers open it for themselves

    def _open_index(self) -> None:
        self.label_field = Field("label", *self.manifest.label)
        self.index = self.location.index(self.manifest)
        self.labels = self.index.labels  # memory-mapped
        self._readers: dict[int, LevelReader] = {}  # by the required side

    @property
    def root(self) -> str:
        """Folder or URL of the cache, for messages."""
        return str(self.location)

    @property
    def classes(self) -> list[str]:
        """Class names by index; empty without any."""
        return list(self.manifest.classes or ())

    def level_for(self, side: int) -> Level:
        """Smallest resolution that serves images with this shorter side in pixels."""
        for level in self.manifest.levels:
            if level.side >= side:
                return level
        if self.enlarge:
            return self.manifest.levels[-1]
        sides = ", ".join(str(level.side) for level in self.manifest.levels)
        raise UsageError(
            f"images of {side} px are needed, but the cache {self.root!r} has copies of {sides} px",
            hint=f"feedline cache add-size {shell_command(self.root)} {side}; to enlarge smaller "
            "copies",
            fix={"enlarge": True},
        )

    def check_exif(self, exif: bool) -> None:
        """Raise a UsageError unless images were rotated as required."""
        if bool(exif) != self.manifest.exif:
            how = "with" if self.manifest.exif else "without"
            raise UsageError(
                f"{exif!r} does not match the cache {self.root!r}, which was built {how} "
                "rotating images by their Exif orientation",
                argument="exif",
                hint="build another cache, or pass",
                fix={"exif": self.manifest.exif},
            )

    def reader(self, level: Level) -> LevelReader:
        return self.location.reader(self.index, level)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self.location.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        self._reader_for(side).prepare(samples)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        return self._reader_for(side).read(sample)

    def raw_copies(self, samples: Numbers, side: int) -> RawCopies | None:
        return self._reader_for(side).raw_copies(samples)

    def _reader_for(self, side: int) -> LevelReader:
        reader = self._readers.get(side)
        if reader is None:
            reader = self._readers[side] = self.reader(self.level_for(side))
        return reader

    def describe_resolution(self, side: int) -> str:
        """Resolution that serves images of this side. A damaged index is a DatasetError, an error
        of all samples, so none is skipped.
        """
        return str(self._reader_for(side).level)

    def original_size(self, sample: int) -> tuple[int, int]:
        height, width = self.index.sizes[sample].tolist()
        return height, width

    def name(self, sample: int) -> str:
        return self.index.name(sample)

    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    def describe_copies(self) -> str:
        return "copies of " + ", ".join(map(str, self.manifest.levels))

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "enlarge": self.enlarge, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self.location.still_has(self.manifest):
            raise DatasetError(
                f"the cache {self.root!r} was rebuilt after this dataset was created",
                hint="create the dataset again",
            )
        self._open_index()


class CachedFiles(SampleStore):
    """Files whose copies a cache has by their paths below the dataset's folder; a `SampleStore`."""

    def __init__(self, files: FileStore, cache: CacheStore) -> None:
        self.files, self.cache = files, cache
        self.labels, self.label_field = files.labels, files.label_field
        self._rows = _rows(printable(files.paths.blob.tobytes()), cache)

    def close(self) -> None:
        self.cache.close()

    def reload(self, sample: int, refused: bytes) -> bytes | None:
        return self.files.reload(sample, refused) if self._row(sample) is None else None

    def prepare(self, samples: Sequence[int], side: int) -> None:
        rows = (int(self._rows[sample]) for sample in samples)
        self.cache.prepare([row for row in rows if row != _SKIPPED], side)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        row = self._row(sample)
        return self.files.read(sample, side) if row is None else self.cache.read(row, side)

    def raw_copies(self, samples: Numbers, side: int) -> RawCopies | None:
        rows = np.array([self._rows[sample] for sample in samples.tolist()], np.int64)
        copies = self.cache.raw_copies(rows, side)
        return copies and copies._replace(labels=self.labels[samples])

    def describe_resolution(self, side: int) -> str:
        return self.cache.describe_resolution(side)

    def original_size(self, sample: int) -> tuple[int, int] | None:
        row = self._row(sample)
        return None if row is None else self.cache.original_size(row)

    def name(self, sample: int) -> str:
        return self.files.name(sample)

    def fingerprint(self) -> str:
        return self.files.fingerprint()

    def describe_copies(self) -> str:
        return self.cache.describe_copies()

    def _row(self, sample: int) -> int | None:
        """Index of a file in the cache; None: it was skipped. An ImageError if copies are rotated
        by their Exif orientation, which skipped files are not.
        """
        row = int(self._rows[sample])
        if row == _SKIPPED:
            if not self.cache.manifest.exif:
                return None
            name = self.files.paths.path(sample)
            why = next(why for _, skipped, why in self.cache.manifest.skipped if skipped == name)
            raise ImageError(f"it was skipped in the cache {self.cache.root!r}: {why}")
        return row


def cache_within(store: object) -> CacheStore | None:
    """Cache of a store's images; None for originals."""
    if isinstance(store, SelectedStore):
        store = store.store
    if isinstance(store, CachedFiles):
        store = store.cache
    return store if isinstance(store, CacheStore) else None


def _rows(paths: bytes, cache: CacheStore) -> range | Numbers:
    """Indices of these paths in a cache, each ended by a zero byte; _SKIPPED for skipped ones."""
    places = cache.index.places(paths)
    if isinstance(places, range):
        return places
    skipped = {name for _, name, _ in cache.manifest.skipped}
    names = paths.decode().split("\0")[:-1]
    missing = [
        name
        for name, place in zip(names, places, strict=True)
        if place is None and name not in skipped
    ]
    if missing:
        raise UsageError(
            f"the cache {cache.root!r} has no copies of {len(missing)} of {len(names)} images, "
            f"{first_names(missing)}. It was made from {cache.manifest.source[1]!r}",
            hint="build it again from the current folder, or remove these images from the dataset",
        )
    return np.array([_SKIPPED if place is None else place for place in places], np.int64)
