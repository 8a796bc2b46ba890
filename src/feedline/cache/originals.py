"""The originals of a finished cache, numbered and named as the cache has them.

Guarantees: names, labels and numbers are the cache's; an original that was changed since is an
error that names it, if its source can tell; originals that are missing are all named beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.records import kept_name
from feedline.cache.source import Source, Stamp, evenly
from feedline.errors import DatasetError, ImageError
from feedline.images.decode import DEFAULT_MAX_PIXELS
from feedline.plan.row import Field
from feedline.stores.cache_index import CacheIndex, checksum
from feedline.stores.cache_layout import Level, Manifest
from feedline.stores.store import Pixels

__all__ = ["Originals"]

_NAMED = 5


class Originals:
    """What some copies of a level are made of again. Pickled and sent to every worker.

    Args:
        source: what the cache was made of, wherever it lies now.
        manifest: of the cache.
        level: of which copies are made.
        index: of the cache.
        checksums: of the copies that are made, by the keys of their samples; 0 if it is not known.

    Raises:
        DatasetError: originals are missing; names them.
    """

    def __init__(
        self,
        source: Source,
        manifest: Manifest,
        level: Level,
        index: CacheIndex,
        checksums: Mapping[int, int],
    ) -> None:
        self._source, self._manifest, self._level, self._index = source, manifest, level, index
        self._checksums = checksums
        self._left_out = {key: name for key, name, _ in manifest.skipped}
        self.kind, self.where = manifest.source
        self.classes = manifest.classes
        self.label_field = Field("label", *manifest.label)
        self._numbers = self._found(checksums)

    def _found(self, keys: Collection[int]) -> dict[int, int]:
        """The numbers that samples have in the source now, by their keys."""
        names = {key: self.name(key) for key in keys}
        count = len(self._source)
        if all(key < count and self._called(key) == name for key, name in names.items()):
            return {key: key for key in keys}
        places = {self._called(number): number for number in range(count)}
        missing = [name for name in names.values() if name not in places]
        if missing:
            some = ", ".join(map(repr, missing[:_NAMED]))
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise DatasetError(
                f"{self._source.where!r} lacks {len(missing)} of the {len(names)} images that the "
                f"repair needs: {some}{more}",
                hint="restore them, or name the folder where they are now",
                fix={"source": "DIR"},
            )
        return {key: places[name] for key, name in names.items()}

    def _called(self, number: int) -> str:
        return kept_name(self._source.name(number)).decode()

    def __len__(self) -> int:
        return self._manifest.samples_in_source

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Take note of which images will be read next."""
        self._source.ahead([self._numbers[key] for key in samples if key in self._numbers])

    def read(self, sample: int) -> bytes | Pixels:
        """An original, encoded or as pixels."""
        if sample not in self._numbers:
            raise ImageError("its copy was sound a moment ago, and is not now: repair once more")
        number = self._numbers[sample]
        image = self._source.read(number)
        had, has = self.stamp(sample), self._source.stamp(number)
        if had and has and had != has:  # a moved file, perhaps: the copy tells
            self._check_unchanged(sample, image)
        return image

    def _check_unchanged(self, sample: int, image: bytes | Pixels) -> None:
        encoder = LevelEncoder(
            [self._level], exif=self._manifest.exif, max_pixels=DEFAULT_MAX_PIXELS
        )
        (copy,) = encoder.copies(image).images
        label = np.asarray(self.label(sample), self.label_field.dtype)
        if checksum(copy, sample, label) != self._checksums[sample]:
            raise ImageError(
                f"it was changed in {self._source.where!r} since the cache was made; "
                "`feedline cache build` brings the cache up to date"
            )

    def _row(self, key: int) -> int | None:
        """Where a sample is in the cache; None for one that was left out."""
        row = int(np.searchsorted(self._index.keys, key))
        return row if row < len(self._index.keys) and self._index.keys[row] == key else None

    def label(self, sample: int) -> Any:
        """The label in the cache."""
        return self._index.labels[self._row(sample)]

    def name(self, sample: int) -> str:
        """The name in the cache."""
        row = self._row(sample)
        return self._left_out.get(sample, "") if row is None else self._index.name(row)

    def path(self, sample: int) -> str:
        """The original's file on this machine, or ""."""
        return self._source.path(self._numbers[sample]) if sample in self._numbers else ""

    def stamp(self, sample: int) -> Stamp:
        """The stamp in the cache."""
        row = self._row(sample)
        return 0 if row is None else int(self._index.stamps[row])
