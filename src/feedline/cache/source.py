"""What a cache is made of: images, labels and names, wherever they come from.

Guarantees: none of its own; each kind of source says what it guarantees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import xxhash

from feedline.plan.row import Field
from feedline.stores.store import Pixels

__all__ = ["Source", "Stamp", "evenly", "stamp_of"]

Stamp: TypeAlias = int


class Source(Protocol):
    """Numbered images with their labels and names. Pickled once and sent to every worker."""

    @property
    def kind(self) -> str:
        """In a word, for the manifest."""
        ...

    @property
    def where(self) -> str:
        """Its path, or what it is called."""
        ...

    @property
    def classes(self) -> Sequence[str] | None:
        """The names of the classes by number; None where there are none."""
        ...

    @property
    def label_field(self) -> Field:
        """The dtype and shape of one label, under the name "label"."""
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def some(self, count: int) -> list[int]:
        """About so many samples, spread over all, that are cheap to read one after the other."""
        ...

    def ahead(self, samples: Iterable[int]) -> None:
        """Take note of which images will be read next, in this order, to begin with them."""
        ...

    def read(self, sample: int) -> bytes | Pixels:
        """An image, encoded or as uint8 (height, width, 3), RGB.

        Raises:
            ImageError: it cannot be read; the message does not name it.
            DatasetError: what holds all images is out of reach.
        """
        ...

    def label(self, sample: int) -> Any:
        """A number, or an array of numbers, that fits `label_field`."""
        ...

    def name(self, sample: int) -> str:
        """What the sample is called, wherever the source lies: unlike any other's name."""
        ...

    def path(self, sample: int) -> str:
        """The file on this machine that holds the sample; "" where there is none to be named."""
        ...

    def stamp(self, sample: int) -> Stamp:
        """64 bits that change when the sample does; 0 where that cannot be seen."""
        ...


def evenly(samples: int, count: int) -> list[int]:
    """So many of the numbers of some samples, or all of them, evenly spread."""
    picked = np.linspace(0, samples - 1, min(samples, count)).astype(int)
    numbers: list[int] = np.unique(picked).tolist()
    return numbers


def stamp_of(*numbers: int) -> Stamp:
    """A stamp of some numbers."""
    return xxhash.xxh3_64_intdigest(
        b"".join(n.to_bytes(16, "little", signed=True) for n in numbers)
    )
