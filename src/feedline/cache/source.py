"""Interface of a cache's source: images, labels and names."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import xxhash

from feedline.order.batch_spec import Field
from feedline.sources.store import Pixels

__all__ = [
    "IMAGE_NAMES",
    "LABEL_NAMES",
    "CacheSource",
    "Stamp",
    "first_existing",
    "make_stamp",
    "spread_evenly",
]


Stamp: TypeAlias = int


class CacheSource(Protocol):
    """Numbered images with labels and names. Pickled once and sent to every worker."""

    @property
    def kind(self) -> str:
        """Kind of the source, for the manifest."""
        ...

    @property
    def where(self) -> str:
        """Path, or a description."""
        ...

    @property
    def classes(self) -> Sequence[str] | None:
        """Class names by number; None if there are none."""
        ...

    @property
    def label_field(self) -> Field:
        """Dtype and shape of a label, under the name "label"."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def pick(self, count: int) -> list[int]:
        """Return about `count` samples, spread over all, that are cheap to read in sequence."""
        ...

    def prefetch(self, samples: Iterable[int]) -> None:
        """Start reading images that are needed next, in this order."""
        ...

    def read(self, sample: int) -> bytes | Pixels:
        """Return an image, encoded or as uint8 (height, width, 3), RGB.

        Raises:
            ImageError: the image cannot be read; the message does not name it.
            DatasetError: the whole source is unreachable.
        """
        ...

    def label(self, sample: int) -> Any:
        """Return a number, or an array of numbers, as described by `label_field`."""
        ...

    def name(self, sample: int) -> str:
        """Return the name of a sample, distinct and independent of the source's location."""
        ...

    def path(self, sample: int) -> str:
        """Return the path of the local file that holds the sample; "" if there is none."""
        ...

    def stamp(self, sample: int) -> Stamp:
        """Return 64 bits that change with the sample; 0 if changes are not detected."""
        ...


def spread_evenly(samples: int, count: int) -> list[int]:
    """Return `count` evenly spread numbers below `samples`, or all."""
    picked = np.linspace(0, samples - 1, min(samples, count)).astype(int)
    return [int(number) for number in np.unique(picked)]


def make_stamp(*numbers: int) -> Stamp:
    """Hash numbers to a stamp."""
    return xxhash.xxh3_64_intdigest(
        b"".join(n.to_bytes(16, "little", signed=True) for n in numbers)
    )


IMAGE_NAMES = ("image", "img", "jpg", "png")
LABEL_NAMES = ("label", "labels", "fine_label", "cls")


def first_existing(names: tuple[str, ...], there: Container[str]) -> str | None:
    """Return the first name that exists, or None."""
    return next((name for name in names if name in there), None)
