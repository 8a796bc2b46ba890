"""A cache as a store: for each phase the smallest resolution that serves its image size.

Guarantees: those of `cache_level`; crops are drawn on the original's size, so a seed gives the same
crop at every resolution; a pickle contains the location, and workers share one copy of everything.

Relies on: a `CacheLocation`, local or remote.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.cache_index import load_entries
from feedline.sources.cache_layout import Level, Manifest
from feedline.sources.cache_level import LevelReader
from feedline.sources.cache_location import CacheLocation
from feedline.sources.store import Pixels

__all__ = ["CacheStore"]


class CacheStore:
    """Images of a cache; a `SampleStore`.

    Args:
        location: location of the cache.
        enlarge: use the largest resolution even if it is smaller than required.

    Raises:
        DatasetError: it is not a cache, unfinished, damaged, unreachable or of a newer version.
        UsageError: it is at a URL, and of a format that must be local.
    """

    def __init__(self, location: CacheLocation, *, enlarge: bool = False) -> None:
        self.location = location
        self.enlarge = enlarge
        self.manifest: Manifest = location.manifest()
        self._begin()
        self.index.check_sizes(self.manifest)
        self.location.close()  # workers open it for themselves

    def _begin(self) -> None:
        dtype, shape = self.manifest.label
        self.label_field = Field("label", dtype, shape)
        self.index = self.location.index(self.manifest)
        self._readers: dict[int, LevelReader] = {}  # by the side that was wanted

    @property
    def root(self) -> str:
        """Its folder or URL, for messages."""
        return str(self.location)

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def classes(self) -> list[str]:
        """Class names by index; empty if there are none."""
        return list(self.manifest.classes or ())

    def level_for(self, side: int) -> Level:
        """Smallest resolution that serves images with this shorter side in pixels.

        Raises:
            UsageError: all resolutions are smaller, and may not be enlarged.
        """
        for level in self.manifest.levels:
            if level.side >= side:
                return level
        if self.enlarge:
            return self.manifest.levels[-1]
        sides = ", ".join(str(level.side) for level in self.manifest.levels)
        raise UsageError(
            f"images of {side} px are needed, but the cache {self.root!r} has copies of {sides} px",
            hint=f"feedline cache add-size {shlex.quote(self.root)} {side}; to enlarge smaller "
            "copies",
            fix={"enlarge": True},
        )

    def check_exif(self, exif: bool) -> None:
        """Check that images were rotated as required.

        Raises:
            UsageError: they were not.
        """
        if bool(exif) != self.manifest.exif:
            made = "with" if self.manifest.exif else "without"
            raise UsageError(
                f"{exif!r} does not match the cache {self.root!r}, which was built {made} "
                "rotating images by their Exif orientation",
                argument="exif",
                hint="build another cache, or pass",
                fix={"exif": self.manifest.exif},
            )

    def reader(self, level: Level) -> LevelReader:
        """Reader of a resolution."""
        return self.location.reader(self.manifest, level, self.index)

    def open(self) -> None:
        """Do nothing: files are opened at the first read."""

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()
        self.location.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """Prepare for images that are about to be read: fetch remote ones together."""
        self._reader_for(side).prepare(samples)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """Read a copy of an image that is large enough for this shorter side in pixels."""
        reader = self._reader_for(side)
        if not 0 <= sample < len(self):
            raise IndexError(f"sample index {sample} is out of range for {len(self)} samples")
        return reader.read(sample)

    def _reader_for(self, side: int) -> LevelReader:
        reader = self._readers.get(side)
        if reader is None:
            reader = self._readers[side] = self.reader(self.level_for(side))
        return reader

    def check_side(self, side: int) -> str:
        """Resolution that serves images of this side.

        Raises:
            DatasetError: its index is damaged: an error of all samples, so none is skipped.
            UsageError: there is none.
        """
        level = self.level_for(side)
        load_entries(self.index.root, level, len(self))
        return str(level)

    def original_size(self, sample: int) -> tuple[int, int]:
        """Height and width of the original, in pixels."""
        height, width = self.index.sizes[sample].tolist()
        return height, width

    def label(self, sample: int) -> Any:
        """Label of a sample."""
        return self.index.labels[sample]

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """All labels (n, ...), memory-mapped: no image is read."""
        return self.index.labels

    def name(self, sample: int) -> str:
        """Name of the sample in the source."""
        return self.index.name(sample)

    def fingerprint(self) -> str:
        """Short hash of the names, their order and the labels."""
        return self.manifest.fingerprint

    def form(self) -> str:
        """Resolutions, as text."""
        return "copies of " + ", ".join(map(str, self.manifest.levels))

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "enlarge": self.enlarge, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self.location.still_holds(self.manifest):
            raise DatasetError(
                f"the cache {self.root!r} was rebuilt after this dataset was created",
                hint="create the dataset again",
            )
        self._begin()
