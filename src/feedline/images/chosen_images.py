"""Selected images of a source, in their own order.

Guarantees: sample k is the source's sample `numbers[k]`, read and transformed alike.

Relies on: `chosen_store` for counting, and on the source for everything else: its methods are
feedline's own.
"""

from __future__ import annotations

from typing import Any

from feedline.images.image_source import ImageSource
from feedline.sources.chosen_store import ChosenStore, Numbers
from feedline.sources.file_store import FileStore

__all__ = ["ChosenImages"]


class ChosenImages(ImageSource[ChosenStore]):
    """Selected images of a source.

    Args:
        whole: the source.
        numbers: int64 (n), sample indices in order.
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
        """Start a worker, whose `worker_init_fn` may have set another transform."""
        self.transform = self.whole.transform
        super().open(worker, workers)

    def originals(self) -> FileStore[Any]:
        """Selected files of the source; raises like the source."""
        return self.whole.originals().chosen(self.store.numbers)

    def __repr__(self) -> str:
        return f"{len(self)} images of {self.whole!r}"
