"""What stores of originals have in common, and the hash of images that have no names.

Guarantees: none of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from feedline.stores.path_table import LabelledPaths

Paths = TypeVar("Paths", bound=LabelledPaths)

__all__ = ["NamedOriginals", "Originals", "Paths", "hash_of_images"]

_HASHED_IMAGES = 64


class Originals:
    """Of a `SampleStore` that gives images as they are: there are no copies, and no sizes of them.

    What it opens, it opens when it reads first, so that an error has a sample.
    """

    def open(self) -> None:
        """Nothing yet."""

    def close(self) -> None:
        """Nothing that is not given back by itself."""

    def original_size(self, sample: int) -> None:
        """None: what is read is the original."""

    def check_side(self, side: int) -> str:
        """Nothing: the originals."""
        return ""

    def form(self) -> str:
        """Nothing: the originals."""
        return ""


class NamedOriginals(Originals, Generic[Paths]):
    """Of a store of originals whose names and labels are in arrays."""

    paths: Paths
    """The samples' names and labels."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """Of all samples, (n, ...)."""
        return self.paths.labels

    def label(self, sample: int) -> Any:
        """The label of a sample, a number or an array of some."""
        return self.paths.labels[sample]

    def fingerprint(self) -> str:
        """A short hash of the names, their order and the labels; reads no images."""
        return self.paths.fingerprint()


def hash_of_images(about: str, labels: np.ndarray[Any, Any], image: Callable[[int], bytes]) -> str:
    """A short hash of a text, all labels, and 64 images spread evenly over the set.

    Args:
        about: what else differs where the set does.
        labels: of all images, (n, ...).
        image: the bytes that stand for one.
    """
    digest = hashlib.sha256(about.encode())
    digest.update(np.ascontiguousarray(labels).data)
    picked = np.linspace(0, len(labels) - 1, min(len(labels), _HASHED_IMAGES)).astype(int)
    for sample in picked.tolist():
        digest.update(image(sample))
    return digest.hexdigest()[:16]
