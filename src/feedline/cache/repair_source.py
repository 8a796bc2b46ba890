"""Originals of a finished cache, numbered and named as in the cache, for a repair.

Guarantees: names, labels and numbers are the cache's. An original that has changed raises an error
that names it, if its source has stamps. Missing originals are all named before the repair starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.records import encode_name
from feedline.cache.source import CacheSource, Stamp, spread_evenly
from feedline.errors import DatasetError, ImageError
from feedline.images.codecs import DEFAULT_MAX_PIXELS
from feedline.order.batch_spec import Field
from feedline.sources.cache_index import CacheIndex, checksum
from feedline.sources.cache_layout import Level, Manifest
from feedline.sources.store import Pixels

__all__ = ["RepairSource"]

_MAX_NAMED = 5


class RepairSource:
    """Source for rebuilding some copies of a resolution. Pickled and sent to every worker.

    Args:
        source: current source of the cache.
        manifest: manifest of the cache.
        level: resolution that is rebuilt.
        index: index of the cache.
        checksums: checksums of the copies by the keys of their samples; 0 if unknown.

    Raises:
        DatasetError: originals are missing; names them.
    """

    def __init__(
        self,
        source: CacheSource,
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
        """Return the samples' current numbers in the source by their keys."""
        names = {key: self.name(key) for key in keys}
        count = len(self._source)
        if all(key < count and self._source_name(key) == name for key, name in names.items()):
            return {key: key for key in keys}
        places = {self._source_name(number): number for number in range(count)}
        missing = [name for name in names.values() if name not in places]
        if missing:
            names_text = ", ".join(map(repr, missing[:_MAX_NAMED]))
            more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
            raise DatasetError(
                f"{self._source.where!r} lacks {len(missing)} of {len(names)} images that the "
                f"repair needs: {names_text}{more}",
                hint="restore them, or pass the folder that holds them now",
                fix={"source": "DIR"},
            )
        return {key: places[name] for key, name in names.items()}

    def _source_name(self, number: int) -> str:
        return encode_name(self._source.name(number)).decode()

    def __len__(self) -> int:
        return self._manifest.samples_in_source

    def pick(self, count: int) -> list[int]:
        """Return evenly spread samples."""
        return spread_evenly(len(self), count)

    def prefetch(self, samples: Iterable[int]) -> None:
        """Prefetch the originals of samples."""
        self._source.prefetch([self._numbers[key] for key in samples if key in self._numbers])

    def read(self, sample: int) -> bytes | Pixels:
        """Return an original, encoded or as pixels."""
        if sample not in self._numbers:
            raise ImageError("its copy was damaged during the repair: run the repair again")
        number = self._numbers[sample]
        image = self._source.read(number)
        had, has = self.stamp(sample), self._source.stamp(number)
        if had and has and had != has:  # a moved file may have another stamp: compare its copy
            self._check_unchanged(sample, image)
        return image

    def _check_unchanged(self, sample: int, image: bytes | Pixels) -> None:
        encoder = LevelEncoder(
            [self._level], exif=self._manifest.exif, max_pixels=DEFAULT_MAX_PIXELS
        )
        (copy,) = encoder.make_copies(image).images
        label = np.asarray(self.label(sample), self.label_field.dtype)
        if checksum(copy, sample, label) != self._checksums[sample]:
            raise ImageError(
                f"it has changed in {self._source.where!r} since the cache was built: update the "
                "cache with `feedline cache build`"
            )

    def _row(self, key: int) -> int | None:
        """Return the row of a sample in the cache; None if it was skipped."""
        row = int(np.searchsorted(self._index.keys, key))
        return row if row < len(self._index.keys) and self._index.keys[row] == key else None

    def label(self, sample: int) -> Any:
        """Return the label in the cache."""
        return self._index.labels[self._row(sample)]

    def name(self, sample: int) -> str:
        """Return the name in the cache."""
        row = self._row(sample)
        return self._left_out.get(sample, "") if row is None else self._index.name(row)

    def path(self, sample: int) -> str:
        """Return the path of the original's local file, or ""."""
        return self._source.path(self._numbers[sample]) if sample in self._numbers else ""

    def stamp(self, sample: int) -> Stamp:
        """Return the stamp in the cache."""
        row = self._row(sample)
        return 0 if row is None else int(self._index.stamps[row])
