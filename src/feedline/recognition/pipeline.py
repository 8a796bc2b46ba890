"""A torchvision dataset's files and transform as a source of rows and of samples.

Guarantees: those of `rows`; what is made is what torchvision's transform makes of the image, for
one of its random draws; a file that torchvision's loader reads is read.

Relies on: `transform_reader` for what the transform means, `resize_mode` for the resize,
`transform_tail` for what follows it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.images.resize_mode import fill_as
from feedline.images.rows import RowPipeline
from feedline.images.stable_repr import without_addresses
from feedline.plan.row import Field, Item
from feedline.plan.seeds import extend
from feedline.randomness import seeded
from feedline.recognition.pillow_reading import PillowSettings, read_with_pillow
from feedline.recognition.recognised_transform import RecognisedTransform
from feedline.recognition.steps import in_full
from feedline.request import Request
from feedline.stores.file_store import FileStore
from feedline.stores.path_table import LabelledPaths
from feedline.stores.store import Pixels
from feedline.trace import laps

__all__ = ["ImagePipeline"]

_STEPS, _TARGET = 1, 2
"""Set the random numbers of the steps that run as they are, and those of the target_transform,
apart from the crop's."""


class ImagePipeline(RowPipeline[FileStore[LabelledPaths]]):
    """The images of a recognised dataset; `recognise` makes it.

    A row is "image", (channels, size, size) as the transform gives it, and "label", int64.

    Args:
        store: the samples' files and labels.
        recognised: what is made of an image.
        settings: which files Pillow reads.
    """

    def __init__(
        self,
        store: FileStore[LabelledPaths],
        recognised: RecognisedTransform,
        settings: PillowSettings,
    ) -> None:
        self.recognised = recognised
        self._settings = settings
        super().__init__(store, recognised.crop, max_pixels=settings.max_pixels)

    @property
    def image_size(self) -> int:
        """The side of the transform's own output, in pixels: of an item that asks for none."""
        return self.recognised.image_size

    @property
    def writes_rows(self) -> bool:
        """Whether `fields` and `load` may be used; `sample` always may."""
        recognised = self.recognised
        return bool(recognised.tail.dtype) and recognised.target_transform is None

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """The arrays of a row at this image size, in pixels; None for the transform's own."""
        tail = self.recognised.tail
        image_size = image_size or self.image_size
        self.level_at(image_size)
        image = Field("image", tail.dtype, (tail.channels, image_size, image_size))
        return image, self.store.label_field

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """These rows or samples are about to be made; fetch together what lies elsewhere."""
        counted = [sample + len(self) if sample < 0 else sample for sample in samples]
        super().prepare(counted, image_size or self.image_size)

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row: arrays as `fields` says, C-contiguous, which are written in place.

        Raises:
            ImageError: the file cannot be read or decoded; names it. The row is then undefined.
            IndexError: there is no such sample.
            Exception: whatever a step that runs as it is raises.
        """
        pixels, label = self._pixels(item)
        self.recognised.tail.write(pixels, extend(item.seed, _STEPS), row[0])
        row[1][()] = label

    def sample(self, item: Item) -> tuple[Any, Any]:
        """One sample, as the dataset gives it for one of its random draws.

        Its pixels are those that `load` writes for the same item. While steps run as they are,
        `feedline.image_size()` and `feedline.augmentation_strength()` answer with the item's.

        Args:
            item: which sample, how large (None for the transform's own size), with which seed.

        Returns:
            what the last step gives: a tensor, an image, anything; and the label, an int, or what
            the target_transform makes of it.

        Raises:
            ImageError: the file cannot be read or decoded; names it.
            IndexError: there is no such sample.
            Exception: whatever a step that runs as it is raises.
        """
        pixels, number = self._pixels(item)
        tail, target = self.recognised.tail, self.recognised.target_transform
        label = int(number)
        if not tail.draws and target is None:
            return tail.run(pixels, 0), label
        with Request(item.image_size, item.strength):
            image = tail.run(pixels, extend(item.seed, _STEPS))
            if target is None:
                return image, label
            with seeded(extend(item.seed, _TARGET)):
                made = target(label)
            if laps.timed:
                laps.lap("target_transform")
            return image, made

    def _pixels(self, item: Item) -> tuple[Pixels, Any]:
        """The part that is shown, uint8 (size, size, 3), in memory of its own; and the label."""
        if item.sample < 0:  # as a list counts, which torchvision has its samples in
            item = item._replace(sample=item.sample + len(self))
        if item.image_size is None:
            item = item._replace(image_size=self.image_size)
        image, placement = self._part(item)
        pixels = np.empty((item.side, item.side, 3), np.uint8)
        fill_as(self.recognised.resize_mode, pixels, image, placement)
        if laps.timed:
            laps.lap("resize")
        return pixels, self.store.label(item.sample)

    def _rescued(self, data: bytes) -> Pixels | None:
        # The decoder is stricter than Pillow, and so than torchvision, about files cut short.
        try:
            return read_with_pillow(data, self._settings)
        except Exception:
            return None

    @property
    def targets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The label of every sample, int64 (n); a new array each time."""
        return self.store.paths.labels.astype(np.int64)

    def transform_identity(self) -> str:
        """What decides the pixels, in words and a digest: the same in every process."""
        recognised, tail = self.recognised, self.recognised.tail
        parts = recognised.crop, recognised.resize_mode, recognised.image_size, tail.form
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=8)
        if tail.table is not None:
            digest.update(tail.table.dtype.str.encode() + tail.table.tobytes())
        as_is = "\n".join(map(in_full, (*tail.before, "", *tail.after)))
        digest.update(as_is.encode(errors="backslashreplace"))
        steps = without_addresses(", ".join((*recognised.fast, *recognised.as_is)))
        form = self.store.form()
        return f"{steps} [{digest.hexdigest()}]" + (form and f", {form}")

    def __repr__(self) -> str:
        recognised = self.recognised
        as_is = f"; as they are: {_short(recognised.as_is)}" if recognised.as_is else ""
        made, where = recognised.tail.dtype or "samples", os.fsdecode(self.store.folders[0])
        return (
            f"ImagePipeline({where!r}, {_short(recognised.fast)}{as_is}): "
            f"{len(self)} images to {made}, {self.image_size} px"
        )


def _short(steps: tuple[str, ...]) -> str:
    return ", ".join(step.partition("(")[0] for step in steps)
