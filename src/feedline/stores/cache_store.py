"""A cache as a store: for each phase the smallest level that serves its image size.

Guarantees: those of `cache_level`; crops are drawn on the original's size, so that a seed gives the
same crop on every level; a pickle holds where it lies, and workers share one copy of everything.

Relies on: a `CacheLocation` for where it lies, on a disk of this machine or elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.plan.row import Field
from feedline.stores.cache_index import load_entries
from feedline.stores.cache_layout import Level, Manifest
from feedline.stores.cache_level import LevelReader
from feedline.stores.cache_location import CacheLocation
from feedline.stores.store import Pixels

__all__ = ["CacheStore"]


class CacheStore:
    """The images of a cache; a `SampleStore`.

    Args:
        location: where it lies.
        enlarge: use the largest level also where a smaller image than wanted is all there is.

    Raises:
        DatasetError: it is no cache, unfinished, damaged, out of reach or of a newer version.
        UsageError: it is at a URL, and of a format that is read from a disk only.
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
        """Its folder or URL, to print it."""
        return str(self.location)

    def __len__(self) -> int:
        return self.manifest.samples

    @property
    def classes(self) -> list[str]:
        """The class names, by class number; empty where there are none."""
        return list(self.manifest.classes or ())

    def level_for(self, side: int) -> Level:
        """The smallest level that serves images wanted at a shorter side of so many pixels.

        Raises:
            UsageError: all levels are smaller, and may not be enlarged.
        """
        for level in self.manifest.levels:
            if level.side >= side:
                return level
        if self.enlarge:
            return self.manifest.levels[-1]
        sides = ", ".join(str(level.side) for level in self.manifest.levels)
        raise UsageError(
            f"images of {side} px are needed, and the copies of the cache {self.root!r} have "
            f"{sides} px",
            hint=f"add larger copies, `feedline cache add-size {self.root} {side}`, or, in Python, "
            "enlarge smaller ones with enlarge=True",
        )

    def check_exif(self, exif: bool) -> None:
        """See whether images were turned upright as they are wanted.

        Raises:
            UsageError: they were not.
        """
        if bool(exif) != self.manifest.exif:
            made = "with" if self.manifest.exif else "without"
            raise UsageError(
                f"exif={exif!r} was asked for, and the cache {self.root!r} was built {made} "
                f"turning images upright; pass exif={self.manifest.exif}, or build another cache"
            )

    def reader(self, level: Level) -> LevelReader:
        """What reads a level."""
        return self.location.reader(self.manifest, level, self.index)

    def open(self) -> None:
        """Nothing to do: files are opened when an image of theirs is read."""

    def close(self) -> None:
        """Let go of what was opened."""
        for reader in self._readers.values():
            reader.close()
        self.location.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """These are about to be read: fetch together what lies on another machine."""
        self._reader_for(side).prepare(samples)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """A copy of an image that is large enough for a shorter side of so many pixels."""
        reader = self._reader_for(side)
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        return reader.read(sample)

    def _reader_for(self, side: int) -> LevelReader:
        reader = self._readers.get(side)
        if reader is None:
            reader = self._readers[side] = self.reader(self.level_for(side))
        return reader

    def check_side(self, side: int) -> str:
        """The level that serves images wanted at this side.

        Raises:
            DatasetError: its index is damaged: an error of all samples, which none is skipped for.
            UsageError: there is none.
        """
        level = self.level_for(side)
        load_entries(self.index.root, level, len(self))
        return str(level)

    def original_size(self, sample: int) -> tuple[int, int]:
        """The height and width of the original, in pixels."""
        height, width = self.index.sizes[sample].tolist()
        return height, width

    def label(self, sample: int) -> Any:
        """The label of a sample."""
        return self.index.labels[sample]

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """All labels (n, ...), mapped: no image is read for them."""
        return self.index.labels

    def name(self, sample: int) -> str:
        """What the sample is called in the source."""
        return self.index.name(sample)

    def fingerprint(self) -> str:
        """A short hash of the names, their order and the labels."""
        return self.manifest.fingerprint

    def form(self) -> str:
        """The levels, in words."""
        return "copies of " + ", ".join(map(str, self.manifest.levels))

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "enlarge": self.enlarge, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self.location.still_holds(self.manifest):
            raise DatasetError(
                f"the cache {self.root!r} was built anew since the dataset was made of it; make "
                "the dataset once more"
            )
        self._begin()
