"""Base of stores of originals, and the hash of images without names.

Guarantees: none of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from feedline.sources.path_table import LabelledPaths

Paths = TypeVar("Paths", bound=LabelledPaths)

__all__ = ["NamedOriginals", "Originals", "Paths", "hash_of_images"]

_HASHED_IMAGES = 64


class Originals:
    """Methods of a `SampleStore` that returns original images: there are no copies and no sizes
    of them.

    Resources are opened at the first read, so that an error has a sample.
    """

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def original_size(self, sample: int) -> None:
        """None: `read` returns the original."""

    def check_side(self, side: int) -> str:
        """ "": originals."""
        return ""

    def form(self) -> str:
        """ "": originals."""
        return ""


class NamedOriginals(Originals, Generic[Paths]):
    """Store of originals whose names and labels are in arrays."""

    paths: Paths
    """Names and labels of the samples."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """Labels of all samples, (n, ...)."""
        return self.paths.labels

    def label(self, sample: int) -> Any:
        """Label of a sample, a number or an array."""
        return self.paths.labels[sample]

    def fingerprint(self) -> str:
        """Short hash of the names, their order and the labels; reads no images."""
        return self.paths.fingerprint()


def hash_of_images(about: str, labels: np.ndarray[Any, Any], image: Callable[[int], bytes]) -> str:
    """Short hash of a text, all labels, and 64 images spread evenly over the dataset.

    Args:
        about: other properties that distinguish datasets.
        labels: labels of all images, (n, ...).
        image: returns the bytes that represent one.
    """
    digest = hashlib.sha256(about.encode())
    digest.update(np.ascontiguousarray(labels).data)
    picked = np.linspace(0, len(labels) - 1, min(len(labels), _HASHED_IMAGES)).astype(int)
    for sample in picked.tolist():
        digest.update(image(sample))
    return digest.hexdigest()[:16]
