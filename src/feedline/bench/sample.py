"""Some images of a folder, as a source that repeats them almost without end.

Guarantees: the crops of an image differ each time it comes; what is sent to a process is as small
as the sample, however large the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.images.folder import ImageFolder
from feedline.plan.row import Field, Item

__all__ = ["Sample"]

_ROWS = 1 << 20  # an epoch so long that its end, which is not to be measured, is not met


class Sample:
    """Some images of a folder, over and over, in a given order. A `Source`; pickles.

    Args:
        folder: the images.
        numbers: sample numbers in the folder, at least one.
    """

    def __init__(self, folder: ImageFolder, numbers: Sequence[int]) -> None:
        self.folder = folder
        self.numbers = list(numbers)

    def __len__(self) -> int:
        return max(_ROWS, len(self.numbers))

    def _number(self, sample: int) -> int:
        return self.numbers[sample % len(self.numbers)]

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """The arrays of a row at this image size, in pixels."""
        return self.folder.fields(image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row as the folder does."""
        self.folder.load(item._replace(sample=self._number(item.sample)), row)

    def name(self, sample: int) -> str:
        """The path of a sample's file, to print it."""
        return self.folder.name(self._number(sample))

    def fingerprint(self) -> str:
        """A short hash of the folder and of which images these are."""
        digest = hashlib.blake2b(self.folder.fingerprint().encode(), digest_size=8)
        digest.update(np.asarray(self.numbers, "<i8").tobytes())
        return digest.hexdigest()
