"""The images of a list that are no files of their own, as what a cache is made of.

Guarantees: the images, labels and order of the list; images are taken as they are encoded.

Relies on: a store of originals; nothing says when an image of it was changed, so all stamps are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from feedline.cache.source import Stamp, evenly
from feedline.errors import UsageError
from feedline.plan.row import Field
from feedline.stores.store import Pixels, SampleStore

__all__ = ["StoreSource"]


class StoreSource:
    """The samples of a store.

    Args:
        where: what it is called.
        store: of originals.
        classes: the names of the classes by number; None where they have none.

    Raises:
        UsageError: two samples have the same name.
    """

    kind = "dataset"

    def __init__(self, where: str, store: SampleStore, classes: Sequence[str] | None) -> None:
        self.where = where
        self.classes = classes
        self._store = store
        names = set(map(store.name, range(len(store))))
        if len(names) < len(store):
            raise UsageError(
                f"{where} lists {len(store)} samples of {len(names)} names, and a cache holds each "
                "once: list each once"
            )

    @property
    def label_field(self) -> Field:
        """The dtype and shape of one label."""
        return self._store.label_field

    def __len__(self) -> int:
        return len(self._store)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Nothing: the kernel reads ahead."""

    def read(self, sample: int) -> bytes | Pixels:
        """The bytes of an image."""
        return self._store.read(sample, 0)

    def label(self, sample: int) -> Any:
        """The label of a sample."""
        return self._store.label(sample)

    def name(self, sample: int) -> str:
        """What the store calls it."""
        return self._store.name(sample)

    def path(self, sample: int) -> str:
        """Nothing: no file holds it alone."""
        return ""

    def stamp(self, sample: int) -> Stamp:
        """0: a change cannot be seen."""
        return 0
