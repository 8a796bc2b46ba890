"""The unit of a build: some samples in a row, which become one shard of every level.

Guarantees: a unit that is made twice comes out the same, to the byte, in whichever folder and on
whichever machine; its files get their names when they are whole, and its record, which says that it
is done, comes when they are on the disk for good.

Relies on: `delivery` for where the files go.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from feedline.cache.delivery import Delivery, Files
from feedline.cache.kept import Kept
from feedline.cache.level_encoder import LevelEncoder
from feedline.cache.records import Columns, kept_name
from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.cache.whole_file import disk_told
from feedline.cache.writers import WRITERS, Sample
from feedline.errors import ImageError
from feedline.images.decode import DEFAULT_MAX_PIXELS
from feedline.stores.cache_index import COLUMNS, ENTRY, checksum

__all__ = ["Made", "Units", "make_unit"]


class Made(NamedTuple):
    """A unit that was made.

    Args:
        number: its number.
        images: how many samples it has.
        files: what the builder has still to put in its place.
    """

    number: int
    images: int
    files: Files


class Units:
    """The units of a build as a dataset: reading one makes it. Needs no order and no memory.

    Args:
        source: what the images come from.
        spec: how.
        units: all of them.
        delivery: where the files go.
        kept: copies that need not be made.
    """

    def __init__(
        self,
        source: Source,
        spec: Spec,
        units: Sequence[Unit],
        delivery: Delivery,
        kept: Kept | None = None,
    ) -> None:
        self.source, self.units = source, units
        self._spec, self._delivery, self._kept = spec, delivery, kept

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, at: int) -> Made:
        """Make a unit."""
        unit = self.units[at]
        with disk_told(self._spec.root):
            files = self._delivery.deliver(
                self._spec,
                unit.number,
                lambda spec: make_unit(self.source, spec, unit, self._kept),
            )
        return Made(unit.number, unit.stop - unit.start, files)


def make_unit(source: Source, spec: Spec, unit: Unit, kept: Kept | None = None) -> Columns:
    """Make the shards of a unit, in folders that are there.

    Returns:
        what its record holds.

    Raises:
        ImageError: an image is broken, and may not be left out; names it.
    """
    encoder = LevelEncoder(spec.levels, exif=spec.exif, max_pixels=DEFAULT_MAX_PIXELS)
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "labels")}
    entries: list[list[tuple[int, int, int, int]]] = [[] for _ in spec.levels]
    names, skipped = bytearray(), []
    label_dtype = np.dtype(source.label_field.dtype)
    with ExitStack() as opened:
        writers = [
            opened.enter_context(
                WRITERS[spec.format](spec.root, level, unit.number, source.classes)
            )
            for level in spec.levels
        ]
        numbers = range(unit.start, unit.stop)
        source.ahead(each for each in numbers if not _is_there(source, spec, each, kept))
        for number in numbers:
            name, stamp = source.name(number), source.stamp(number)
            if number in spec.left_out:
                skipped.append((number, name, "left out before"))
                continue
            try:
                copies = kept.copies(name, stamp) if kept else None
                copies = copies or encoder.copies(source.read(number))
            except ImageError as error:
                if not spec.skip_broken:
                    # A finished cache has images that are not skipped later.
                    skippable = not (spec.adds or spec.repairs)
                    raise ImageError(
                        f"sample {number}, {name}, cannot be put into a cache: {error}",
                        hint="repair or remove the file, or skip broken images" * skippable,
                        fix={"on_error": "skip"} if skippable else {},
                    ) from error
                skipped.append((number, name, str(error)))
                continue
            label = np.asarray(source.label(number), label_dtype)
            sample = Sample(number, name, label, copies)
            for writer, image, rows in zip(writers, copies.images, entries, strict=True):
                first = writer.write(sample, image)
                rows.append((unit.number, first, len(image), checksum(image, number, label)))
            names += kept_name(name)
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


def _is_there(source: Source, spec: Spec, number: int, kept: Kept | None) -> bool:
    """Whether an image will not be read."""
    if number in spec.left_out:
        return True
    return kept is not None and kept.knows(source.name(number), source.stamp(number))
