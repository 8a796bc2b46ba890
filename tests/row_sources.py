"""Tiny sources and a dataset for the tests. They pickle, and a row is a pure function of its item.

Relies on: no import of torch, which spawned workers would load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.engine.load_samples import Row
from feedline.order.batch_spec import Field, Item


def row_pixels(item: Item) -> NDArray[np.uint8]:
    """Pixels of `Rows` for an item, shape (size, size, 3); they depend on every bit of the item."""
    text = f"{item.sample},{item.image_size},{item.seed},{item.strength}"
    word = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") | 1
    size = item.image_size
    ramp = np.arange(1, size * size * 3 + 1, dtype=np.uint64) * np.uint64(word)
    return (ramp >> np.uint64(56)).astype(np.uint8).reshape(size, size, 3)


class Rows:
    """`length` samples; the label of a sample is its number."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fields(self, image_size: int) -> tuple[Field, ...]:
        return Field("image", "uint8", (image_size, image_size, 3)), Field("label", "int64", ())

    def load(self, item: Item, row: Row) -> None:
        row[0][...] = row_pixels(item)
        row[1][...] = item.sample

    def name(self, sample: int) -> str:
        return f"row-{sample}"

    def fingerprint(self) -> str:
        return f"rows-{self.length}"


class Breaking(Rows):
    """Like `Rows`, but the samples in `broken` raise ValueError."""

    def __init__(self, length: int, broken: Collection[int]) -> None:
        super().__init__(length)
        self.broken = frozenset(broken)

    def load(self, item: Item, row: Row) -> None:
        row[0][...] = 99  # leftovers of a failing row must not be used as pixels
        if item.sample in self.broken:
            raise ValueError(f"sample {item.sample} is broken on purpose")
        super().load(item, row)


class Numbers:
    """A map-style dataset: samples of different lengths, of which each knows its number."""

    def __init__(self, fatal: int | None = None) -> None:
        self.fatal = fatal

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == self.fatal:
            raise OSError(f"sample {number} is on a bad sector")
        return {"number": number, "pixels": np.full((number + 1, 50), number)}


def lists(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples
