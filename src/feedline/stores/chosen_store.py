"""Some of the samples of a store, in an order of their own.

Guarantees: sample k is that of the store whose number stands at place k, with its image, label and
name, or its error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from feedline.stores.store import Pixels, SampleStore

__all__ = ["ChosenStore", "Numbers"]

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class ChosenStore:
    """Some samples of a store; a `SampleStore`.

    Args:
        store: has them, and others.
        numbers: int64 (n), which of its samples, in order.
    """

    def __init__(self, store: SampleStore, numbers: Numbers) -> None:
        self.store, self.numbers = store, numbers
        self.label_field = store.label_field

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """Of all samples, (n, ...)."""
        store: Any = self.store
        labels: np.ndarray[Any, Any] = np.asarray(store.labels)[self.numbers]
        return labels

    def open(self) -> None:
        """Take what a process needs to read."""
        self.store.open()

    def close(self) -> None:
        """Give that back."""
        self.store.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """These are about to be read: fetch together what lies on another machine."""
        prepare = getattr(self.store, "prepare", None)
        if prepare is not None:
            prepare(self.numbers[np.asarray(samples, np.int64)].tolist(), side)

    def anew(self, sample: int, refused: bytes) -> bytes | None:
        """What lies far away now in the place of bytes that cannot be decoded; None for nothing."""
        anew = getattr(self.store, "anew", None)
        return None if anew is None else anew(self._number(sample), refused)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """An image, as the store gives it."""
        return self.store.read(self._number(sample), side)

    def original_size(self, sample: int) -> tuple[int, int] | None:
        """The height and width, in pixels, of what `read` gives a copy of; None: of itself."""
        return self.store.original_size(self._number(sample))

    def check_side(self, side: int) -> str:
        """In which form images are read for this side, in words; "" for the originals."""
        return self.store.check_side(side)

    def label(self, sample: int) -> Any:
        """A sample's label."""
        return self.store.label(self._number(sample))

    def name(self, sample: int) -> str:
        """What the store calls the sample."""
        return self.store.name(self._number(sample))

    def fingerprint(self) -> str:
        """A short hash of the store's own and of which samples these are."""
        digest = hashlib.blake2b(f"{self.store.fingerprint()}\n".encode(), digest_size=8)
        digest.update(self.numbers.astype("<i8").data)
        return digest.hexdigest()

    def form(self) -> str:
        """In which form the store holds the images."""
        return self.store.form()

    def _number(self, sample: int) -> int:
        if not 0 <= sample < len(self.numbers):
            raise IndexError(f"sample {sample} of {len(self.numbers)}")
        return int(self.numbers[sample])

    def __repr__(self) -> str:
        return f"{len(self.numbers)} of {self.store!r}"
