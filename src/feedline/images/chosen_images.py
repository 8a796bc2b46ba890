"""Some of the images of a source, in an order of their own.

Guarantees: sample k is that of the source whose number stands at place k, read and shown as there.

Relies on: `chosen_store` to count, and on the source for all else: its methods are feedline's own.
"""

from __future__ import annotations

from typing import Any

from feedline.images.image_source import ImageSource
from feedline.stores.chosen_store import ChosenStore, Numbers
from feedline.stores.file_store import FileStore

__all__ = ["ChosenImages"]


class ChosenImages(ImageSource[ChosenStore]):
    """Some of the images of a source.

    Args:
        whole: the source.
        numbers: int64 (n), which of its samples, in order.
    """

    def __init__(self, whole: ImageSource[Any], numbers: Numbers) -> None:
        self.whole = whole
        super().__init__(
            ChosenStore(whole.store, numbers),
            whole.transform,
            scaled=whole.reads_scaled,
            exif=whole.exif,
            max_pixels=whole.max_pixels,
        )

    def open(self, worker: int, workers: int) -> None:
        """A worker begins, whose `worker_init_fn` may have set another transform."""
        self.transform = self.whole.transform
        super().open(worker, workers)

    def originals(self) -> FileStore[Any]:
        """The chosen ones of the source's files; else raises as the source does."""
        return self.whole.originals().chosen(self.store.numbers)

    def __repr__(self) -> str:
        return f"{len(self)} images of {self.whole!r}"
