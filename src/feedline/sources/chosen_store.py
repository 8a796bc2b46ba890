"""Selected samples of a store, in their own order.

Guarantees: sample k is the store's sample `numbers[k]`, with its image, label and name, or its
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from feedline.sources.store import Pixels, SampleStore

__all__ = ["ChosenStore", "Numbers"]

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class ChosenStore:
    """Selected samples of a store; a `SampleStore`.

    Args:
        store: store of all samples.
        numbers: int64 (n), sample indices in order.
    """

    def __init__(self, store: SampleStore, numbers: Numbers) -> None:
        self.store, self.numbers = store, numbers
        self.label_field = store.label_field

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """Labels of all samples, (n, ...)."""
        store: Any = self.store
        labels: np.ndarray[Any, Any] = np.asarray(store.labels)[self.numbers]
        return labels

    def open(self) -> None:
        """Acquire what a process needs to read."""
        self.store.open()

    def close(self) -> None:
        """Release it."""
        self.store.close()

    def prepare(self, samples: Sequence[int], side: int) -> None:
        """Prepare for images that are about to be read: fetch remote ones together."""
        prepare = getattr(self.store, "prepare", None)
        if prepare is not None:
            prepare(self.numbers[np.asarray(samples, np.int64)].tolist(), side)

    def anew(self, sample: int, refused: bytes) -> bytes | None:
        """Fetch a remote image again whose bytes cannot be decoded; None if unchanged."""
        anew = getattr(self.store, "anew", None)
        return None if anew is None else anew(self._number(sample), refused)

    def read(self, sample: int, side: int) -> bytes | Pixels:
        """Read an image, like the store."""
        return self.store.read(self._number(sample), side)

    def original_size(self, sample: int) -> tuple[int, int] | None:
        """Height and width, in pixels, of the original of a copy; None if `read` returns the
        original.
        """
        return self.store.original_size(self._number(sample))

    def check_side(self, side: int) -> str:
        """Form in which images are read for this side, as text; "" for the originals."""
        return self.store.check_side(side)

    def label(self, sample: int) -> Any:
        """Label of a sample."""
        return self.store.label(self._number(sample))

    def name(self, sample: int) -> str:
        """The store's name of the sample."""
        return self.store.name(self._number(sample))

    def fingerprint(self) -> str:
        """Short hash of the store's own and of the selected samples."""
        digest = hashlib.blake2b(f"{self.store.fingerprint()}\n".encode(), digest_size=8)
        digest.update(self.numbers.astype("<i8").data)
        return digest.hexdigest()

    def form(self) -> str:
        """Form in which the store holds the images."""
        return self.store.form()

    def _number(self, sample: int) -> int:
        if not 0 <= sample < len(self.numbers):
            raise IndexError(
                f"sample index {sample} is out of range for {len(self.numbers)} samples"
            )
        return int(self.numbers[sample])

    def __repr__(self) -> str:
        return f"{len(self.numbers)} of {self.store!r}"
