"""Building a shard of each resolution from consecutive samples.

Guarantees: building a shard again gives equal bytes, in any folder and on any machine. Its files
    are written atomically, and its record, which marks it as finished, is written after they are on
    disk.

Relies on: `delivery` for the storage of the files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.atomic_write import report_disk_errors
from feedline.cache.delivery import Delivery, ShardFiles
from feedline.cache.level_encoder import LevelEncoder, ResizedCopies
from feedline.cache.records import Columns, encode_name
from feedline.cache.settings import ShardRange, Spec
from feedline.cache.source import CacheSource
from feedline.cache.writers import WRITERS, CacheSample
from feedline.errors import FeedlineError, ImageError
from feedline.images.codecs import DEFAULT_MAX_PIXELS
from feedline.sources.cache_index import COLUMNS, ENTRY, CacheIndex, checksum
from feedline.sources.cache_layout import Manifest
from feedline.sources.cache_level import reader_of

__all__ = ["BuiltShard", "ExistingCopies", "ShardDataset", "build_shard"]


class BuiltShard(NamedTuple):
    """A shard that was built.

    Args:
        number: number of the shard.
        images: number of its samples.
        files: files that the builder must still store.
    """

    number: int
    images: int
    files: ShardFiles


class ShardDataset:
    """Shards as a dataset: reading an item builds it. Needs no order and keeps nothing in memory.

    Args:
        source: source of the images.
        spec: specification of the cache.
        shards: the shards.
        delivery: storage of the files.
        existing: copies that can be reused.
    """

    def __init__(
        self,
        source: CacheSource,
        spec: Spec,
        shards: Sequence[ShardRange],
        delivery: Delivery,
        existing: ExistingCopies | None = None,
    ) -> None:
        self.source, self.shards = source, shards
        self._spec, self._delivery, self._existing = spec, delivery, existing

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, at: int) -> BuiltShard:
        """Build a shard."""
        shard = self.shards[at]
        with report_disk_errors(self._spec.root):
            files = self._delivery.deliver(
                self._spec,
                shard.number,
                lambda spec: build_shard(self.source, spec, shard, self._existing),
            )
        return BuiltShard(shard.number, shard.stop - shard.start, files)


def build_shard(
    source: CacheSource, spec: Spec, shard: ShardRange, existing: ExistingCopies | None = None
) -> Columns:
    """Build a shard of each resolution in existing folders.

    Returns:
        Columns of its record.

    Raises:
        ImageError: an image is broken and may not be skipped; names it.
    """
    encoder = LevelEncoder(spec.levels, exif=spec.exif, max_pixels=DEFAULT_MAX_PIXELS)
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "labels")}
    entries: list[list[tuple[int, int, int, int]]] = [[] for _ in spec.levels]
    names, skipped = bytearray(), []
    label_dtype = np.dtype(source.label_field.dtype)
    with ExitStack() as opened:
        writers = [
            opened.enter_context(
                WRITERS[spec.format](spec.root, level, shard.number, source.classes)
            )
            for level in spec.levels
        ]
        numbers = range(shard.start, shard.stop)
        source.prefetch(each for each in numbers if not _is_there(source, spec, each, existing))
        for number in numbers:
            name, stamp = source.name(number), source.stamp(number)
            if number in spec.skipped_before:
                skipped.append((number, name, "skipped before"))
                continue
            try:
                copies = existing.get(name, stamp) if existing else None
                copies = copies or encoder.make_copies(source.read(number))
            except ImageError as error:
                if not spec.skip_broken:
                    # A finished cache cannot skip further images.
                    skippable = not (spec.adds_level or spec.repairs_level)
                    raise ImageError(
                        f"sample {number}, {name}, cannot be cached: {error.message}",
                        hint="repair or remove the file, or skip broken images" * skippable,
                        fix={"on_error": "skip"} if skippable else {},
                    ) from error
                skipped.append((number, name, error.message))
                continue
            label = np.asarray(source.label(number), label_dtype)
            sample = CacheSample(number, name, label, copies)
            for writer, image, rows in zip(writers, copies.images, entries, strict=True):
                first = writer.write(sample, image)
                rows.append((shard.number, first, len(image), checksum(image, number, label)))
            names += encode_name(name)
            row = (number, (copies.height, copies.width), len(names), stamp)
            for column, value in zip(COLUMNS, row, strict=True):
                columns[column].append(value)
            columns["labels"].append(label)
        shards = [writer.finish() for writer in writers]
    arrays = {
        name: np.array(columns[name], dtype).reshape(-1, *shape)
        for name, (dtype, shape) in COLUMNS.items()
    }
    arrays["labels"] = np.array(columns["labels"], label_dtype).reshape(
        -1, *source.label_field.shape
    )
    arrays["names"] = np.frombuffer(bytes(names), np.uint8)
    for level, rows in zip(spec.levels, entries, strict=True):
        arrays[f"level-{level.name}"] = np.array(rows, ENTRY[0]).reshape(-1, *ENTRY[1])
    arrays["shards"] = np.array(shards, np.int64)
    arrays["skipped"] = np.frombuffer(json.dumps(skipped).encode(), np.uint8)
    return arrays


def _is_there(
    source: CacheSource, spec: Spec, number: int, existing: ExistingCopies | None
) -> bool:
    """Return True if an image need not be read."""
    if number in spec.skipped_before:
        return True
    return existing is not None and existing.has(source.name(number), source.stamp(number))


class ExistingCopies:
    """Copies of a finished cache by the names of the images.

    Args:
        root: folder of the cache.
        manifest: its manifest.
        damaged: samples with damaged copies; the others are reused regardless of their stamps.
            None: stamps decide.
    """

    def __init__(
        self, root: str, manifest: Manifest, damaged: Collection[int] | None = None
    ) -> None:
        self._damaged = damaged
        self._index = CacheIndex(root, manifest)
        self._readers = [reader_of(root, manifest, level, self._index) for level in manifest.levels]
        self._rows = {self._index.name(row): row for row in range(manifest.samples)}

    def has(self, name: str, stamp: int) -> bool:
        """Return True if an image is unchanged and has copies."""
        row = self._rows.get(name)
        if row is not None and self._damaged is not None:
            return row not in self._damaged
        return row is not None and bool(stamp) and int(self._index.stamps[row]) == stamp

    def get(self, name: str, stamp: int) -> ResizedCopies | None:
        """Return an image's copies, if it is unchanged and they still exist."""
        if not self.has(name, stamp):
            return None
        row = self._rows[name]
        try:
            images = tuple(bytes(reader.file(row)) for reader in self._readers)
        except FeedlineError:  # replaced by another shard meanwhile
            return None
        height, width = self._index.sizes[row].tolist()
        return ResizedCopies(height, width, images)

    def close(self) -> None:
        """Close all readers of this process."""
        for reader in self._readers:
            reader.close()
